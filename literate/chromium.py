"""Finds a Chromium and starts it without a window: for printing, and for the browser tests."""

import shutil

from playwright.sync_api import Browser, Error, Playwright

from literate.project import ProjectError

# The one that has no windows comes first: it takes a quarter less time than the whole browser.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--font-render-hinting=none"]


def launched(playwright: Playwright) -> Browser:
    """A running browser: the first on the PATH, else an installed Chrome, else Playwright's own.

    Raises ProjectError where there is none, and where the one on the PATH does not start.
    """
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    for way in [{"executable_path": path}] if path else [{"channel": "chrome"}, {}]:
        try:
            return playwright.chromium.launch(args=ARGUMENTS, **way)
        except Error as error:
            failure = str(error)
    if path:
        raise ProjectError(f"{path} does not start: {failure}")
    reason = failure.splitlines()[0]
    raise ProjectError(
        f"no Chromium here: none of {', '.join(NAMES)} on the PATH, no Chrome, none of Playwright's ({reason})"
    )
