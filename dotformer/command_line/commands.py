"""The commands train, translate, evaluate, write, search, chat and export."""

import argparse
import csv
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO, NoReturn

import torch
from sacrebleu.metrics import BLEU
from torch import Tensor

from dotformer.command_line.runs import Run, write_json
from dotformer.data.corpora import Pair
from dotformer.devices import FastTrainer, GraphTrainer, level, prefetch, prepare_layers
from dotformer.distributed import DistributedTrainer, evaluate_together
from dotformer.export import page_model, write_onnx
from dotformer.generation import filter_logits, generate
from dotformer.gpt import GPT
from dotformer.modern import ModernCache, load_smollm2
from dotformer.parsing import parse_scores
from dotformer.pretrained import load_minilm, search
from dotformer.reading import babi_scores, rouge_scores
from dotformer.support.chat import Chat
from dotformer.support.checkpoints import RunFolder
from dotformer.support.memory import keep_freed_memory, memory_advice
from dotformer.support.modes import matmul_precision
from dotformer.support.pages import write_page
from dotformer.support.processes import process_group, rank, rank_0_first, world_size
from dotformer.support.progress import Batch
from dotformer.support.texts import passages
from dotformer.training import cross_entropy, evaluate, pair_batches
from dotformer.transformer import Transformer
from dotformer.translation import bleu, chrf, exact_match

ASKING = ("recurrent", "facts")  # kinds of models whose steps cannot be recorded
SHOWN = 10  # translations that --save keeps
CONFIG_HELP = """CONFIG.toml has four sections. What is left out has its default; an error names what there is.

  [data]      corpus = "number_words", "grammar", "cmudict", "multi30k", "docstrings", "trees", "craft", "stories",
              "babi", "summaries" or "parallel", and the arguments of the function of that name in dotformer.data,
              dotformer.parsing or dotformer.reading; parallel: train, validation, test = ["SOURCE", "TARGET"], text
              files with a sentence a line, named from where CONFIG.toml lies
  [tokens]    vocab_size = 10000, shared = false (one tokenizer for both sides), multiple = 1 (64 fills the rows of the
              output matrix up to a multiple of 64, which a GPU multiplies faster; the model computes the same)
  [model]     kind = "transformer", "recurrent", "gpt", "modern", "facts" or "copying", and the fields of
              TransformerConfig (as for the last two), RecurrentConfig, GPTConfig or ModernConfig; "gpt", "modern" and
              "copying" need shared = true in [tokens], and "copying" share_embeddings = true
  [training]  max_tokens = 4096 (in a batch, padding included), precision = "float32", "tf32" or "bfloat16" (of
              products), compile = false and checkpointing = false (of layers), cuda_graphs = false (steps are recorded
              and repeated, on a CUDA device), and the fields of TrainingConfig

The folder will hold config.json, source.json and target.json (the tokenizers), model.safetensors (the parameters when
the validation loss was lowest), log.csv, tensorboard/, and checkpoint.safetensors, from which the same command goes on,
by any number of processes."""


def device_named(name: str) -> str:
    """That device, or for "auto" the fastest. ValueError when it is not there."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    name = next(n for n in there if there[n]) if name == "auto" else name
    if not there[name]:
        raise ValueError(f"there is no {name} here: choose another --device")
    return name


def numbered(batches: Callable[[int], Iterable[Batch]], epoch: Tensor) -> Iterable[Batch]:
    """The batches of the epoch whose number a tensor holds."""
    return batches(int(epoch))


def made_ahead(batches: Callable[[int], Iterable[Batch]]) -> Callable[[int], Iterable[Batch]]:
    """The batches of each epoch, made by one process for all, which is no fork of this one, since this may use NCCL."""
    multiprocessing.set_forkserver_preload(["dotformer.training"])
    shared = torch.zeros((), dtype=torch.long).share_memory_()
    loader = prefetch(partial(numbered, batches, shared), pin=True, start="forkserver")

    def ahead(epoch: int) -> Iterable[Batch]:
        shared.fill_(epoch)
        return loader

    return ahead


def train_command(args: argparse.Namespace) -> None:
    """Train, or go on where the checkpoint is."""
    device = device_named(args.device)
    keep_freed_memory()
    with process_group(device):
        train_in_group(args, device)


def train_in_group(args: argparse.Namespace, device: str) -> None:
    """Train, as one of several processes if there are; rank 0 makes the folder for all, which wait for it."""
    distributed = torch.distributed.is_initialized()
    if args.shard and not distributed:
        raise ValueError("one process has no shards of a model: use torchrun")
    folder = args.output or Path("runs", args.config.stem)
    with rank_0_first():
        if rank() > 0 and not (folder / "config.json").exists():
            raise ValueError(f"rank {rank()} does not see what rank 0 has written to {folder}")
        run = Run.begin(args.config, folder)
        if run.training.cuda_graphs and (distributed or device not in GraphTrainer.can_record):
            raise ValueError("[training] cuda_graphs needs a CUDA device, and one process")
        if run.training.cuda_graphs and run.config["model"]["kind"] in ASKING:
            raise ValueError(f"[training] cuda_graphs: kind {run.config['model']['kind']} asks the device for numbers")
        with torch.device("meta" if args.shard and rank() > 0 else "cpu"):  # rank 0 gives each process its shard
            translator = run.translator()
        reached = RunFolder(folder).reached()
        pairs, held_out = run.encode_part(translator, "train"), run.encode_part(translator, "validation")
        run.save(translator)
    config, model = run.training, translator.model
    say = (lambda _: None) if args.quiet or rank() > 0 else partial(print, flush=True)
    if reached < config.steps:
        parameters = sum(map(Tensor.numel, model.parameters()))
        say(f"{len(pairs):,} pairs, {parameters:,} parameters, on {device}, in {folder}")
        say(f"going on after step {reached:,} of {config.steps:,}" if reached else f"{config.steps:,} steps to go")
    if config.cuda_graphs:
        pairs = level(pairs, min(translator.longest, config.max_tokens - 1))
    alike = not config.cuda_graphs  # which record a step for each shape: few shapes count for more than little padding
    batches = partial(pair_batches, pairs, max_tokens=config.max_tokens, seed=config.seed, alike=alike)
    judge = evaluate_together if distributed else evaluate
    validate = partial(judge, batches=list(pair_batches(held_out, max_tokens=config.max_tokens)))
    progress = not args.quiet and sys.stderr is not None and sys.stderr.isatty()
    with matmul_precision("highest" if config.precision == "float32" else "high"):
        try:
            prepare_layers(model, config.compile, config.checkpointing)
            dtype = torch.bfloat16 if config.precision == "bfloat16" else None
            kind = partial(DistributedTrainer, sharded=args.shard, dtype=dtype) if distributed else FastTrainer
            kind = GraphTrainer if config.cuda_graphs else kind
            trainer = kind(model, config, device)
            if config.compile:
                trainer.criterion = torch.compile(cross_entropy)
            if config.precision == "bfloat16":
                trainer.precision = partial(torch.autocast, device, torch.bfloat16)
            ahead = made_ahead(batches) if device == "cuda" else batches
            history = trainer.train(ahead, validate, folder, progress)
        except torch.OutOfMemoryError as error:
            if world_size() > 1:  # what follows computes with the whole model and the whole batch
                raise MemoryError(str(error)) from error
            largest = max(batches(0), key=lambda batch: sum(map(Tensor.numel, batch)))
            there = torch.cuda.get_device_properties(device).total_memory if device == "cuda" else 0
            raise MemoryError(memory_advice(model, cross_entropy, *largest, there) if there else str(error)) from error
    if reached >= config.steps:
        return say(f"{folder} is finished: all {config.steps:,} steps are done")
    best = min(history, key=lambda row: row["validation_loss"])
    say(f"finished; the lowest validation loss was {best['validation_loss']:.3f}, after step {best['step']:,}")


def arriving(stream: BinaryIO, longest: int = 1 << 20) -> Iterator[list[bytes]]:
    """Lines as they arrive, those that are there together; the last may be one with no end in `longest` bytes."""
    rest = b""
    while len(rest) <= longest and (data := stream.read1(8192)):
        *lines, rest = (rest + data).split(b"\n")
        yield lines
    if rest:
        yield [rest]


def translate_command(args: argparse.Namespace) -> None:
    """Translate standard input, line by line, as it arrives."""
    if sys.stdin is None or sys.stdout is None:
        raise OSError("standard input or output is closed")
    translator, number = Run.load(args.folder).trained(device_named(args.device)), 0
    sys.stdout.reconfigure(encoding="utf-8")
    for lines in arriving(sys.stdin.buffer):
        texts, problem = [], None
        for line in lines:
            number += 1
            try:
                text = line.decode()
                translator.tokens(text)
            except ValueError as error:
                problem = f"standard input, line {number}: {error}"
                break
            texts.append(text)
        for answer in translator.translate(texts, args.beam, args.alpha):
            print(*answer.splitlines())
        sys.stdout.flush()
        if problem:
            raise ValueError(problem)


def translation_scores(answers: list[str], pairs: list[Pair]) -> dict[str, float | str]:
    """BLEU, also in small letters, and chrF, each with its signature; how far BLEU varies with the sentences.

    Of a thousand test sets, drawn from this one with replacement, 95 percent lie within a range twice `bleu_interval`.
    """
    found, targets = {}, [pair.target for pair in pairs]
    found["bleu_interval"] = BLEU(force=True).corpus_score(answers, [targets], n_bootstrap=1000)._ci
    for name, score in (("bleu", bleu), ("bleu_lowercase", partial(bleu, lowercase=True)), ("chrf", chrf)):
        found[name], found[f"{name}_signature"] = score(answers, targets)
    return found


SCORES = {  # of a corpus that is no translation
    "trees": parse_scores,
    "craft": parse_scores,
    "stories": babi_scores,
    "babi": babi_scores,
    "summaries": rouge_scores,
}


def evaluate_command(args: argparse.Namespace) -> None:
    """Measure a model, print what was found, and save it if that is wanted."""
    device, run = device_named(args.device), Run.load(args.folder)
    translator = run.trained(device)
    encoded, pairs = run.encode_part(translator, args.part), getattr(run.corpus, args.part)
    start, sources = time.perf_counter(), list(dict.fromkeys(pair.source for pair in pairs))
    translations = translator.translate(sources, args.beam, args.alpha)
    answers = dict(zip(sources, translations, strict=True))
    answers = [answers[pair.source] for pair in pairs]
    found = {"part": args.part, "sources": len(sources), "pairs": len(pairs), "beam": args.beam, "alpha": args.alpha}
    found["exact_match"] = exact_match(answers, pairs)
    found |= SCORES.get(run.config["data"]["corpus"], translation_scores)(answers, pairs)
    figures = evaluate(translator.model, pair_batches(encoded, max_tokens=run.training.max_tokens))
    found |= {name: figures[name] for name in ("loss", "accuracy")}  # of the next token, given the true ones
    found["parameters"] = sum(map(Tensor.numel, translator.model.parameters()))
    found |= {"device": device, "seconds": time.perf_counter() - start}
    for name, value in found.items():
        print(f"{name.replace('_', ' '):<26}{round(value, 4) if isinstance(value, float) else value}")
    if args.save:
        rows = zip(pairs[:SHOWN], answers[:SHOWN], strict=True)
        examples = [{"source": pair.source, "reference": pair.target, "translation": answer} for pair, answer in rows]
        with (run.folder / "log.csv").open(newline="") as file:
            curve = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
        machine = {"system": platform.platform(), "processor": platform.processor() or platform.machine()}
        machine |= {"cores": os.cpu_count(), "threads": torch.get_num_threads()}
        machine |= {"accelerator": torch.cuda.get_device_name()} if device == "cuda" else {}
        versions = {name: version(name) for name in ("torch", "numpy", "safetensors", "sacrebleu")}
        versions |= {"python": platform.python_version()}
        write_json(
            args.save,
            {"measured": found, "config": run.config, "curve": curve, "examples": examples}
            | {"machine": machine, "versions": versions},
        )


def write_command(args: argparse.Namespace) -> None:
    """Print a text that the model writes after a prompt, drawn token by token."""
    device = device_named(args.device)
    translator = Run.load(args.folder).trained(device)
    tokens, shared = translator.tokens(args.prompt), isinstance(translator.model, GPT)
    room = translator.model.config.max_length - len(tokens) if shared else translator.longest
    length = args.length or min(200, room)
    if length > room:
        raise ValueError(f"the model can write {room} tokens here, not {length}")
    if not tokens and not shared:
        raise ValueError("the prompt is empty: this model translates, and needs something to translate")
    prompt = torch.tensor([tokens], dtype=torch.long, device=device)
    state = translator.state(translator.model.eval(), prompt)
    [written] = generate(state, length, chooser(args, device))
    print(translator.target.decode(written).strip())


def chooser(args: argparse.Namespace, device: str) -> Callable[[Tensor], Tensor]:
    """How a command's options choose tokens (N,) by their logits (N, V)."""
    if not args.temperature:
        return lambda logits: logits.argmax(dim=-1)
    generator = torch.Generator(device)
    if args.seed is None:
        generator.seed()
    else:
        generator.manual_seed(args.seed)

    def draw(logits: Tensor) -> Tensor:
        shares = filter_logits(logits, args.temperature, args.top_k, args.top_p).softmax(dim=-1)
        return torch.multinomial(shares, 1, generator=generator).flatten()

    return draw


def chat_command(args: argparse.Namespace) -> None:
    """Answer each line of standard input, as one conversation."""
    if sys.stdin is None or sys.stdout is None:
        raise OSError("standard input or output is closed")
    device = device_named(args.device)
    model, tokenizer, template = load_smollm2()
    nothing = torch.zeros(1, 0, dtype=torch.long, device=device)
    talk = Chat(ModernCache(model.to(device), nothing), tokenizer, template, args.system)
    choose, at_terminal = chooser(args, device), sys.stdin.isatty()
    sys.stdout.reconfigure(encoding="utf-8")
    if at_terminal:
        print("Say something; Ctrl-D ends.\n> ", end="", flush=True)
    for line in sys.stdin.buffer:
        answer = talk.reply(line.decode(errors="replace").strip(), args.length, choose)
        try:
            for part in answer:
                print(part, end="", flush=True)
        except (ValueError, KeyboardInterrupt) as problem:  # at a terminal, the conversation goes on
            if not at_terminal:
                raise
            answer.close()
            print(f"({str(problem) or 'stopped'})", end="")
        print("\n> " if at_terminal else "", end="" if at_terminal else "\n", flush=True)


def search_command(args: argparse.Namespace) -> None:
    """Print the sentences of a text that are nearest in meaning to a question, the nearest first."""
    try:
        found = passages(args.file.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{args.file} is not UTF-8: {error}") from error
    if not found or not args.question.strip():
        raise ValueError(f"there are no words in {'the question' if found else args.file}")
    encoder = load_minilm().to(device_named(args.device))
    [nearest] = search(encoder, [text for _, text in found], [args.question], args.best)
    for score, n in nearest:
        line, text = found[n]
        print(f"{score:5.2f}  line {line}: {text}")


ONNX_README = """How a program, or a page with ONNX Runtime Web, translates with these files:

1. Cut a sentence, with a space before it, into token numbers: source.json has the merges of a byte-level BPE, and
   three special tokens (padding 0, begin 1, end 2) that come before the 256 bytes. At most {0} tokens.
2. encode.onnx: source (batch, source), int64, filled up with 0 -> mask, and for each layer n of the decoder,
   counted from 0, source_keys_n and source_values_n (batch, heads, source, width).
3. step.onnx, once for each token: tokens (batch), at first 1; mask; for each layer keys_n and values_n (batch, heads,
   length, width), at first of length 0, and source_keys_n and source_values_n -> logits (batch, vocabulary), and
   new_keys_n and new_values_n, which the next step takes as keys_n and values_n. Choose a token by its logits, never 0
   or 1; stop at 2, or after {0}.
4. target.json turns the tokens into text.

Both files use the operations of ONNX's opset 23.
"""


def languages_of(data: Mapping[str, str]) -> list[str]:
    """The languages of a corpus as codes, source and target; empty where they are not known."""
    if data.get("corpus") == "multi30k":
        return [data.get("source", "en"), data.get("target", "de")]
    return ["en", "de"] if data.get("corpus") in ("grammar", "number_words") else ["", ""]


def export_command(args: argparse.Namespace) -> None:
    """Write a trained model as a page that translates, or as graphs for servers."""
    run = Run.load(args.folder)
    translator = run.trained("cpu")
    output = args.output or args.folder / args.to
    model, name = translator.model.eval(), args.folder.resolve().name
    if args.to == "page":
        write_page(output, name, page_model(translator) | {"languages": languages_of(run.config["data"])})
        print(f"{output / 'index.html'} translates; so does chapter 22, after the next `make book`")
        return
    if type(model) is not Transformer:
        raise ValueError(f"graphs are written of a Transformer only, and this model is a {type(model).__name__}")
    output.mkdir(parents=True, exist_ok=True)
    write_onnx(model, output)
    (output / "README.txt").write_text(ONNX_README.format(model.config.max_length), encoding="utf-8")
    translator.source.save(output / "source.json")
    translator.target.save(output / "target.json")
    print(f"encode.onnx, step.onnx, both tokenizers and how to use them are in {output}")


class Parser(argparse.ArgumentParser):
    """Its errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"dotformer: {message} ({self.prog} --help tells more)\n")


def beam(text: str) -> int:
    """An argument that is a number of drafts."""
    if not 1 <= int(text) <= 100:
        raise ValueError
    return int(text)


def best(text: str) -> int:
    """An argument that is a number of passages, or of tokens."""
    if int(text) < 1:
        raise ValueError
    return int(text)


def share(text: str) -> float:
    """An argument that is a share of the probability."""
    if not 0 < float(text) <= 1:
        raise ValueError
    return float(text)


def temperature(text: str) -> float:
    """An argument that is a temperature."""
    if float(text) and not 0.01 <= float(text) <= 100:
        raise ValueError
    return float(text)


def seed(text: str) -> int:
    """An argument that is a seed."""
    if not 0 <= int(text) < 2**63:
        raise ValueError
    return int(text)


def alpha(text: str) -> float:
    """An argument that is an exponent."""
    if not 0 <= float(text) <= 100:
        raise ValueError
    return float(text)


def parser() -> Parser:
    """What can be said on the command line."""
    begin = "Begin with: python -m dotformer train configs/number_words.toml"
    top = Parser(prog="python -m dotformer", description="Train a transformer, and translate with it.", epilog=begin)
    commands = top.add_subparsers(title="commands", metavar="COMMAND")

    def command(run: Callable[[argparse.Namespace], None], short: str, more: str, device: bool = True) -> Parser:
        raw = argparse.RawDescriptionHelpFormatter
        name = run.__name__.partition("_")[0]
        made = commands.add_parser(name, help=short, description=f"{short}.", epilog=more, formatter_class=raw)
        made.set_defaults(run=run)
        if device:
            made.add_argument("--device", choices=("auto", "cpu", "cuda", "mps"), default="auto", help="where to"
                              " compute; auto: cuda if it is there, else mps, else cpu")  # fmt: skip
        return made

    made = command(train_command, "Train a model as a configuration says, or go on", CONFIG_HELP)
    made.add_argument("config", type=Path, metavar="CONFIG.toml", help="what to train, as configs/number_words.toml")
    made.add_argument("--output", type=Path, metavar="FOLDER", help="where to keep it (default: runs/CONFIG)")
    made.add_argument("--quiet", action="store_true", help="print nothing but errors")
    made.add_argument("--shard", action="store_true", help="under torchrun: each process keeps a shard of the model")
    for run, short, more in (
        (translate_command, "Translate standard input to standard output, line by line", "Example:\n  "
         "echo forty two | python -m dotformer translate runs/number_words"),
        (evaluate_command, "Measure a model on data that it has not learnt from", "Example:\n  "
         "python -m dotformer evaluate runs/number_words --save results.json"),
    ):  # fmt: skip
        made = command(run, short, more)
        made.add_argument("folder", type=Path, metavar="FOLDER", help="where train has kept the model")
        made.add_argument("--beam", type=beam, default=4, help="drafts to keep, 1 to 100 (default: 4)")
        made.add_argument("--alpha", type=alpha, default=0.6, help="how much length is favoured (default: 0.6)")
    made.add_argument("--part", choices=("test", "validation"), default="test", help="of the corpus (default: test)")
    made.add_argument("--save", type=Path, metavar="FILE.json", help="write it all, with configuration and curve")
    made = command(write_command, "Write a text after a prompt, drawn by its probabilities", "Example:\n  python -m "
                   "dotformer write runs/gpt-docstrings numpy.linalg.triangular_norm --temperature 0.7")  # fmt: skip
    made.add_argument("folder", type=Path, metavar="FOLDER", help="where train has kept the model")
    made.add_argument(
        "prompt", metavar="PROMPT", nargs="?", default="", help="what stands before it (default: nothing)"
    )
    draws(made, temperature_default=1.0)
    made.add_argument("--length", type=best, metavar="N", help="at most so many tokens (default: 200)")
    short = "Find the sentences of a text that are nearest in meaning to a question"
    made = command(search_command, short, 'Example:\n  python -m dotformer search README.md "what do I need?"')
    made.add_argument("file", type=Path, metavar="FILE", help="a text, in English, as UTF-8")
    made.add_argument("question", metavar="QUESTION", help="what to look for, in words of your own")
    made.add_argument("--best", type=best, default=5, help="how many to print (default: 5)")
    short = "Talk with SmolLM2, a published model, in chapter 19's code; each line that you type is a message"
    made = command(chat_command, short, 'Example:\n  echo "What is the dot product?" | python -m dotformer chat')
    made.add_argument("--system", metavar="TEXT", help="what it is told before the conversation begins")
    draws(made, temperature_default=0.0)
    made.add_argument("--length", type=best, default=400, metavar="N", help="at most so many tokens an answer"
                      " (default: 400)")  # fmt: skip
    made = command(export_command, "Write a trained transformer for a page, or for servers", "Example:\n  "
                   "python -m dotformer export runs/grammar --to page", device=False)  # fmt: skip
    made.add_argument("folder", type=Path, metavar="FOLDER", help="where train has kept the model")
    kinds = "page: a folder whose index.html translates without a server; onnx: two graphs, as chapter 22 has them"
    made.add_argument("--to", choices=("page", "onnx"), required=True, help=kinds)
    made.add_argument("--output", type=Path, metavar="FOLDER", help="where to (default: page or onnx in FOLDER)")
    return top


def draws(made: Parser, temperature_default: float) -> None:
    """Add the options that say how tokens are drawn."""
    made.add_argument("--temperature", type=temperature, default=temperature_default, help="0, or 0.01 to 100; 0: the"
                      f" likeliest token each time (default: {temperature_default:g})")  # fmt: skip
    made.add_argument("--top-k", type=best, metavar="K", help="draw from the K likeliest tokens (default: from all)")
    made.add_argument("--top-p", type=share, default=1.0, metavar="P", help="draw from the likeliest tokens that"
                      " together have a share P (default: 1)")  # fmt: skip
    made.add_argument("--seed", type=seed, help="the same seed writes the same text (default: another each time)")


def main(arguments: list[str] | None = None) -> int:
    """Run a command. Returns the exit code; what goes wrong is one line on standard error."""
    args = parser().parse_args(arguments)
    if "run" not in args:
        parser().print_help()
        return 0
    code, message = 0, ""
    try:
        args.run(args)
        if sys.stdout is not None:  # closed, it is None
            sys.stdout.flush()
    except KeyboardInterrupt:
        code, message = 130, "stopped" + "; the same command goes on from the last checkpoint" * ("config" in args)
    except BrokenPipeError:
        code = 141  # as if killed by SIGPIPE, like every filter
    except (OSError, ValueError, FloatingPointError, MemoryError, ModuleNotFoundError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise  # a mistake of ours
        code, message = 1, " ".join(str(error).split()) or "not enough memory"
        if isinstance(error, OSError) and error.strerror:
            message = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if message and sys.stderr is not None:
        with suppress(OSError):  # a disk so full that nobody can be told
            print(f"dotformer: {message}", file=sys.stderr)  # only here, where a progress bar has been closed
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:  # nobody listens, or the disk is full: do not try again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
