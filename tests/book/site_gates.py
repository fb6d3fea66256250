"""What the rendered book must hold. Each gate takes the folder of the site and returns its problems as sentences."""

import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup, Tag

MAX_PAGE_BYTES = 1_000_000
UNSET = re.compile(r"\$|\\(?:[td]?frac|text|sqrt|ln|cdot|top|partial)(?![a-z])")
NO_SENTENCES = ["code", "pre", "script", "style", "math", "svg"]
LOADED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src"}


@lru_cache(maxsize=256)
def parse(path: Path) -> BeautifulSoup:
    """A page, parsed once."""
    return BeautifulSoup(path.read_bytes(), "html.parser")


def pages(site: Path) -> list[Path]:
    """The pages of the site, without what themes and libraries bring."""
    return sorted(path for path in site.rglob("*.html") if "_static" not in path.relative_to(site).parts)


def references(page: Path) -> Iterator[tuple[Tag, str]]:
    """Every element of a page that names an address, with the address."""
    for element in parse(page).find_all(["a", *LOADED]):
        address = element.get("href" if element.name == "a" else LOADED[element.name])
        if address:
            yield element, str(address)


def local_target(page: Path, address: str) -> Path | None:
    """The file that an address on a page means; None for another host, mail and data."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return None
    return (page.parent / unquote(parts.path)).resolve() if parts.path else page.resolve()


@lru_cache(maxsize=256)
def anchors(page: Path) -> set[str]:
    """What a #fragment may name on a page."""
    soup = parse(page)
    return {"", "top"} | {str(element["id"]) for element in soup.find_all(id=True)}


def broken_links(site: Path) -> list[str]:
    """Links, images, scripts and styles inside the site that lead nowhere."""
    problems = []
    for page in pages(site):
        where = page.relative_to(site).as_posix()
        for _, address in references(page):
            target = local_target(page, address)
            if target is None:
                continue
            target = target / "index.html" if target.is_dir() else target
            fragment = unquote(urlsplit(address).fragment)
            if not target.is_file():
                problems.append(f"{where}: {address} leads to no file")
            elif target.suffix == ".html" and fragment not in anchors(target):
                problems.append(f"{where}: {address} leads to no place on its page")
    return problems


def loaded_from_elsewhere(site: Path) -> list[str]:
    """Images, scripts and styles that a page loads from another host."""
    problems = []
    for page in pages(site):
        for element, address in references(page):
            loads = element.name in LOADED and "canonical" not in element.get("rel", ())
            if loads and local_target(page, address) is None and urlsplit(address).scheme != "data":
                problems.append(f"{page.relative_to(site).as_posix()}: loads {address}")
    return problems


def repeated_ids(site: Path) -> list[str]:
    """Element ids that occur twice on one page."""
    problems = []
    for page in pages(site):
        counts = Counter(str(element["id"]) for element in parse(page).find_all(id=True))
        problems += [
            f"{page.relative_to(site).as_posix()}: id {name} occurs twice" for name, n in counts.items() if n > 1
        ]
    return problems


def images_without_alt(site: Path) -> list[str]:
    """Images in the text of a page that a screen reader cannot name."""
    return [
        f"{page.relative_to(site).as_posix()}: {image.get('src')} has no alt text"
        for page in pages(site)
        for image in parse(page).select("article img")
        if not str(image.get("alt", "")).strip()
    ]


def unset_formulas(site: Path) -> list[str]:
    """Formulas that stayed text: a dollar sign, or a command of TeX, in the sentences of a page."""
    problems = []
    for page in pages(site):
        for text in (parse(page).article or parse(page)).find_all(string=UNSET):
            if not text.find_parent(NO_SENTENCES) and not text.find_parent(class_="math"):
                problems.append(f"{page.relative_to(site).as_posix()}: {text.strip()[:80]!r} is no formula")
    return problems


def page_weight(page: Path) -> int:
    """The bytes of a page and its images, without the assets that all pages share."""
    images = {local_target(page, address) for element, address in references(page) if element.name in ("img", "source")}
    own = [image for image in images if image and image.is_file() and "_static" not in image.parts]
    return page.stat().st_size + sum(image.stat().st_size for image in own)


def heavy_pages(site: Path) -> list[str]:
    """Pages that are too much for a slow connection."""
    return [
        f"{page.relative_to(site).as_posix()}: {page_weight(page):,} bytes"
        for page in pages(site)
        if page_weight(page) >= MAX_PAGE_BYTES
    ]
