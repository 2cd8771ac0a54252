"""A real browser for tests: the Chromium of the system, through Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
"""Of its own accord it must ask no one for anything."""


@contextmanager
def start_browser() -> Generator[Browser]:
    """A browser without a window; without one, the test does not run and says so."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next((path for name in NAMES if (path := shutil.which(name)) is not None), None)
    if found is None:
        pytest.skip(f"there is no browser: none of {', '.join(NAMES)}")
    with playwright.sync_playwright() as runs:
        browser = runs.chromium.launch(executable_path=found, args=QUIET)
        yield browser
        browser.close()


class Tab:
    """A page in a browser, with all that it asked for and complained of."""

    def __init__(self, browser: Browser, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        shown = {"width": width, "height": height}
        self.context = browser.new_context(viewport=shown, color_scheme=scheme, reduced_motion="reduce")  # pyright: ignore
        self.page: Page = self.context.new_page()
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def open(self, address: str) -> Page:
        """Open an address and wait until a query is shown."""
        self.page.goto(address)
        self.page.wait_for_selector("#query", timeout=30_000)
        return self.page

    def check(self, address: str) -> None:
        """No one else was asked for anything, and nothing went wrong."""
        hosts = {urlsplit(url).netloc for url in self.asked if not url.startswith("data:")}
        assert hosts == {urlsplit(address).netloc}
        assert self.complaints == []


def shows(page: Page, place: str, text: str) -> None:
    """Wait until a text stands at a place."""
    from playwright.sync_api import expect

    expect(page.locator(place)).to_have_text(text, timeout=30_000)
