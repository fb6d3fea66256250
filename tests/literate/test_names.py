"""What the chapters export and use: names are unique in a module, nobody looks ahead, the index says who uses what."""

import textwrap

import pytest

from literate.project import ChapterError, ProjectError

SOFTMAX = '''
# %% [markdown]
# ## From scores | to $\\sqrt{d}$ shares

# %% tags=["export"] module="by_hand.softmax"
def softmax(scores):
    """Shares."""
    return scores


def _shifted(scores):
    return scores
'''
ATTENTION = '''
# %%
{imports}

# %% tags=["export"] module="by_hand.attention"
class Attention:
    """A filter."""
'''


@pytest.fixture
def two_chapters(folder):
    folder.chapter("03_softmax", SOFTMAX)
    folder.chapter("04_attention", ATTENTION.format(imports="pass"), title="What to look at")
    return folder


def refused(folder, stem: str, fragment: str) -> str:
    """The message of the error that reading the book raises at the line with `fragment`."""
    with pytest.raises(ChapterError) as raised:
        folder.book()
    place = folder.at(stem, fragment)
    assert str(raised.value).startswith(place)
    return str(raised.value).removeprefix(place).strip()


@pytest.mark.parametrize(
    "code",
    [
        "from dotformer.by_hand.softmax import softmax",
        "from dotformer.by_hand.softmax import softmax as s, _shifted",
        "import dotformer.by_hand.softmax as s\ns.softmax(1)",
        "import dotformer.by_hand.softmax\ndotformer.by_hand.softmax.softmax(1)",
        "from dotformer.by_hand import softmax\nsoftmax.softmax(1)\nsoftmax.__doc__",
        "from dotformer import by_hand\nby_hand.softmax.softmax.__name__",
        "from dotformer.by_hand import softmax as s\nfor s in [1]:\n    s.real",
        "import dotformers.other",
        "from dotformer.support.shapes import shapes",
        "from dotformer.data import corpora\ncorpora.Pair",
    ],
)
def test_a_chapter_uses_what_earlier_ones_export(two_chapters, code):
    two_chapters.edit("chapters/04_attention.py", "pass", code)
    assert [export.name for export in two_chapters.book().exports] == ["softmax", "_shifted", "Attention"]


@pytest.mark.parametrize(
    "code",
    [
        "from dotformer.by_hand.attention import Attention  # here",
        "import dotformer.by_hand.attention as a  # here",
        "from dotformer.by_hand import attention  # here",
        "def inner():\n    from dotformer.by_hand import attention  # here",
    ],
)
def test_a_chapter_that_looks_ahead_is_refused(two_chapters, code):
    two_chapters.write("chapters/03_softmax.py", two_chapters.read("chapters/03_softmax.py") + f"\n# %%\n{code}\n")
    assert "later chapter, chapters/04_attention.py" in refused(two_chapters, "03_softmax", "# here")


@pytest.mark.parametrize(
    "code",
    [
        "from dotformer.by_hand.softmax import softer  # here",
        "from dotformer.by_hand import softer  # here",
        "from dotformer.softer import softmax  # here",
        "from dotformer.command_line.softer import main  # here",
        "import dotformer.by_hand.softmax as s\ns.softer(1)  # here",
        "import dotformer.by_hand.softmax\ndotformer.by_hand.softmax.softer(1)  # here",
        "from dotformer.by_hand import softmax\nsoftmax.softer(1)  # here",
    ],
)
def test_a_name_that_no_chapter_exports_is_refused(two_chapters, code):
    two_chapters.edit("chapters/04_attention.py", "pass", code)
    message = refused(two_chapters, "04_attention", "# here")
    assert message.startswith("no chapter exports dotformer.") and "softer" in message


def test_a_chapter_does_not_import_its_own_exports(two_chapters):
    own = "from dotformer.by_hand.attention import Attention"
    two_chapters.edit("chapters/04_attention.py", "pass", own)
    assert "exports dotformer.by_hand.attention.Attention itself" in refused(two_chapters, "04_attention", own)


CONTINUED = '''
# %% tags=["export"] module="by_hand.{module}"
def {name}(scores):
    """Shares."""
    return scores
'''


def test_a_later_chapter_continues_a_module_and_is_not_used_before(two_chapters):
    two_chapters.chapter("05_more", CONTINUED.format(module="softmax", name="cooled"))
    assert two_chapters.book().modules == ["by_hand.softmax", "by_hand.attention"]
    two_chapters.edit("chapters/04_attention.py", "pass", "from dotformer.by_hand.softmax import cooled")
    assert "later chapter, chapters/05_more.py" in refused(two_chapters, "04_attention", "cooled")


def test_a_module_has_each_name_once(two_chapters):
    two_chapters.chapter("05_more", CONTINUED.format(module="softmax", name="softmax"))
    message = refused(two_chapters, "05_more", "def softmax")
    place = two_chapters.at("03_softmax", "def softmax").removesuffix(":")
    assert message == f"dotformer.by_hand.softmax has a softmax already, from {place}"
    two_chapters.chapter("05_more", CONTINUED.format(module="other", name="softmax"))
    assert len(two_chapters.book().exports) == 4


def test_one_chapter_does_not_export_a_name_twice(two_chapters):
    text = two_chapters.read("chapters/03_softmax.py") + CONTINUED.format(module="softmax", name="softmax").replace(
        "scores):", "scores):  # again"
    )
    two_chapters.write("chapters/03_softmax.py", text)
    assert "has a softmax already" in refused(two_chapters, "03_softmax", "# again")


def test_imports_alone_make_no_module(two_chapters):
    two_chapters.chapter("05_more", '# %% tags=["export"] module="by_hand.other"\nimport numpy')
    assert "no chapter defines anything in dotformer.by_hand.other" in refused(two_chapters, "05_more", "numpy")


def test_two_chapters_do_not_share_a_number(two_chapters):
    two_chapters.chapter("04_other", "")
    assert "has the number 4 already" in refused(two_chapters, "04_other", "%% [markdown]")


def test_a_folder_without_chapters_is_refused(folder, capsys):
    with pytest.raises(ProjectError, match="no chapters in "):
        folder.book()
    assert folder.literate("tangle") == 1
    assert capsys.readouterr().err.startswith("no chapters in ")


def test_the_index_says_where_names_are_defined_and_used(two_chapters, capsys):
    two_chapters.edit("chapters/04_attention.py", "pass", "from dotformer.by_hand.softmax import softmax\nsoftmax(1)")
    two_chapters.chapter("05_idle", "# %%\nfrom dotformer.by_hand.softmax import softmax")
    two_chapters.chapter("06_busy", "# %%\nimport dotformer.by_hand.softmax as s\ns.softmax(1)", title="Busy")
    assert two_chapters.literate("index", "--check") == 1
    assert capsys.readouterr().err.startswith("book/names.md: missing")
    assert two_chapters.literate("index") == 0
    page = two_chapters.read("book/names.md")
    assert page.startswith("# Where every name comes from\n") and "_shifted" not in page
    tables = textwrap.dedent(
        r"""
        ## `dotformer.by_hand.softmax`

        | name | defined in | used in |
        |---|---|---|
        | {py:func}`softmax <dotformer.by_hand.softmax.softmax>`
         | [3. From scores \| to sqrt(d) shares](notebooks/03_softmax.ipynb#from-scores--to--shares)
         | [4. What to look at](notebooks/04_attention.ipynb)<br>[6. Busy](notebooks/06_busy.ipynb) |

        ## `dotformer.by_hand.attention`

        | name | defined in | used in |
        |---|---|---|
        | {py:class}`Attention <dotformer.by_hand.attention.Attention>`
         | [4. What to look at](notebooks/04_attention.ipynb#4-what-to-look-at)
         | no other chapter yet |
        """
    )
    assert page.endswith(tables.replace("\n |", " |"))
    assert two_chapters.literate("index", "--check") == 0
    two_chapters.edit("book/names.md", "Busy", "Idle")
    assert two_chapters.literate("index", "--check") == 1
    assert "+++ from the chapters" in capsys.readouterr().err


def test_the_contents_list_the_chapters_of_each_part_that_are_there(two_chapters):
    entries = ("03_softmax", "04_attention", "05_to_come")
    files = "".join(f"      - file: book/notebooks/{stem}\n" for stem in entries)
    other = "  - caption: Reference\n    chapters:\n      - file: book/names\n"
    two_chapters.write("_toc.yml", f"parts:\n  - caption: I. Both\n    chapters:\n{files}{other}")
    assert two_chapters.literate("index") == 0
    comment, count, *listed = two_chapters.read("book/contents.md").strip().split("\n\n")
    assert comment.startswith("<!--") and count == "2 chapters are ready."
    assert listed[0] == "**I. Both**" and len(listed) == 2
    links = [line.removeprefix("- ") for line in listed[1].split("\n")]
    assert [link.partition("](")[2] for link in links] == [f"notebooks/{stem}.ipynb)" for stem in entries[:2]]
    assert [link[:3] for link in links] == ["[3.", "[4."]
