"""Where a trained translator looks in real sentences: `python -m benchmarks.alignments FOLDER`.

FOLDER is what `python -m dotformer train` has made. Takes the first sentences of its test set that have at most a dozen
tokens on either side, and writes the tokens and the decoder's weights to book/measurements/alignments.json.
"""

import sys
from pathlib import Path

from benchmarks.race import attention
from benchmarks.results import save
from dotformer.command_line.runs import Run
from dotformer.data.corpora import Pair

SENTENCES, LONGEST = 3, 12


def main() -> None:
    """Translate, look, save."""
    run = Run.load(Path(sys.argv[1]))
    translator, found = run.trained("cpu"), []
    for pair in run.corpus.test:
        source = translator.source.tokenize(f" {pair.source}")
        if len(source) > LONGEST:
            continue
        [translation] = translator.translate([pair.source])
        target = translator.target.tokenize(f" {translation}")
        if len(target) > LONGEST:
            continue
        weights = attention(translator, Pair(pair.source, translation))
        rounded = (weights * 1000).round().int().tolist()
        found.append({"source": source, "target": target, "reference": pair.target, "thousandths": rounded})
        if len(found) == SENTENCES:
            break
    save("alignments", {"config": run.config, "sentences": found})


if __name__ == "__main__":
    main()
