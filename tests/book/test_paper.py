"""The book on paper: nothing lost, nothing that does not fit, and an ePub that readers accept."""

import re
import shutil
import subprocess
import zipfile
from pathlib import PurePosixPath
from urllib.parse import urljoin
from xml.etree import ElementTree

import nbformat
import pytest
from pypdf import PdfReader

from literate.paper import REFERENCE, pages, write_epub, write_pdf
from literate.project import Project
from tests.conftest import ROOT

NOTEBOOKS = sorted((ROOT / "book" / "notebooks").glob("*.ipynb"))
XHTML = "{http://www.w3.org/1999/xhtml}"
CONTENT_WIDTH = 529  # pixels: 140 mm between the margins
CHECKER = "/usr/share/java/epubcheck.jar"


@pytest.fixture(scope="module")
def epub(site, tmp_path_factory):
    """The ePub's path and its files."""
    path = write_epub(list(pages(Project(ROOT), site)), tmp_path_factory.mktemp("epub"))
    with zipfile.ZipFile(path) as archive:
        assert archive.infolist()[0].filename == "mimetype" and archive.infolist()[0].compress_type == 0
        return path, {name: archive.read(name) for name in archive.namelist()}


def quizzes(path):
    return [cell for cell in nbformat.read(path, as_version=4).cells if "quiz" in cell.metadata.get("tags", ())]


def test_every_chapter_is_there_with_its_questions_answers_and_solutions(epub):
    _, files = epub
    for path in NOTEBOOKS:
        root = ElementTree.fromstring(files[f"{path.stem}.xhtml"])
        classes = [element.get("class", "") for element in root.iter()]
        assert classes.count("question") == len(quizzes(path)) > 0
        headings = [
            "".join(element.itertext()) for element in root.iter() if element.tag in (f"{XHTML}h2", f"{XHTML}h3")
        ]
        assert {"Answers to the questions", "Solutions"} <= set(headings)
        [listed] = [
            element
            for section in root.iter(f"{XHTML}section")
            if section.get("class") == "at-the-end" and "Answers" in "".join(section[0].itertext())
            for element in section.findall(f"{XHTML}ol")
        ]
        answers = ["".join(item.itertext()).strip() for item in listed]
        assert len(answers) == len(quizzes(path)) and all(answers)


def test_formulas_are_mathml_and_nothing_needs_a_script(epub):
    _, files = epub
    for name, data in files.items():
        if name.endswith(".xhtml"):
            text = data.decode()
            assert (
                "<script" not in text
                and "\\(" not in text
                and "\\[" not in re.sub(r"<pre.*?</pre>", "", text, flags=re.S)
            )
    assert files["07_learning.xhtml"].count(b"<math") > 50


def test_every_link_and_image_of_the_epub_leads_somewhere(epub):
    _, files = epub
    ids = {
        name: {element.get("id") for element in ElementTree.fromstring(data).iter()}
        for name, data in files.items()
        if name.endswith(".xhtml")
    }
    for name in ids:
        for element in ElementTree.fromstring(files[name]).iter():
            for target in filter(None, (element.get("href"), element.get("src"))):
                if re.match(r"[a-z]+:", target):
                    continue
                path, _, place = urljoin(name, target).partition("#")
                assert path in files, (name, target)
                assert not place or place in ids[path], (name, target)
    assert {PurePosixPath(name).suffix for name in files if name.startswith("images/")} <= {".svg", ".png"}


@pytest.mark.skipif(not (shutil.which("java") and shutil.which("epubcheck")), reason="epubcheck is not installed")
def test_epubcheck_finds_nothing(epub):
    done = subprocess.run(["java", "-jar", CHECKER, epub[0]], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def printed(site, tmp_path_factory):
    """The PDF, and the folder of what was set; a formula or table that does not fit would have been an error."""
    folder = tmp_path_factory.mktemp("paper")
    return PdfReader(write_pdf(list(pages(Project(ROOT), site)), folder)), folder / "typst"


def test_the_contents_give_the_sheet_on_which_each_page_begins(printed):
    sheets = printed[0].pages
    listed = re.findall(r"(\d+\. [^.?]*\??|[A-Z]\w+)\s?[. ]{4,}(\d+)", sheets[1].extract_text())
    assert len(listed) == len(NOTEBOOKS) + len(REFERENCE)
    for title, number in listed:
        assert " ".join(sheets[int(number) - 1].extract_text().split()).startswith(title)


def test_every_question_is_printed_and_all_code(printed):
    for path in NOTEBOOKS:
        written = (printed[1] / f"{path.stem}.typ").read_text()
        assert written.count("#question[\n#strong[Question ") == len(quizzes(path))
        assert "\n=== Answers to the questions\n" in written and "\n=== Solutions\n" in written
        code = "".join(re.findall(r"^```python\n(.*?)^```$", written, re.MULTILINE | re.DOTALL))
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "code" and "export" in cell.metadata.get("tags", ()):
                assert cell.source in code


def test_pictures_are_drawings_that_say_what_they_show(printed):
    written = "".join(path.read_text() for path in printed[1].glob("*.typ"))
    pictures = re.findall(r'#picture\("(.*?)", "(.*?)"\)', written)
    assert len(pictures) == written.count("#picture(") > 90
    assert all(name.endswith(".svg") and alt for name, alt in pictures)


def test_code_can_be_broken_where_it_does_not_fit(printed):
    for path in printed[1].glob("[0-9]*.typ"):
        for code in re.findall(r"^```(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL):
            assert max(map(len, code.split())) <= 85, path
