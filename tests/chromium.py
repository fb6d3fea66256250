"""Finds a Chromium for the browser tests: the system's if there is one, else Playwright's own, else skips the test."""

import shutil

import pytest
from playwright.sync_api import Browser, Error, Playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def launch(playwright: Playwright) -> Browser:
    """Return a running headless browser, or skip the test and say what is missing."""
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    try:
        return playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
    except Error as error:
        if path:
            raise
        reason = f"no Chromium here: none of {', '.join(NAMES)} on the PATH, and Playwright has none of its own"
        pytest.skip(f"{reason} ({str(error).splitlines()[0]})")
