"""The rendered book: built from nothing with warnings as errors, whole, light, and loading nothing from elsewhere."""

from importlib import import_module
from types import SimpleNamespace

import pytest
import yaml

from tests.book import site_gates


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


def test_buttons_follow_the_repository(site, root):
    address = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))["repository"]["url"]
    page = site_gates.parse(site / "book/notebooks/03_softmax.html")
    assert bool(page.select(".dropdown-launch-buttons")) == bool(address)
    assert bool(page.select(".btn-source-repository-button")) == bool(address)


@pytest.mark.parametrize("address", ["", "https://example.org/someone/book"])
def test_an_address_brings_the_buttons(root, monkeypatch, address):
    monkeypatch.syspath_prepend(root / "book/_ext")
    options = {"repository_url": address, "launch_buttons": {"colab_url": "https://example.org"}}
    import_module("press").set_buttons(None, SimpleNamespace(html_theme_options=options))
    assert bool(options["launch_buttons"]) == bool(address)
    assert options.get("use_repository_button", False) == options.get("use_issues_button", False) == bool(address)
