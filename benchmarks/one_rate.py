"""Chapter 13's five models at the learning rate of one of them: `python -m benchmarks.one_rate`.

The code is the chapter's own. Takes six minutes of one core and writes book/measurements/one_rate.json.
"""

from tqdm import tqdm

from benchmarks.pages import names_before
from benchmarks.results import save
from benchmarks.translators import points_right


def main() -> None:
    """Train, translate, save."""
    page = names_before("13_translation", "one_rate")
    corpus, found = page["corpus"], {}
    for name, model in tqdm(page["models"].items(), desc="models"):
        translator, history = page["learn"](*model)
        found[name] = {key: [row[key] for row in history] for key in ("step", "validation_exact")}
        found[name]["parameters"] = sum(p.numel() for p in translator.model.parameters())
        for part, pairs in (("all", corpus.test), ("short", page["short"]), ("long", page["long"])):
            found[name][part] = page["share_right"](translator, pairs)
        if name == "gru, attention":
            found[name]["translations"] = translator.translate([pair.source for pair in corpus.test])
            found[name]["points_right"] = points_right(translator, corpus.test)[0][-1]
    save("one_rate", {"found": found})


if __name__ == "__main__":
    main()
