"""Chapter 13's five models at the learning rate of one of them: `python -m benchmarks.one_rate`.

The code is the chapter's own. Takes six minutes of one core and writes book/measurements/one_rate.json.
"""

from tqdm import tqdm

from benchmarks.pages import names_before
from benchmarks.results import save
from benchmarks.translators import points_right
from dotformer.translation import Translator


def main() -> None:
    """Train, translate, save."""
    page = names_before("13_alignment", "one_rate")
    corpus, found = page["corpus"], {}
    for name, (kind, shape) in tqdm(page["models"].items(), desc="models"):
        model, history = page["learn"](kind, shape)
        found[name] = {key: [row[key] for row in history] for key in ("step", "validation_exact")}
        found[name]["parameters"] = sum(p.numel() for p in model.parameters())
        for part, pairs in (("all", corpus.test), ("short", page["short"]), ("long", page["long"])):
            found[name][part] = page["share_right"](model, pairs)
        if name == "gru, attention":
            translator = Translator(page["english"], page["german"], kind, shape)
            translator.model = model
            found[name]["translations"] = translator.translate([pair.source for pair in corpus.test])
            found[name]["points_right"] = points_right(translator, corpus.test)[0][-1]
    save("one_rate", {"found": found})


if __name__ == "__main__":
    main()
