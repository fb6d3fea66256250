"""The rendered book on paper: `python -m literate.paper pdf` and `... epub`, after it has been rendered.

Both are made from the pages in `_build/html`. What moves stands still, folded code is left out, quizzes become
questions with their answers at the end of the chapter, where the solutions of the exercises are too. Pandoc writes the
pages for Typst, which sets the PDF; the ePub has its formulas as MathML. Written to `_build/paper`.
"""

import html
import mimetypes
import re
import sys
import uuid
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_lowercase
from urllib.parse import unquote

import matplotlib
import pypandoc
import typst
import yaml
from bs4 import BeautifulSoup, Tag
from latex2mathml.converter import convert

from literate.project import Project, ProjectError, read_text

HERE = Path(__file__).with_name("paper")
TITLE = "From Dot Product to Transformer"
FOLDED = "tag_plot", "tag_proof", "tag_check", "tag_hide-input"  # cells whose code is folded on the page
REFERENCE = ("notation", "glossary", "misconceptions", "bibliography")  # of what stands behind the chapters
SVG_NAMES = (
    "viewBox",
    "preserveAspectRatio",
    "clipPath",
    "linearGradient",
    "textLength",
    "lengthAdjust",
    "markerWidth",
)
SVG_NAMES += ("markerHeight", "refX", "refY", "gradientUnits", "gradientTransform", "clipPathUnits", "patternUnits")


@dataclass
class Page:
    """One page of the book as paper has it; `stem` is also what its ids begin with."""

    stem: str
    title: str
    part: str
    body: Tag
    images: dict[str, Path] = field(default_factory=dict)  # as the body names them


def pages(project: Project, root: Path) -> Iterator[Page]:
    """The pages of the book rendered in `root`, in their order. Raises ProjectError where one is missing."""
    toc = yaml.safe_load((project.root / "_toc.yml").read_text(encoding="utf-8"))
    listed = [(part["caption"], entry["file"]) for part in toc["parts"] for entry in part["chapters"]]
    listed = [(part, file) for part, file in listed if "/notebooks/" in file or file.split("/")[-1] in REFERENCE]
    for part, file in listed:
        path = root / f"{file}.html"
        text = read_text(path)
        if text is None:
            raise ProjectError(f"{path} is missing: make book")
        soup = BeautifulSoup(text, "html.parser")
        body = soup.select_one("article.bd-article")
        stem = file.split("/")[-1]
        title = body.select_one("h1").get_text().removesuffix("#").strip()
        page = Page(stem, title, part, body)
        stand_still(page, soup)
        link(page, path, root, {entry.split("/")[-1] for _, entry in listed})
        yield page


def stand_still(page: Page, soup: BeautifulSoup) -> None:
    """Take out what a page does and paper does not, and put answers and solutions at the end."""
    body = page.body
    for gone in body.select(
        "script, style, .headerlink, .copybtn, .movable-controls, .prev-next-footer, .cq-hint, nav, [hidden]"
    ):
        gone.decompose()
    for cell in body.select("div.cell"):
        classes = set(cell.get("class", ()))
        if classes & {"tag_check", "tag_proof"}:
            cell.decompose()
        elif classes & {"tag_plot", "tag_hide-input"} and "tag_export" not in classes:
            for code in cell.select("details.hide, .cell_input"):
                code.decompose()
            if not cell.get_text(strip=True) and not cell.select_one("img, svg"):
                cell.decompose()
    answers, solutions = soup.new_tag("ol"), []
    for number, form in enumerate(body.select("form.classroom-quiz"), 1):
        answers.append(as_question(soup, form, number))
    for number, cell in enumerate(body.select("div.cell.tag_solution"), 1):
        code = cell.select_one("div[class^='highlight-']")
        heading = soup.new_tag("h3")
        heading.string = f"Exercise {number}"
        if code:
            without_verdict(code)
            solutions += [heading, code.extract()]
        cell.decompose()
    for details in body.select("details"):
        for summary in details.select("summary"):
            summary.decompose()
        details.name, details.attrs = "div", {}
    for title, parts in (("Answers to the questions", [answers]), ("Solutions", solutions)):
        if parts and any(part.contents for part in parts):
            section = soup.new_tag("section", attrs={"class": "at-the-end"})
            heading = soup.new_tag("h2")
            heading.string = title
            section.extend([heading, *parts])
            body.append(section)


def without_verdict(code: Tag) -> None:
    """Leave out the lines behind a solution that hand it to its check, which paper does not have."""
    pre = code.select_one("pre")
    text = pre.get_text()
    if "\nverdict = " in text:
        pre.string = text.partition("\nverdict = ")[0].rstrip() + "\n"


def as_question(soup: BeautifulSoup, form: Tag, number: int) -> Tag:
    """Turn a quiz into a question with its options, in place; returns its answer for the end."""
    question = soup.new_tag("div", attrs={"class": "question"})
    head = soup.new_tag("p")
    head.append(soup.new_tag("strong"))
    head.strong.string = f"Question {number}. "
    head.extend(list(form.select_one("legend").contents))
    question.append(head)
    options = form.select(".cq-text")
    if options:
        listed = soup.new_tag("ol", attrs={"class": "options", "type": "a"})
        for option in options:
            item = soup.new_tag("li")
            item.extend(list(option.contents))
            listed.append(item)
        question.append(listed)
    answer = soup.new_tag("li")
    found = form.select(".cq-answers li")
    shown = [
        (letter, one)
        for letter, one in zip(ascii_lowercase, found, strict=False)
        if one.get("data-verdict") == "right" or not options
    ]
    for letter, one in shown:
        if one.get("data-verdict") == "right":
            line = soup.new_tag("p")
            if options:
                line.append(f"({letter}) ")
            for part in (".cq-shown", ".cq-why"):
                line.extend([*list(one.select_one(part).contents), ". " if part == ".cq-shown" else " "])
            answer.append(line)
    form.replace_with(question)
    return answer


def link(page: Page, path: Path, root: Path, stems: set[str]) -> None:
    """Let ids begin with the page's, links lead to them, and images be known by one name each."""
    for marked in page.body.select("[id]"):
        marked["id"] = f"{page.stem}--{marked['id']}"
    page.body["id"] = page.stem
    for anchor in page.body.select("a[href]"):
        target, _, place = anchor["href"].partition("#")
        if re.match(r"\w+:", target):
            continue
        stem = Path(target).stem if target else page.stem
        if stem in stems:
            anchor["href"] = f"#{stem}--{place}" if place else f"#{stem}"
        else:
            anchor.unwrap()  # a page that paper does not have
    for image in page.body.select("img[src]"):
        source = (path.parent / unquote(image["src"])).resolve()
        name = source.relative_to(root).as_posix().replace("/", "-").lstrip("_")
        page.images[name] = source
        image["src"] = name
    for tag in page.body.find_all(True):  # HTML knows no capitals in the names of SVG
        for name in SVG_NAMES:
            if name.lower() in tag.attrs and name.lower() != name:
                tag[name] = tag.attrs.pop(name.lower())
            if tag.name == name.lower():
                tag.name = name


# What Pandoc writes wrongly, and how else to say it: the size of a bracket, spaces, 65{,}536.
TEX = (
    (r"\\[bB]igg?l(?![a-z])", r"\\left"),
    (r"\\[bB]igg?r(?![a-z])", r"\\right"),
    (r"\\;", r"\\ "),
    (r"\\!", ""),
    (r"\d+(?:\{,\}\d{3})+", lambda found: rf"\text{{{found[0].replace('{,}', ',')}}}"),
)
ON_PAGES = re.compile(r"var\(--[\w-]+, color-mix\(in srgb, (#\w+) [^)]*\)\)")  # a colour that follows the page's
HTML = "html-auto_identifiers+tex_math_single_backslash"


def write_pdf(listed: list[Page], folder: Path) -> Path:
    """Set the book as a PDF in `folder`; what Typst reads stays in its folder `typst`."""
    path, folder = folder / "from-dot-product-to-transformer.pdf", folder / "typst"
    soup = BeautifulSoup("", "html.parser")
    (folder / "images").mkdir(parents=True, exist_ok=True)
    lines, part = [f'#import "style.typ": *\n#show: book.with("{TITLE}")'], None
    for page in listed:
        if page.part != part:
            lines.append(f"#heading(level: 1)[{page.part}]")
            part = page.part
        for_pandoc(soup, page, folder)
        options = [f"--lua-filter={HERE / 'typst.lua'}", "--wrap=none", "--shift-heading-level-by=1"]
        text = pypandoc.convert_text(str(page.body), "typst", HTML, extra_args=options)
        (folder / f"{page.stem}.typ").write_text(f'#import "style.typ": *\n{text}', encoding="utf-8")
        lines.append(f'#include "{page.stem}.typ"')
    (folder / "style.typ").write_bytes((HERE / "book.typ").read_bytes())
    (folder / "book.typ").write_text("\n".join(lines), encoding="utf-8")
    fonts = Path(matplotlib.get_data_path(), "fonts", "ttf")  # those of the figures
    typst.compile(folder / "book.typ", output=path, root=folder, font_paths=[fonts], ignore_system_fonts=True)
    return path


def for_pandoc(soup: BeautifulSoup, page: Page, folder: Path) -> None:
    """Write a page's pictures to files, say what its code is, and have its ids where Pandoc keeps them."""
    body = page.body
    for image in body.select("img[src]"):
        (folder / "images" / image["src"]).write_bytes(page.images[image["src"]].read_bytes())
        image["src"] = f"images/{image['src']}"
    for n, drawing in enumerate(body.select("svg")):
        name = f"images/{page.stem}-{n}.svg"
        drawing["xmlns"] = "http://www.w3.org/2000/svg"
        (folder / name).write_text(ON_PAGES.sub(r"\1", str(drawing)), encoding="utf-8")
        drawing.replace_with(soup.new_tag("img", src=name, alt=drawing.select_one("title").get_text()))
    for formula in body.select(".math"):
        text = formula.get_text()
        for wrong, right in TEX:
            text = re.sub(wrong, right, text)
        formula.string = text
    for pre in body.select("pre"):
        kinds = {name for parent in pre.parents for name in parent.get("class", ())}
        kind = {"highlight-ipython3": "python", "highlight-python": "python", "highlight-bash": "bash"}
        pre["class"] = next((language for name, language in kind.items() if name in kinds), "output")
        pre.string = pre.get_text()
    for section in body.select("section[id]"):
        heading = section.find(("h1", "h2", "h3", "h4"))
        heading["id"] = page.stem if heading.name == "h1" else section["id"]
    for term in body.select("dt[id]"):
        inside = soup.new_tag("span", id=term["id"])
        inside.extend(list(term.contents))
        term.append(inside)
    for marked in body.select("[id]"):
        if marked.name not in ("h1", "h2", "h3", "h4", "span"):
            del marked["id"]


def as_mathml(soup: BeautifulSoup, body: Tag) -> None:
    """Turn each formula into MathML."""
    for formula in body.select(".math"):
        block = formula.name == "div"
        text = (
            formula.get_text().strip().removeprefix("\\(").removeprefix("\\[").removesuffix("\\)").removesuffix("\\]")
        )
        made = BeautifulSoup(convert(text.strip(), display="block" if block else "inline"), "html.parser")
        formula.clear()
        formula.append(made.math)


CONTAINER = """<?xml version="1.0" encoding="utf-8"?>
<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container">
<rootfiles><rootfile full-path="book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>
"""


def xhtml(title: str, body: str) -> str:
    """A page of an ePub."""
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE html>\n<html xmlns="http://www.w3.org/1999/xhtml"'
        f' xmlns:epub="http://www.idpf.org/2007/ops" lang="en"><head><title>{html.escape(title)}</title>'
        f'<link rel="stylesheet" type="text/css" href="book.css"/></head><body>{body}</body></html>\n'
    )


def write_epub(listed: list[Page], folder: Path) -> Path:
    """Pack the book as an ePub 3: a file a chapter, with its images."""
    soup = BeautifulSoup("", "html.parser")
    files: dict[str, bytes] = {"book.css": (HERE / "epub.css").read_bytes()}
    mathematical = set()
    where = {page.stem: f"{page.stem}.xhtml" for page in listed}
    for page in listed:
        as_mathml(soup, page.body)
        if page.body.find("math"):
            mathematical.add(page.stem)
        for anchor in page.body.select("a[href^='#']"):
            stem = anchor["href"][1:].partition("--")[0]
            anchor["href"] = where[stem] + (anchor["href"] if "--" in anchor["href"] else "")
        clean(page.body)
        for name, path in page.images.items():
            data = path.read_bytes()
            if name.endswith(".svg"):  # which may not name a DTD, nor have a path without points, such as a space's
                data = re.sub(rb"<!DOCTYPE[^>]*>", b"", data)
                data = re.sub(rb"<path(?![^>]*\sd=)", b'<path d="M 0 0"', data)
            files[f"images/{name}"] = data
        for image in page.body.select("img[src]"):
            image["src"] = f"images/{image['src']}"
        files[where[page.stem]] = xhtml(page.title, page.body.decode(formatter="minimal")).encode()
    drop_dead_links(listed, files, where)
    entries = "".join(f'<li><a href="{where[p.stem]}">{html.escape(p.title)}</a></li>' for p in listed)
    files["nav.xhtml"] = xhtml(TITLE, f'<nav epub:type="toc"><h1>{TITLE}</h1><ol>{entries}</ol></nav>').encode()
    files["book.opf"] = package(listed, files, mathematical).encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "from-dot-product-to-transformer.epub"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("mimetype"), "application/epub+zip", zipfile.ZIP_STORED)
        archive.writestr("META-INF/container.xml", CONTAINER)
        for name, data in files.items():
            archive.writestr(name, data)
    return path


NOT_IN_EPUB = ("tabindex", "novalidate", "inputmode", "target", "rel", "role", "method", "scope")


def clean(body: Tag) -> None:
    """Take out what XHTML in an ePub may not have."""
    body.name = "section"
    for tag in body.find_all(True):
        for name in list(tag.attrs):
            if name.startswith(("data-", "on", "aria-")) or name in NOT_IN_EPUB:
                del tag[name]
        if tag.name in ("label", "output", "input", "button"):
            tag.unwrap() if tag.contents else tag.decompose()


def drop_dead_links(listed: list[Page], files: dict[str, bytes], where: dict[str, str]) -> None:
    """Unwrap links to places that paper does not have."""
    ids = {where[page.stem]: {tag["id"] for tag in page.body.find_all(id=True)} | {page.stem} for page in listed}
    for page in listed:
        for anchor in page.body.select("a[href]"):
            file, _, place = anchor["href"].partition("#")
            if file in ids and place and place not in ids[file]:
                anchor.unwrap()
        files[where[page.stem]] = xhtml(page.title, page.body.decode(formatter="minimal")).encode()


def package(listed: list[Page], files: dict[str, bytes], mathematical: set[str]) -> str:
    """The list of an ePub's files, and the order in which its pages are read."""
    items, spine = [], []
    for n, name in enumerate(files):
        kind = "application/xhtml+xml" if name.endswith(".xhtml") else mimetypes.guess_type(name)[0]
        stem = name.removesuffix(".xhtml")
        has = ["nav"] * (name == "nav.xhtml") + ["mathml"] * (stem in mathematical)
        has += ["svg"] * (name.endswith(".xhtml") and b"<svg" in files[name])
        extra = f' properties="{" ".join(has)}"' if has else ""
        items.append(f'<item id="f{n}" href="{name}" media-type="{kind}"{extra}/>')
        if name in (f"{page.stem}.xhtml" for page in listed):
            spine.append(f'<itemref idref="f{n}"/>')
    identifier = uuid.uuid5(uuid.NAMESPACE_DNS, TITLE)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<package xmlns="http://www.idpf.org/2007/opf" version="3.0"'
        ' unique-identifier="id"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/">'
        f'<dc:identifier id="id">urn:uuid:{identifier}</dc:identifier><dc:title>{TITLE}</dc:title>'
        f"<dc:creator>The authors of {TITLE}</dc:creator>"
        '<dc:language>en</dc:language><dc:rights>CC BY 4.0</dc:rights><meta property="dcterms:modified">'
        f"2026-01-01T00:00:00Z</meta></metadata><manifest>{''.join(items)}</manifest>"
        f"<spine>{''.join(spine)}</spine></package>\n"
    )


if __name__ == "__main__":
    if sys.argv[1:] not in (["pdf"], ["epub"]):
        sys.exit("usage: python -m literate.paper pdf|epub")
    try:
        here = Project(Path.cwd().resolve())
        build = here.root / "_build"
        listed = list(pages(here, build / "html"))
        if sys.argv[1] == "pdf":
            print(write_pdf(listed, build / "paper"))
        else:
            print(write_epub(listed, build / "paper"))
    except ProjectError as problem:
        sys.exit(f"literate.paper: {problem}")
