"""JavaScript in a notebook: cells share a context, values pass as JSON, and a changed engine is another one."""

import pytest
from py_mini_racer import JSEvalException

from classroom import javascript


@pytest.fixture(autouse=True)
def cells(monkeypatch):
    monkeypatch.setattr(javascript, "CELLS", [])


def test_cells_share_a_context_and_print_what_they_end_in(capsys):
    javascript.cell("", "function twice(x) { return 2 * x; }")
    javascript.cell("", "const four = twice(2); four + 0.5")
    javascript.run("`${four}!`")
    javascript.run("({})")
    assert capsys.readouterr().out == "4.5\n4!\n"
    assert javascript.call("twice", 21) == 42
    assert javascript.call("((x) => [...x, null])", [1, "a"]) == [1, "a", None]


def test_an_error_is_javascripts():
    with pytest.raises(JSEvalException, match=r"ReferenceError: nobody is not defined"):
        javascript.run("nobody")


def test_an_engine_with_another_line():
    javascript.cell("", "function half(x) { return x / 2; }")
    with javascript.changed("x / 2", "x / 3", "const more = half(3);") as other:
        assert other.eval("more") == 1 and other.call("half", 9) == 3
    assert javascript.call("half", 9) == 4.5
    with pytest.raises(ValueError, match=r"'nowhere' is there 0 times"), javascript.changed("nowhere", ""):
        pass
