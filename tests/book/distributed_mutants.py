"""Defects of chapter 16: (what is wrong, the right code, the wrong code). As in `torch_mutants`.

Those that only several processes can show are not here: `tests/torchrun` starts too slowly for a hundred of them.
"""

DISTRIBUTED = [
    (
        "the batch is cut, and rows are lost",
        "side[number::size]",
        "side[number * (len(side) // size):][:len(side) // size]",
    ),
    ("everyone has the first rows", "side[number::size]", "side[0::size]"),
    ("everyone has every row", "side[number::size]", "side[0:]"),
    ("a process that has no row is given a target", "target[:, 1:] = pad_id", "target[:, :0] = pad_id"),
    ("the beginning is padded, too", "target[:, 1:] = pad_id", "target[:, :] = pad_id"),
    ("padding is always 0", "target[:, 1:] = pad_id", "target[:, 1:] = 0"),
    ("the batch is changed", "side[:1].clone()", "side[:1]"),
    ("a process that is not there passes", "0 <= number < size", "0 <= number"),
    ("only encoder layers are parts", "EncoderLayer | DecoderLayer", "EncoderLayer"),
    ("what belongs to no layer is no part", "return fully_shard(model, mesh=mesh)", "return model"),
    (
        "the checkpoint before is never found",
        "return old if old.exists() and (not path.exists()) else path",
        "return path",
    ),
    ("the checkpoint before is preferred", "old.exists() and (not path.exists())", "old.exists()"),
    ("a run of a process alone passes", "if (folder / 'checkpoint.pt').exists():", "if False:"),
    ("another configuration passes", "    if wrong:", "    if False:"),
    (
        "an empty history is a traceback",
        "(ValueError, KeyError, TypeError, IndexError)",
        "(ValueError, KeyError, TypeError)",
    ),
    ("the place is a list", "tuple(run['place'])", "run['place']"),
    (
        "the one before is gone before the next is there",
        "draft, path = (folder / 'checkpoint.draft', folder / 'checkpoint')\n",
        "draft, path = (folder / 'checkpoint.draft', folder / 'checkpoint')\n    shutil.rmtree(path, True)\n",
    ),
    ("written over the one before", "checkpoint_id=draft", "checkpoint_id=path"),
    (
        "the one before stays for ever",
        "        draft.rename(path)\n        shutil.rmtree(old, ignore_errors=True)",
        "        draft.rename(path)",
    ),
    ("a full disk is an exception of PyTorch", "raise OSError(f'{draft}: ", "raise CheckpointException(f'{draft}: "),
    (
        "the optimiser's memory is not put back",
        "dcp.load(state, checkpoint_id=path)",
        "dcp.load({'model': parameters}, checkpoint_id=path)",
    ),
    (
        "a damaged part is an exception of PyTorch",
        "except (CheckpointException, OSError, RuntimeError) as error:\n        reason",
        "except ZeroDivisionError as error:\n        reason",
    ),
    ("others that find another run pass", "!= self.size * step", "< 0"),
    ("the random numbers go on where they are", "        self.seed(config, step)\n", ""),
    (
        "random numbers of a run do not depend on the step",
        "[config.seed, step, self.number]",
        "[config.seed, self.number]",
    ),
    ("all processes draw the same", "[config.seed, step, self.number]", "[config.seed, step]"),
    ("the best model is not kept", "write_logs(folder, self.copy, history, board)", "None"),
    ("the best model is the first", "            self.copy.load_state_dict(whole)\n", ""),
    ("no run has reached anything", "return run['step'] if run else 0", "return 0"),
    ("restarts on several machines pass", "if here < size and restarts:", "if False:"),
    ("on one machine, too, they do not", "if here < size and restarts:", "if restarts:"),
    (
        "a process that nobody has started waits for others",
        "if not dist.is_torchelastic_launched():",
        "if 'WORLD_SIZE' not in os.environ:",
    ),
    ("runs draw the same", "[config.seed, step, self.number]", "[step, self.number]"),
    ("flipped bits pass", "run['digests'] != digests(path)", "run['digests'].keys() != digests(path).keys()"),
    (
        "a file that is missing passes",
        "run['digests'] != digests(path)",
        "digests(path).items() - run['digests'].items()",
    ),
    ("as many heads do not matter", "if run['shape'] != shape_of(inner):", "if False:"),
    ("names are those of the wrapped model", "return getattr(model, 'module', model)", "return model"),
    ("any device will do", "if device not in ('cpu', 'cuda'):", "if False:"),
    ("there is always one GPU more", "local >= torch.cuda.device_count()", "local > torch.cuda.device_count()"),
    ("all take the first GPU", "torch.cuda.set_device(local)", "torch.cuda.set_device(0)"),
    ("a restart has no place of its own", "        store = dist.PrefixStore(f'attempt {attempt}', store)\n", ""),
]
