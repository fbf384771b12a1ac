"""A headless Chromium, controlled by its DevTools protocol over a pipe, for tests of the page.

with Chromium() as browser:
    browser.open("file:///…/page.html")
    browser.evaluate("document.title")
"""

import json
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any


NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
KEYS = {"ArrowLeft": 37, "ArrowRight": 39, "ArrowDown": 40, "Enter": 13}
FLAGS = "--headless=new --no-sandbox --disable-gpu --hide-scrollbars --no-first-run --disable-dev-shm-usage".split()


def find_chromium() -> str | None:
    """The path of a Chromium, or `None` where there is none."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Chromium:
    """One tab. `messages` are logs, exceptions and policy violations of the page, `requests` its URLs."""

    def __init__(self, width: int = 1280, height: int = 860) -> None:
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        # Chromium reads at 3 and writes at 4
        words = ["bash", "-c", 'exec "$0" "$@" 3<&0 4>&1 0</dev/null 1>&2', str(find_chromium()), *FLAGS]
        words += ["--remote-debugging-pipe", f"--user-data-dir={self.profile.name}", "about:blank"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(words, bufsize=0, **pipes)
        self._number, self._buffer, self._session = 0, b"", None
        self.messages: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)

    def __enter__(self) -> "Chromium":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.process.communicate(timeout=10)  # which closes its pipe
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.profile.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends a command and returns its answer."""
        self._number += 1
        command: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        data = json.dumps(command).encode() + b"\0"
        while data:
            data = data[self.process.stdin.write(data) :]
        while (answer := self._message()).get("id") != self._number:
            self._note(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def open(self, path: str | Path, *, fragment: str = "") -> None:
        """Opens a file and waits until it is loaded and drawn."""
        for address in ("about:blank", f"{Path(path).resolve().as_uri()}{fragment and '#'}{fragment}"):
            # an address that differs only by its fragment would not load
            self.messages.clear()
            self.requests.clear()
            self.call("Page.navigate", url=address)
            self.evaluate("new Promise(done => document.readyState === 'complete' ? done() : (onload = () => done()))")
        self.settle()

    def settle(self) -> None:
        """Waits for two frames."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))).then(() => null)")

    def evaluate(self, code: str) -> Any:
        """The value of an expression, as JSON."""
        answer = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", "an exception"))
        return answer["result"].get("value")

    def texts(self, selector: str) -> list[str]:
        """The texts of the elements that a selector finds."""
        return self.evaluate(f"[...document.querySelectorAll({selector!r})].map(e => e.textContent)")

    def count(self, selector: str) -> int:
        """The number of elements that a selector finds."""
        return self.evaluate(f"document.querySelectorAll({selector!r}).length")

    def panel(self) -> dict[str, str]:
        """The numbers of the viewer's current token, by their names."""
        rows = "[...document.querySelectorAll('#panel tbody tr')].map(r => [...r.children].map(c => c.textContent))"
        return {name: " ".join(values) for name, *values in self.evaluate(rows)}

    def view(self, *names: str) -> list[Any]:
        """Fields of the viewer's state, such as "step"."""
        return self.evaluate(f"[{', '.join(f'view.{name}' for name in names)}]")

    def select(self, name: str, value: str) -> None:
        """Chooses an option of the select element with this id, as a user does."""
        change = f"s.value = {value!r}; s.dispatchEvent(new Event('change', {{ bubbles: true }}))"
        self.evaluate(f"(s => {{ {change} }})(document.getElementById({name!r}))")

    def press(self, *keys: str, shift: bool = False) -> None:
        """Presses keys where the focus is."""
        for key in keys:
            event = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": 8 if shift else 0}
            self.call("Input.dispatchKeyEvent", type="keyDown", **event)
            self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def point(self, selector: str) -> None:
        """Moves the pointer onto an element."""
        code = f"(e => (r => [r.x + r.width / 2, r.y + r.height / 2])(e.getClientRects()[0]))({selector})"
        x, y = self.evaluate(code)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def resize(self, width: int, height: int) -> None:
        """The size of the window, in CSS pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, scheme: str) -> None:
        """Light or dark."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def _note(self, message: dict[str, Any]) -> None:
        match message:
            case {"method": "Runtime.exceptionThrown", "params": {"exceptionDetails": details}}:
                self.messages.append(details.get("exception", {}).get("description", "an exception"))
            case {"method": "Log.entryAdded", "params": {"entry": {"text": text}}}:
                self.messages.append(text)
            case {"method": "Runtime.consoleAPICalled", "params": {"args": words}}:
                self.messages.append(str([word.get("value") for word in words]))
            case {"method": "Network.requestWillBeSent", "params": {"request": {"url": url}}}:
                self.requests.append(url)

    def _message(self, limit: float = 60.0) -> dict[str, Any]:
        end = time.monotonic() + limit
        while b"\0" not in self._buffer:
            if not select.select([self.process.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError(f"no answer from Chromium within {limit:.0f} s")
            data = self.process.stdout.read(1 << 20)
            if not data:
                raise RuntimeError(f"Chromium ended with {self.process.wait()}")
            self._buffer += data
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)
