"""The appendix on pronunciation: that it shows what was measured, and that the committed page is fresh."""

from benchmarks import pronunciation
from tests.conftest import ROOT


def test_the_committed_page_is_what_was_measured():
    page = pronunciation.page()
    assert (ROOT / "book/pronunciation.md").read_text(encoding="utf-8") == page, (
        "run python -m benchmarks.pronunciation"
    )
    measured = pronunciation.measured("cmudict")
    assert f"{1 - measured['measured']['exact_match']:.1%} of the held-out words" in page and "{{" not in page


def test_a_word_of_two_pronunciations_is_one_row():
    ways = [{"source": "r e a d", "translation": "R EH D", "reference": way} for way in ("R IY D", "R EH D")]
    wrong = [{"source": "b o w", "translation": "B UW", "reference": way} for way in ("B AW", "B OW")]
    assert pronunciation.table(ways + wrong)[2:] == [
        "| read | `R EH D` | the same |",
        "| bow | `B UW` | `B AW` or `B OW` |",
    ]
