"""Words that only this book would use are found wherever a reader reads, and nowhere else."""

import re

import pytest

from literate import words
from literate.words import Word, findings, read_words

PLACE = Word(re.compile(r"\bplaces?\b", re.IGNORECASE), "position", (re.compile(r"\btakes\s+the\s+place\b"),))


def findings_in(folder) -> list[str]:
    return findings(folder.book().project, [PLACE])


@pytest.mark.parametrize(
    "cell",
    [
        "# %% [markdown]\n# Four words,\n# and each HERE has a place.",
        "# %% [markdown]\n# ## A word and its place HERE",
        '# %%\nchoose(\n    "Which word?",\n    ("The third place" " HERE", "No."),\n)',
        '# %%\nprint(f"{n} at a place of {n} HERE")',
        '# %%\ndef f():\n    """One line.\n\n    Another place, HERE.\n    """',
        "# %%\nn = 1  # the place HERE",
        '# %% tags=["plot"] mystnb={"image": {"alt": "Each place HERE has a bar."}}\nn = 1',
        '# %% the place HERE tags=["hide-input"]\nn = 1',
    ],
    ids=["prose", "heading", "quiz", "f-string", "docstring", "comment", "alt text", "title"],
)
def test_a_word_is_found_with_its_line(folder, cell):
    folder.chapter("05_position", cell)
    assert findings_in(folder) == [f'{folder.at("05_position", "HERE")} "place": say position']


def test_what_is_allowed_holds_across_lines_and_for_that_phrase_alone(folder):
    folder.chapter("05_position", "# %% [markdown]\n# A cache takes the\n# place of a product. A place stays.")
    assert findings_in(folder) == [f'{folder.at("05_position", "A place stays")} "place": say position']


def test_code_is_no_prose(folder):
    folder.chapter(
        "05_position",
        """
        # %% [markdown]
        # The variable `place`, and [a link](06_many_heads.ipynb#the-place).

        # %%
        place = {n.place: place(place=n) for n in []}
        print(f"{place}")
        """,
    )
    assert findings_in(folder) == []


def test_pages_are_read_unless_they_are_generated(folder):
    folder.chapter("05_position", "")
    folder.write("book/names.md", "A place.\n")
    folder.write("book/contents.md", "A place.\n")
    folder.write("book/glossary.md", "One\ntwo\n\n  A vector for a {term}`place`.\n")
    assert findings_in(folder) == ['book/glossary.md:4: "place": say position']


def test_the_command_says_what_it_found(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder.root)
    folder.chapter("05_position", "# %% [markdown]\n# A counter.")
    assert words.main() == 0
    assert capsys.readouterr().err == ""
    folder.chapter("05_position", "# %% [markdown]\n# A complaint.")
    assert words.main() == 1
    assert capsys.readouterr().err == 'chapters/05_position.py:5: "complaint": say gradient\n'
    folder.chapter("05_position", "# %%\n(")
    assert words.main() == 1
    assert capsys.readouterr().err.startswith("chapters/05_position.py:")


@pytest.mark.parametrize("word", read_words(), ids=lambda word: word.say)
def test_each_allowed_phrase_holds_its_word(word):
    """A phrase that allows what no pattern forbids would be there for nothing."""
    for phrase in word.allowed:
        bare = re.sub(r"\(\?:|\\b|\\s\+|[()|?^$]", " ", phrase.pattern)
        assert word.pattern.search(bare), phrase.pattern
