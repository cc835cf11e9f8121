"""A real browser: headless Chromium, told what to do over a pair of pipes (the DevTools protocol, without a port)."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import pytest

PATIENCE_S = 20.0
NAMES = ("chromium", "chromium-browser", "google-chrome")

_FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--mute-audio",
)


def find_browser() -> str | None:
    """Where Chromium is, if it is installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def skip_without_browser() -> None:
    """For fixtures that start one."""
    if find_browser() is None:
        pytest.skip("no Chromium: `apt-get install chromium` (.ci/run does, as root)")


class BrowserError(Exception):
    """What the browser would not do."""


class Browser:
    """`with` ends it, and all of its processes."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="b-")
        their_read, self._write = os.pipe()
        self._read, their_write = os.pipe()
        # The protocol is on the descriptors 3 and 4; whatever has these numbers here is moved out of the way first.
        script = f'exec 5<&{their_read} 6>&{their_write}; exec 3<&5 4>&6 5<&- 6>&-; exec "$@"'
        command = [str(find_browser()), *_FLAGS, f"--user-data-dir={self._folder}"]
        if os.geteuid() == 0:
            command.append("--no-sandbox")
        self._process = subprocess.Popen(
            ["bash", "-c", script, "browser", *command, "about:blank"],
            pass_fds=[their_read, their_write],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "HOME": self._folder},
        )
        os.close(their_read)
        os.close(their_write)
        self._rest = b""
        self._num_sent = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._pages: dict[str, Page] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        family = [*psutil.Process(self._process.pid).children(recursive=True)]
        with contextlib.suppress(OSError, AssertionError):
            self.send("Browser.close", {})
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        for process in family:
            with contextlib.suppress(psutil.Error):
                process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        psutil.wait_procs(family, timeout=5)
        os.close(self._read)
        os.close(self._write)
        shutil.rmtree(self._folder, ignore_errors=True)

    def open(self, url: str, *, width: int = 1280, height: int = 800, is_dark: bool = False) -> Page:
        """A page that has loaded."""
        target = self.send("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.send("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        page = self._pages[session] = Page(self, session, target)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.send(f"{domain}.enable")
        is_phone = width < 600
        page.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=is_phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        page.send("Emulation.setEmulatedMedia", features=[scheme])
        page.go(url)
        return page

    def send(self, method: str, parameters: dict[str, Any], session: str = "") -> dict[str, Any]:
        """Ask, and wait for the answer."""
        self._num_sent += 1
        number = self._num_sent
        message = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while number not in self._answers:
            self.listen(deadline - time.monotonic())
        answer = self._answers.pop(number)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']}")
        return dict(answer["result"])

    def listen(self, within_s: float) -> None:
        """Take in what has come; wait for the first of it."""
        ready, _, _ = select.select([self._read], [], [], max(0.0, within_s))
        assert ready, "the browser does not answer"
        data = os.read(self._read, 1 << 20)
        assert data, "the browser has gone"
        *messages, self._rest = (self._rest + data).split(b"\0")
        for raw in messages:
            message = json.loads(raw)
            if "id" in message:
                self._answers[message["id"]] = message
            elif (page := self._pages.get(message.get("sessionId", ""))) is not None:
                page.heard(message["method"], message["params"])


class Page:
    """One tab. `errors` is what its console has said."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser = browser
        self._session = session
        self._target = target
        self._num_loads = 0
        self.errors: list[str] = []
        self.urls: list[str] = []
        """That it has asked for."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _tb: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, Exception):
            self.close()

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.send(method, parameters, self._session)

    def heard(self, method: str, said: dict[str, Any]) -> None:
        """An event of the browser."""
        match method:
            case "Page.loadEventFired":
                self._num_loads += 1
            case "Network.requestWillBeSent":
                self.urls.append(said["request"]["url"])
            case "Runtime.exceptionThrown":
                details = said["exceptionDetails"]
                self.errors.append(str(details.get("exception", {}).get("description", details["text"])))
            case "Runtime.consoleAPICalled" if said["type"] in ("error", "warning", "assert"):
                self.errors.append(" ".join(str(each.get("value", each)) for each in said["args"]))
            case "Log.entryAdded" if said["entry"]["level"] in ("error", "warning"):
                self.errors.append(f"{said['entry']['text']} ({said['entry'].get('url', '')})")

    def go(self, url: str) -> None:
        """Load another page."""
        before = self._num_loads
        self.send("Page.navigate", url=url)
        deadline = time.monotonic() + PATIENCE_S
        while self._num_loads == before:
            self._browser.listen(deadline - time.monotonic())

    def evaluate(self, script: str) -> Any:
        """The value of an expression."""
        result = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, condition: str, within_s: float = PATIENCE_S) -> float:
        """Until an expression is true; how many seconds that took."""
        began = time.monotonic()
        while not self._is_true(condition):
            assert time.monotonic() < began + within_s, f"not within {within_s} s: {condition}\n{self.text()}"
            time.sleep(0.02)
        return time.monotonic() - began

    def _is_true(self, condition: str) -> bool:
        try:
            return bool(self.evaluate(condition))
        except BrowserError as error:
            if "navigated" in str(error) or "context" in str(error):
                return False  # asked of a page that has just been left
            raise

    def text(self, selector: str = "body") -> str:
        """What can be read there."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def wait_text(self, text: str, selector: str = "body", within_s: float = PATIENCE_S) -> float:
        """Until it can be read there; how many seconds that took."""
        where = f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"
        return self.wait(f"({where}).includes({json.dumps(text)})", within_s)

    def click(self, selector: str) -> None:
        """As a mouse does."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def type(self, selector: str, text: str) -> None:
        """As a keyboard does, instead of what is there."""
        self.evaluate(f"(e => {{ e.focus(); e.select?.() }})(document.querySelector({json.dumps(selector)}))")
        self.send("Input.insertText", text=text)

    def press(self, key: str, **more: Any) -> None:
        """A key that is no letter."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27}
        enter = {"text": "\r"} if key == "Enter" else {}
        common = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key], **more}
        self.send("Input.dispatchKeyEvent", type="keyDown", **common, **enter)
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """What is to be seen, as a small PNG."""
        picture = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(picture["data"]))

    def close(self) -> None:
        """Close the tab."""
        self._browser.send("Target.closeTarget", {"targetId": self._target})
