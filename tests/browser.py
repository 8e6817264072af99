"""A headless Chromium for tests of pages: Playwright drives the one that is installed, and downloads none.

It is found by the environment variable ``CHROMIUM`` or on the path; tests are skipped where there is none.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE = 60  # seconds for one answer: a busy machine starts Chromium slowly


def find() -> str | None:
    """Return the path of Chromium, None if there is none; a wrong ``CHROMIUM`` is an error."""
    if wanted := os.environ.get("CHROMIUM"):
        path = shutil.which(wanted)
        if path is None:
            raise FileNotFoundError(f"The environment variable CHROMIUM is {wanted!r}, which is not a program.")
        return path
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def start() -> Iterator["Browser"]:
    """Start Chromium and end it afterwards; skip the test if it is not installed."""
    chromium = find()
    if chromium is None:
        pytest.skip("no Chromium: install it (Debian: apt-get install chromium), or say where it is with CHROMIUM=…")
    # Imported late: modules whose other tests need no browser can do without Playwright.
    sync_playwright = pytest.importorskip("playwright.sync_api").sync_playwright
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, timeout=1000 * PATIENCE)
        try:
            yield browser
        finally:
            browser.close()


def show(browser: "Browser", path: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> "Page":
    """Open a file in a window of this size, with or without a wish for dark pages; it remembers no other page."""
    page = browser.new_page(
        viewport={"width": width, "height": height},
        is_mobile=width < 600,
        color_scheme="dark" if dark else "light",
    )
    page.set_default_timeout(1000 * PATIENCE)
    page.goto(path.resolve().as_uri())
    return page


def errors(page: "Page") -> list[str]:
    """Return what went to the console as an error, uncaught exceptions and refused requests included."""
    page.evaluate("new Promise(done => setTimeout(done))")  # what is on its way arrives first
    told = [message.text for message in page.console_messages() if message.type in ("error", "assert")]
    return [*told, *(str(error) for error in page.page_errors())]
