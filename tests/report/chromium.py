"""Headless Chromium through its debugging pipe: shows a page as a reader sees it, and tells what it complains of."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find() -> str | None:
    """The program, or None."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


@dataclass(frozen=True)
class Seen:
    """A page at one width.

    Attributes:
        complaints: What came to the console: errors, warnings, refused or failed loads.
        requests: Addresses that were asked for.
        value: What the script returned.
        picture: PNG of the whole page.
    """

    complaints: list[str]
    requests: list[str]
    value: Any
    picture: bytes


class Browser:
    """A Chromium of its own, with a profile in `folder`; use it with `with`."""

    def __init__(self, program: str, folder: Path) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        ]
        # The pipe is on descriptors 3 and 4, by Chromium's rule; a shell puts them there.
        plumbing = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        arguments = [program, *flags, "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", plumbing, *arguments],
            pass_fds=(to_browser, from_browser),
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._count = 0
        self._events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._write)  # which is how the pipe tells it to end
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)

    def see(self, page: Path, width: int, *, dark: bool = False, script: str = "0") -> Seen:
        """Opens a file at a width of so many pixels and runs a script of the caller's in it."""
        target = self._call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self._call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        self._events.clear()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable", {}, session)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._call("Emulation.setEmulatedMedia", {"features": scheme}, session)
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self._call("Emulation.setDeviceMetricsOverride", metrics, session)
        self._call("Page.navigate", {"url": page.resolve().as_uri()}, session)
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._take()
        found = self._call("Runtime.evaluate", {"expression": script, "returnByValue": True}, session)
        shot = self._call("Page.captureScreenshot", {"captureBeyondViewport": True}, session)
        seen = Seen(
            [json.dumps(event) for event in self._events if event["method"] in _COMPLAINTS],
            [
                event["params"]["request"]["url"]
                for event in self._events
                if event["method"] == "Network.requestWillBeSent"
            ],
            found["result"].get("value"),
            base64.b64decode(shot["data"]),
        )
        self._call("Target.closeTarget", {"targetId": target})
        return seen

    def _call(self, method: str, params: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._take()
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _take(self) -> dict[str, Any]:
        """The next message; events are kept."""
        while b"\0" not in self._buffer:
            part = os.read(self._read, 1 << 20)
            if not part:
                raise RuntimeError("Chromium has ended")
            self._buffer += part
        line, self._buffer = self._buffer.split(b"\0", 1)
        message = json.loads(line)
        if "method" in message:
            self._events.append(message)
        return message


_COMPLAINTS = (
    "Log.entryAdded",
    "Runtime.consoleAPICalled",
    "Runtime.exceptionThrown",
    "Network.loadingFailed",
)
