"""A real browser: Debian's chromium without a window, driven over its own debugging protocol.

`Browser` starts one process for a module of tests, with a profile of its own and without the services that would call
its maker. `Page` opens an address, runs script in it, presses keys and takes screenshots. All that a page asks for and
all that its scripts complain of is written down.
"""

import base64
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

PATIENCE = 60.0
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-default-apps", "--disable-extensions", "--mute-audio",
    "--hide-scrollbars", "--remote-debugging-port=0", "--disable-dev-shm-usage", "--force-color-profile=srgb",
)  # fmt: skip


def find_browser() -> str | None:
    """Return the path of a browser on this machine, or None."""
    named = os.environ.get("HITHERTO_CHROMIUM")
    return named or next(
        (path for name in ("chromium", "google-chrome", "chrome") if (path := shutil.which(name))), None
    )


class Browser:
    """A process, and a connection to each page."""

    def __init__(self, path: str) -> None:
        self._folder = tempfile.mkdtemp(prefix="hitherto-browser-")
        command = [path, *FLAGS, f"--user-data-dir={self._folder}", "about:blank"]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        assert self._process.stderr is not None
        for line in self._process.stderr:
            found = re.search(r"DevTools listening on (ws://\S+)", line)
            if found:
                break
        else:
            raise AssertionError("the browser did not start")
        self.address = found[1]
        # What it writes from now on is not read: it must not fill the pipe.
        self._process.stderr.close()

    @contextmanager
    def page(
        self, *, width: int = 1280, height: int = 900, dark: bool = False, phone: bool = False
    ) -> Iterator["Page"]:
        """Open a page with a cookie jar of its own."""
        with connect(self.address, max_size=None, open_timeout=PATIENCE) as socket:
            page = Page(socket)
            context = page.send("Target.createBrowserContext")["browserContextId"]
            target = page.send("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
            page.session = page.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Network", "Log"):
                page.send(f"{domain}.enable")
            page.send(
                "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
            )
            page.look(dark=dark)
            yield page
            page.session = None
            page.send("Target.disposeBrowserContext", browserContextId=context)

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


class Gone(Exception):
    """The page went to another address while it was asked something."""


class Page:
    """A page. `requests`, `complaints` and `dialogs` are what happened in it."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._last = socket, 0
        self.session: str | None = None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.dialogs: list[str] = []
        self._events: list[dict[str, Any]] = []

    def send(self, method: str, **given: object) -> dict[str, Any]:
        self._last += 1
        message: dict[str, object] = {"id": self._last, "method": method, "params": given}
        if self.session is not None:
            message["sessionId"] = self.session
        self._socket.send(json.dumps(message))
        while True:
            answer = self._receive(PATIENCE)
            if answer.get("id") == self._last:
                if "navigated" in str(answer.get("error")) or "context" in str(answer.get("error")):
                    raise Gone(str(answer["error"]))
                assert "error" not in answer, f"{method}: {answer['error']}"
                found: dict[str, Any] = answer["result"]
                return found

    def _receive(self, seconds: float) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._socket.recv(seconds))
        given = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(given["request"]["url"])
            case "Page.javascriptDialogOpening":
                self.dialogs.append(given["message"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(given["exceptionDetails"].get("exception", given["exceptionDetails"])))
            case "Log.entryAdded":
                self.complaints.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")
            case "Runtime.consoleAPICalled" if given["type"] in ("error", "warning"):
                self.complaints.append(str(given["args"]))
            case None:
                return message
        self._events.append(message)
        return message

    def look(self, *, dark: bool = False, media: str = "", calm: bool = True) -> None:
        """Prefer dark or light, a medium such as print, and no movement."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        features += [{"name": "prefers-reduced-motion", "value": "reduce"}] if calm else []
        self.send("Emulation.setEmulatedMedia", media=media, features=features)

    def open(self, address: str) -> None:
        """Open an address, and wait until it is loaded."""
        self._events.clear()
        found = self.send("Page.navigate", url=address)
        if found.get("isDownload"):  # a file to keep: the page stays
            return
        assert "errorText" not in found, found
        self._wait_for("Page.loadEventFired")

    def _wait_for(self, method: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not any(event.get("method") == method for event in self._events):
            self._receive(max(0.1, deadline - time.monotonic()))

    def run(self, script: str) -> Any:
        """Return the value of an expression, which may be a promise."""
        found = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, script: str) -> Any:
        """Wait until an expression is true, and return its value; of an element, True."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                found = self.run(f"((found) => found instanceof Node || found)({script})")
            except Gone:
                found = None
            if found:
                return found
            assert time.monotonic() < deadline, f"never true: {script}\n{self.complaints}"
            time.sleep(0.02)

    def press(self, key: str, *, shift: bool = False, code: str = "") -> None:
        """Press a key."""
        text = key if len(key) == 1 else "\r" if key == "Enter" else ""
        common: dict[str, object] = {"key": key, "code": code or key, "modifiers": 8 if shift else 0}
        if key == "Enter":
            common["windowsVirtualKeyCode"] = 13
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def screenshot(self, path: Path | str, *, full: bool = False) -> None:
        found = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=full)
        Path(path).write_bytes(base64.b64decode(found["data"]))


Open = Callable[..., Page]
