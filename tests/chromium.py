"""A Chromium for the browser tests."""

import os

import pytest
from playwright.sync_api import Browser, Playwright

from literate.chromium import launched
from literate.project import ProjectError


def launch(playwright: Playwright) -> Browser:
    """A running browser; without one, skip the test, or fail it where REQUIRE_BROWSER is set or one does not start."""
    try:
        return launched(playwright)
    except ProjectError as error:
        if os.environ.get("REQUIRE_BROWSER") or not str(error).startswith("no Chromium"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
