"""The rendered book: built from nothing with warnings as errors, whole, light, and loading nothing from elsewhere."""

import pytest
import yaml

from tests.book import site_gates
from tests.conftest import FIXTURES, build_book

BUTTONS = [".dropdown-launch-buttons", ".btn-source-repository-button"]


def test_the_clean_build_has_no_warning(build):
    assert build.returncode == 0, build.stdout[-3000:]
    assert "WARNING" not in build.stdout


@pytest.mark.parametrize(
    "gate",
    [
        site_gates.broken_links,
        site_gates.loaded_from_elsewhere,
        site_gates.repeated_ids,
        site_gates.images_without_alt,
        site_gates.unset_formulas,
        site_gates.heavy_pages,
    ],
    ids=lambda gate: gate.__name__,
)
def test_site(gate, site):
    assert gate(site) == []


def test_names_in_code_cells_link_to_the_api_page(site):
    page = site_gates.parse(site / "book/notebooks/03_softmax.html")
    links = {link["href"] for link in page.select("a.sphinx-codeautolink-a")}
    assert any(link.endswith("/api.html#dotformer.by_hand.similarity.similarity_matrix") for link in links)


@pytest.mark.parametrize("button", BUTTONS)
def test_buttons_follow_the_repository(site, root, button):
    address = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))["repository"]["url"]
    page = site_gates.parse(site / "book/notebooks/03_softmax.html")
    assert bool(page.select(button)) == bool(address)


def test_a_book_with_an_address_has_the_buttons(tmp_path):
    result = build_book(FIXTURES / "with_address", tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    page = site_gates.parse(tmp_path / "_build/html/index.html")
    assert [button for button in BUTTONS if not page.select(button)] == []
