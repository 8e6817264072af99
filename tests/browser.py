"""A headless Chromium for tests of pages, driven over a pipe: nothing but Chromium itself has to be installed.

It is found by the environment variable ``CHROMIUM`` or on the path; tests are skipped where there is none. Messages
are those of the Chrome DevTools Protocol: JSON with a NUL behind each, to file descriptor 3 and from 4.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE = 60  # seconds for one answer: a busy machine starts Chromium slowly
FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",  # it refuses to start as root otherwise, and opens only pages of our own
    "--disable-gpu",
    "--disable-dev-shm-usage",  # containers have a small /dev/shm
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",  # so that a width of 390 is 390, as on a phone
)


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
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(chromium, profile)
        try:
            yield browser
        finally:
            browser.close()


class Browser:
    """A running Chromium."""

    def __init__(self, chromium: str, profile: str) -> None:
        ours, theirs = os.pipe(), os.pipe()
        # High numbers: a redirection to 3 or 4 must not close the other end that is to become 4.
        source, sink = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (ours[0], theirs[1]))
        command = ["bash", "-c", f'exec "$@" 3<&{source} 4>&{sink}', "bash", chromium, *FLAGS]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}"],
            pass_fds=(source, sink),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (source, sink, ours[0], theirs[1]):
            os.close(end)
        self._to, self._from = ours[1], theirs[0]
        self._rest = b""
        self._last = 0
        self.events: list[dict] = []

    def call(self, method: str, session: str | None = None, **parameters) -> dict:
        """Send a command and return its answer; events that arrive before it are kept."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        while (answer := self._receive()).get("id") != self._last:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def wait_for(self, method: str, session: str) -> None:
        """Wait for an event that has not been seen yet."""
        while not any(e.get("method") == method and e.get("sessionId") == session for e in self.events):
            self.events.append(self._receive())

    def _receive(self) -> dict:
        """Return the next message."""
        limit = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, limit - time.monotonic()))
            if not ready:
                raise TimeoutError(f"Chromium did not answer within {PATIENCE} seconds.")
            data = os.read(self._from, 1 << 16)
            if not data:
                raise RuntimeError("Chromium has ended by itself.")
            self._rest += data
        line, self._rest = self._rest.split(b"\0", 1)
        return json.loads(line)

    def open(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> "Page":
        """Open a file in a window of this size, with or without a wish for dark pages; it remembers no other page."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, context, session)
        for domain in ("Page", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        page.resize(width, height)
        page.prefer(dark=dark)
        page.navigate(path)
        return page

    def close(self) -> None:
        """End it."""
        try:
            self.call("Browser.close")
            self._process.wait(timeout=20)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)


class Page:
    """A tab with a page, and a storage of its own."""

    def __init__(self, browser: Browser, context: str, session: str) -> None:
        self._browser, self._context, self._session = browser, context, session

    def call(self, method: str, **parameters) -> dict:
        """Send a command to this tab."""
        return self._browser.call(method, self._session, **parameters)

    def navigate(self, path: Path) -> None:
        """Load a file and wait until it is there."""
        self._browser.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self._browser.wait_for("Page.loadEventFired", self._session)

    def resize(self, width: int, height: int) -> None:
        """Give the window another size, in CSS pixels; a narrow one is a phone."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def prefer(self, *, dark: bool, print_: bool = False) -> None:
        """Set what the system tells pages of its colours, and whether this one is shown as it would be printed."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="print" if print_ else "", features=[scheme])

    def evaluate(self, expression: str):
        """Return the value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"].get("description", "an exception"))
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """Click the middle of an element, as a mouse does: what covers it would get the click."""
        place = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(f"{place}.scrollIntoView({{block: 'center', inline: 'center', behavior: 'instant'}})")
        box = self.evaluate(f"{place}.getBoundingClientRect().toJSON()")
        point = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **point)

    def press(self, key: str) -> None:
        """Press a key: ``Enter``, ``Tab``, or a single character."""
        text = {"Enter": "\r", "Tab": ""}.get(key, key)
        code = {"Enter": ("Enter", 13), "Tab": ("Tab", 9), " ": ("Space", 32)}.get(key, (key, ord(key[0])))
        shared = {"key": key, "code": code[0], "windowsVirtualKeyCode": code[1]}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **shared)
        self.call("Input.dispatchKeyEvent", type="keyUp", **shared)

    @property
    def errors(self) -> list[str]:
        """Return what went to the console as an error, uncaught exceptions and refused requests included."""
        self.evaluate("new Promise(done => setTimeout(done))")  # what is on its way arrives first
        return [text for event in self._browser.events if (text := self._error(event))]

    def _error(self, event: dict) -> str | None:
        """Return the text of an event if it is an error of this tab."""
        if event.get("sessionId") != self._session:
            return None
        method, parameters = event["method"], event["params"]
        if method == "Runtime.exceptionThrown":
            return json.dumps(parameters["exceptionDetails"])
        if method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "assert"):
            return json.dumps(parameters["args"])
        if method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            return parameters["entry"]["text"]
        return None

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Save a picture of the page, or of what the window shows of it."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=whole, **(self._whole() if whole else {}))
        path.write_bytes(base64.b64decode(answer["data"]))

    def _whole(self) -> dict:
        """Return the rectangle of the whole page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def close(self) -> None:
        """Close the tab and forget what its pages kept."""
        self._browser.call("Target.disposeBrowserContext", browserContextId=self._context)
