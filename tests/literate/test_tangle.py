"""Exported cells become modules that import what they need, and `--check` bites when a file differs."""

import ast
import importlib.util
import inspect
import textwrap

import pytest

from literate.project import ChapterError

SOFTMAX = '''
# %% [markdown]
# ## Why divide by $\\sqrt{d_k}$?

# %% tags=["export"] module="by_hand.softmax"
import os  # nothing uses it
import numpy as np  # arrays


# The one line
# that matters.
@np.errstate(over="raise")
def softmax(scores):
    """Shares of one."""
    return np.exp(scores)  # é: not one byte


# %%
print("not exported")

# %% tags=["export"] module="by_hand.softmax"
from collections.abc import Callable
import numpy as np

def weighted(values, then: Callable):
    r"""An average.

    Written $\\bar x$.
    """
    return np.mean(then(values))


def _private():
    """Private things are left alone."""
'''


@pytest.fixture
def softmax(folder):
    folder.chapter("03_softmax", SOFTMAX)
    return folder


def load(folder, name: str):
    """Import a tangled module under a name of its own."""
    spec = importlib.util.spec_from_file_location("tangled", folder.root / "dotformer" / name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_cells_become_one_module_with_merged_imports_and_their_comments(softmax, capsys):
    assert softmax.literate("tangle") == 0
    assert capsys.readouterr().out == "tangled dotformer/by_hand/softmax.py\n"
    expected = '''\
        """Tangled from chapters/03_softmax.py.

        Never edited by hand: edit the chapter, then `make tangle`.
        """

        from collections.abc import Callable

        import numpy as np  # arrays


        # The one line
        # that matters.
        @np.errstate(over="raise")
        def softmax(scores):
            """Shares of one.

            Defined in chapter 3, "Why divide by sqrt(d_k)?".
            """
            return np.exp(scores)  # é: not one byte


        def weighted(values, then: Callable):
            r"""An average.

            Written $\\bar x$.

            Defined in chapter 3, "Why divide by sqrt(d_k)?".
            """
            return np.mean(then(values))


        def _private():
            """Private things are left alone."""
        '''
    assert softmax.read("dotformer/by_hand/softmax.py") == textwrap.dedent(expected)
    assert load(softmax, "by_hand/softmax.py").softmax(0) == 1


def test_tangling_again_writes_nothing(softmax, capsys):
    softmax.literate("tangle")
    path = softmax.root / "dotformer/by_hand/softmax.py"
    before = path.stat().st_mtime_ns
    capsys.readouterr()
    assert softmax.literate("tangle") == 0
    assert path.stat().st_mtime_ns == before
    assert capsys.readouterr().out == ""


def test_a_later_chapter_continues_a_module_and_may_use_what_is_there(softmax):
    cells = '''
        # %% tags=["export"] module="by_hand.softmax"
        from dotformer.by_hand.softmax import _private, softmax

        class Cooled:
            """A softmax at a temperature."""

            def __call__(self, scores):
                return softmax(scores), _private()
        '''
    softmax.chapter(
        "05_more", cells, title='A title that is as long as a title can be while it still says "more" ' + "a" * 60
    )
    assert softmax.literate("tangle") == 0
    text = softmax.read("dotformer/by_hand/softmax.py")
    assert text.startswith('"""Tangled from chapters/03_softmax.py and chapters/05_more.py.\n')
    assert "from dotformer" not in text
    assert max(len(line) for line in text.split("\n")) <= 84
    cooled = load(softmax, "by_hand/softmax.py").Cooled
    assert cooled()(0) == (1, None)
    assert inspect.getdoc(cooled).endswith('"A title that is as long as a title can be while it …".')


def test_what_one_chapter_gives_to_two_modules_is_imported_from_one_into_the_other(folder):
    cells = '''
        # %% tags=["export"] module="encoder"
        def encode(tokens):
            """Encoded."""
            return tokens

        # %% tags=["export"] module="pretrained"
        def load(path):
            """Loaded."""
            return encode(path)
        '''
    folder.chapter("08_encoder", cells)
    assert folder.literate("tangle") == 0
    imports = [
        node for node in ast.parse(folder.read("dotformer/pretrained.py")).body if isinstance(node, ast.ImportFrom)
    ]
    assert [ast.unparse(node) for node in imports] == ["from dotformer.encoder import encode"]


def refused(folder, stem: str, fragment: str) -> str:
    """The message with which tangling fails at the line with `fragment`, having written nothing."""
    with pytest.raises(ChapterError) as raised:
        from literate.tangle import tangle

        book = folder.book()
        tangle(book, book.chapters, check=False)
    assert not (folder.root / "dotformer/by_hand/softmax.py").exists()
    place = folder.at(stem, fragment)
    assert str(raised.value).startswith(place)
    return str(raised.value).removeprefix(place).strip()


def test_a_name_that_an_exported_cell_does_not_import_is_refused(softmax):
    softmax.edit("chapters/03_softmax.py", "return np.mean(then(values))", "return math.mean(then(values))")
    assert "Undefined name `math`" in refused(softmax, "03_softmax", "math.mean")


def test_what_only_a_cell_that_is_not_exported_defines_is_refused(softmax):
    softmax.edit("chapters/03_softmax.py", 'print("not exported")', "helper = 1")
    softmax.edit("chapters/03_softmax.py", "return np.mean(then(values))", "return helper")
    assert "Undefined name `helper`" in refused(softmax, "03_softmax", "return helper")


def test_in_one_module_a_name_is_imported_alike(softmax):
    more = '# %% tags=["export"] module="by_hand.softmax"\nimport math as np\n\ndef f():\n    """F."""\n    return np'
    softmax.chapter("05_more", more)
    assert "np is something else already, from chapters/03_softmax.py" in refused(softmax, "05_more", "math as np")


def test_a_module_does_not_import_a_name_that_it_defines(softmax):
    more = '# %% tags=["export"] module="by_hand.softmax"\nfrom scipy.special import softmax\n'
    softmax.chapter("05_more", more)
    assert "softmax is something else already" in refused(softmax, "05_more", "scipy")


def test_a_module_imports_itself_only_plainly(softmax):
    more = '# %% tags=["export"] module="by_hand.softmax"\nfrom dotformer.by_hand.softmax import softmax as s\n'
    softmax.chapter("05_more", more)
    assert "without 'as'" in refused(softmax, "05_more", "softmax as s")


def test_docstrings_stand_in_triple_double_quotes(softmax):
    softmax.edit("chapters/03_softmax.py", '"""Shares of one."""', '"Shares of one."')
    assert "triple double quotes" in refused(softmax, "03_softmax", '"Shares of one."')


def test_check_names_files_that_differ_are_missing_or_surplus(softmax, capsys):
    assert softmax.literate("tangle", "--check") == 1
    assert capsys.readouterr().err == "dotformer/by_hand/softmax.py: missing, run `make tangle`\n"
    softmax.literate("tangle")
    softmax.write("dotformer/__main__.py", "")
    for name in ("command_line/commands", "support/files", "data/corpora"):
        softmax.write(f"dotformer/{name}.py", "")
    assert softmax.literate("tangle", "--check") == 0

    softmax.edit("dotformer/by_hand/softmax.py", "np.exp(scores)", "np.exp(2 * scores)")
    softmax.write("dotformer/by_hand/extra.py", "x = 1\n")
    capsys.readouterr()
    assert softmax.literate("tangle", "--check") == 1
    errors = capsys.readouterr().err
    assert errors.startswith("dotformer/by_hand/softmax.py: not what the chapters say")
    assert "\n    -    return np.exp(2 * scores)" in errors and "\n    +    return np.exp(scores)" in errors
    assert errors.endswith("dotformer/by_hand/extra.py: surplus, no chapter exports it\n")
    assert "2 * scores" in softmax.read("dotformer/by_hand/softmax.py")


def test_a_module_that_no_chapter_exports_any_more_goes_and_one_written_by_hand_stays(softmax, capsys):
    softmax.literate("tangle")
    softmax.write("dotformer/extra.py", "x = 1\n")
    text = softmax.read("chapters/03_softmax.py").replace("by_hand.softmax", "by_hand.shares")
    softmax.write("chapters/03_softmax.py", text)
    assert softmax.literate("tangle") == 1
    output = capsys.readouterr()
    assert "removed dotformer/by_hand/softmax.py" in output.out
    assert output.err.startswith("dotformer/extra.py: surplus")
    assert sorted(path.name for path in (softmax.root / "dotformer").rglob("*.py") if path.stem != "__init__") == [
        "extra.py",
        "shares.py",
    ]


def test_a_chosen_chapter_is_tangled_alone(softmax):
    other = '# %% tags=["export"] module="other"\ndef f():\n    """F."""\n'
    softmax.chapter("05_other", other)
    assert softmax.literate("tangle", "chapters/05_other.py") == 0
    assert (softmax.root / "dotformer/other.py").exists()
    assert not (softmax.root / "dotformer/by_hand/softmax.py").exists()


SCRIPT = """
# %% language="js" tags=["export"] module="engine"
# function twice(x) {
#   return 2 * x; // é
# }

# %% language="js"
# twice(3)

# %% language="js" tags=["hide-input", "export"] module="engine"
# const FOUR = twice(2);
#
# function five() {
#   return FOUR + 1;
# }
"""


def test_cells_of_javascript_become_the_script_of_a_page(folder, capsys):
    folder.chapter("03_softmax", SCRIPT)
    assert folder.literate("tangle") == 0
    assert folder.read("dotformer/page/engine.js") == (
        "// Tangled from chapters/03_softmax.py: edit the chapter, then `make tangle`.\n\n"
        "function twice(x) {\n  return 2 * x; // é\n}\n\n"
        "const FOUR = twice(2);\n\nfunction five() {\n  return FOUR + 1;\n}\n"
    )
    assert folder.literate("tangle", "--check") == 0
    folder.edit("dotformer/page/engine.js", "2 * x", "3 * x")
    assert folder.literate("tangle", "--check") == 1
    assert "dotformer/page/engine.js: not what the chapters say" in capsys.readouterr().err


TAKEN_AWAY = """
# %% file="model.py"
import math

# %%
print("shown")

# %% size tags=["hide-input"] file="model.py"
# a number
x=2


def twice():
    return 2 * x
"""


def test_cells_that_name_a_file_become_it(folder, capsys):
    """First what they define, then what they do when the file is run; `--check` notices an edit."""
    folder.chapter("03_softmax", TAKEN_AWAY)
    assert folder.literate("tangle") == 0
    assert folder.read("book/model.py").split("\n", 1)[1] == (
        '\nimport math\n\n\ndef twice():\n    return 2 * x\n\n\nif __name__ == "__main__":\n    # a number\n    x = 2\n'
    )
    folder.edit("book/model.py", "x = 2", "x = 3")
    assert folder.literate("tangle", "--check") == 1
    assert "book/model.py: not what the chapters say" in capsys.readouterr().err
    folder.chapter("03_softmax", SOFTMAX)
    assert folder.literate("tangle", "--check") == 1
    assert "book/model.py: surplus" in capsys.readouterr().err
