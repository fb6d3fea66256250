"""A Chromium for the browser tests."""

import os
import shutil

import pytest
from playwright.sync_api import Browser, Error, Playwright

# The one that has no windows comes first: it takes a quarter less time than the whole browser.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--font-render-hinting=none"]


def launch(playwright: Playwright) -> Browser:
    """A running browser without a window: the first on the PATH, else an installed Chrome, else Playwright's own.

    Without one, the test is skipped, or fails where REQUIRE_BROWSER is set or the one on the PATH does not start.
    """
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    for way in [{"executable_path": path}] if path else [{"channel": "chrome"}, {}]:
        try:
            return playwright.chromium.launch(args=ARGUMENTS, **way)
        except Error as error:
            failure = str(error)
    if path:
        pytest.fail(f"{path} does not start: {failure}", pytrace=False)
    said = f"no Chromium here: none of {', '.join(NAMES)} on the PATH, no Chrome, none of Playwright's ({failure})"
    if os.environ.get("REQUIRE_BROWSER"):
        pytest.fail(said, pytrace=False)
    pytest.skip(said)
