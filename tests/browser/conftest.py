"""The rendered book served on localhost, under the policy that the README names, and a tab to open it in."""

import functools
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser, Page

from tests.conftest import ROOT

OWN = ("http://127.0.0.1:", "http://figures.test/", "file://", "data:", "blob:")


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files and says nothing about it."""

    def log_message(self, *arguments) -> None:
        pass

    def end_headers(self) -> None:
        self.send_header("Content-Security-Policy", policy())
        super().end_headers()


def policy() -> str:
    """The Content-Security-Policy that the README names."""
    return re.search(r"```text\n(default-src.*?)\n```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[1]


@pytest.fixture(scope="session")
def address(site) -> str:
    """Where the rendered book is served."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(QuietHandler, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def noise_of(page: Page) -> list[str]:
    """A list that fills with a tab's errors, and with what it asks another host for."""
    noise = []

    def said(message) -> None:
        # of a file that is not there, the response tells more
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            noise.append(message.text)

    def answered(response) -> None:
        # a browser asks for this one by itself where a page names no icon, as the one does that leads to the book
        if response.status >= 400 and not response.url.endswith("/favicon.ico"):
            noise.append(response.url)

    page.on("console", said)
    page.on("pageerror", lambda error: noise.append(str(error)))
    page.on("response", answered)
    page.on("request", lambda request: None if request.url.startswith(OWN) else noise.append(request.url))
    return noise


@contextmanager
def quiet_tab(browser: Browser, **options) -> Iterator[Page]:
    """A fresh tab, as a first visitor has it, which must stay quiet."""
    context = browser.new_context(**options)
    page = context.new_page()
    noise = noise_of(page)
    yield page
    context.close()
    assert noise == []


@pytest.fixture
def page(browser):
    """A tab on a wide screen with a light theme."""
    with quiet_tab(browser, viewport={"width": 1280, "height": 900}, color_scheme="light") as page:
        yield page
