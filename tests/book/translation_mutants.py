"""Defects of chapter 13 beside those of `recurrent`: (what is wrong, the right code, the wrong code).

As in `torch_mutants`. Those of FILES_OF_TEXT are in `corpora`, and noticed by tests/reference/test_parallel.py.
"""

SCORED = "metric.corpus_score(list(hypotheses), [list(references)]).score"
SOUNDS = "' '.join((p.strip('012') for p in way)) for way in ways"

TRANSLATION = [
    (
        "the vocabularies change places",
        "config(len(source), len(target), **shape)",
        "config(len(target), len(source), **shape)",
    ),
    ("pairs are numbered as if at the start of a line", "f' {p.source}'", "p.source"),
    (
        "targets are learned without marks",
        "self.target.encode(f' {p.target}', True)",
        "self.target.encode(f' {p.target}')",
    ),
    ("every model has 1024 places", "getattr(self.model.config, 'max_length', 1024)", "1024"),
    ("a token is a byte", "self.longest * max((len(s) for s in symbols))", "self.longest"),
    ("what is far too long is cut up", "if text and few else []", "if text else []"),
    ("what is a little too long passes", "if not few or len(tokens) > self.longest:", "if not few:"),
    ("words are dropped while translating", "        self.model.eval()\n        for", "        for"),
    ("a translation may be too long for the model", " + 50, self.longest)", " + 50, 10 ** 6)"),
    ("sentences of a batch are mixed up", "[rows[n] for n in chosen]", "[rows[n] for n in chosen[::-1]]"),
    ("the number of drafts is fixed", "length, beam, alpha)", "length, 4, alpha)"),
    ("the last draft for the best", "hypotheses[0]", "hypotheses[-1]"),
    ("space around a translation stays", ".decode(hypotheses[0].tokens).strip()", ".decode(hypotheses[0].tokens)"),
    ("it looks one word late", "(source, target[:-1])", "(source, target[1:])"),
    ("it looks at itself", "endswith('cross_attention')", "endswith('self_attention')"),
    (
        "the mean of sentences' BLEU",
        SCORED,
        "sum((metric.corpus_score([h], [[r]]).score for h, r in zip(hypotheses, references))) / len(hypotheses)",
    ),
    (
        "reference and translation change places",
        SCORED,
        "metric.corpus_score(list(references), [list(hypotheses)]).score",
    ),
    ("always in lower case", "BLEU(lowercase=lowercase, ", "BLEU(lowercase=True, "),
    ("words are what stands between spaces", "force=True)", "force=True, tokenize='none')"),
    ("pieces of four words may be left out", "force=True)", "force=True, effective_order=True)"),
    (
        "only the last of several targets is right",
        "targets[pair.source].add(pair.target)",
        "targets[pair.source] = {pair.target}",
    ),
    ("pairs are counted, not sources", "/ len(answers)", "/ len(pairs)"),
]

FILES_OF_TEXT = [
    ("the end of the last line begins another", "data.removesuffix(b'\\n').split(", "data.split("),
    ("empty lines at the end are lost", "data.removesuffix(b'\\n')", "data.rstrip(b'\\n')"),
    ("the carriage return stays", "line.decode().strip()", "line.decode().strip(' ')"),
    ("what is not UTF-8 is replaced", "line.decode().strip()", "line.decode(errors='replace').strip()"),
    ("half a file is a traceback", "except (EOFError, gzip.BadGzipFile, zlib.error) as", "except gzip.BadGzipFile as"),
    ("empty lines pass", "if '' in lines:", "if False:"),
    ("stress stays", "p.strip('012')", "p"),
    ("ways that differ in stress alone are several", f"sorted({{{SOUNDS}}})", f"sorted([{SOUNDS}])"),
    ("every seed draws the same words", "default_rng(seed).permutation(", "default_rng(0).permutation("),
    ("words to judge by are chosen by, too", "order[test:test + validation]", "order[:validation]"),
    ("what is downloaded is kept unseen", "check_multi30k(name, path, draft.read_bytes())", "pass"),
    ("what is there is believed", "check_multi30k(name, path, path.read_bytes())", "pass"),
    ("the archive is compared, not the text", "hashlib.sha256(decompressed(path, data))", "hashlib.sha256(data)"),
    ("a folder of one's own is filled", "if given:\n", "if False:\n"),
    ("it waits for ever", "timeout=30", "timeout=None"),
]

ORDER = "'finite subject pronoun dat time acc not place new end prefix clause'"

GERMAN = [
    ("the accusative is the nominative", "den die das die", "der die das die"),
    ("adjectives end alike after the and a", "weak if before.endswith('the') else mixed", "weak"),
    ("the dative plural has no n", "german = german.removesuffix('n') + 'n'", "pass"),
    ("in the stays in two words", ".replace('in dem', 'im')", ""),
    ("it is always es", "same[0].german[0])", "'es' if it else same[0].german[0])"),
    ("the finite verb is not second", ORDER, ORDER.replace("finite subject", "subject finite")),
    (
        "a participle does not end its clause",
        ORDER,
        ORDER.replace(" end", "").replace("finite subject", "finite end subject"),
    ),
    ("the verb does not end a clause that a conjunction opens", "if opening:\n", "if False:\n"),
    ("a separable prefix stays apart", "words[-2:] = [(prefix + verb, links)]", "pass"),
    ("a prefix is lost where the verb is no finite one", "''.join([*prefix, infinitive])", "infinitive"),
    ("the comma renders nothing", "[(',', opening.english)]", "[(',', [])]"),
    ("links go from source to target", "[(t, place[x]) for t,", "[(place[x], t) for t,"),
]
