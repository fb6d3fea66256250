"""Which browser is started, and what becomes of the tests where there is none."""

from types import SimpleNamespace

import pytest
from playwright.sync_api import Error

from tests import chromium


@pytest.fixture
def tried(monkeypatch):
    """The ways in which a browser is looked for, on a machine that has none."""
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.delenv("REQUIRE_BROWSER", raising=False)
    return []


def nothing_installed(tried: list) -> SimpleNamespace:
    """A Playwright that finds no browser, and notes where it looked."""

    def launch(args, **way):
        tried.append(way)
        raise Error("Executable doesn't exist")

    return SimpleNamespace(chromium=SimpleNamespace(launch=launch))


def test_chrome_comes_before_playwrights_own_and_without_both_the_test_is_skipped(tried):
    with pytest.raises(pytest.skip.Exception, match="no Chromium here"):
        chromium.launch(nothing_installed(tried))
    assert tried == [{"channel": "chrome"}, {}]


def test_where_a_browser_is_required_none_is_a_failure(tried, monkeypatch):
    monkeypatch.setenv("REQUIRE_BROWSER", "1")
    with pytest.raises(pytest.fail.Exception, match="no Chromium here"):
        chromium.launch(nothing_installed(tried))


def test_a_browser_on_the_path_that_does_not_start_is_a_failure(tried, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(pytest.fail.Exception, match="/usr/bin/chromium-headless-shell does not start"):
        chromium.launch(nothing_installed(tried))
    assert tried == [{"executable_path": "/usr/bin/chromium-headless-shell"}]
