"""A headless browser, spoken to in Chrome's own protocol, so that it needs no driver."""

import asyncio
import base64
import contextlib
import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tornado.websocket import websocket_connect

from dask_bigfft.testing.traps import until

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

#: Visits all nodes of a page, also in shadow trees, where Bokeh puts its elements.
WALK = """
(() => {
  const found = [];
  const walk = node => {
    VISIT
    if (node.shadowRoot) walk(node.shadowRoot);
    for (const child of node.childNodes) walk(child);
  };
  if (document.body) walk(document.body);
  return found;
})()
"""

#: Collects texts.
TEXT = """
  if (node.tagName === "STYLE" || node.tagName === "SCRIPT") return;
  if (node.nodeType === Node.TEXT_NODE) found.push(node.textContent);
"""


def found() -> str | None:
    """Return the program of a browser, or None."""
    named = os.environ.get("BIGFFT_BROWSER")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """A page of a browser."""

    def __init__(self, address: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._number = 0
        self.errors = list[str]()
        self._socket = self._loop.run_until_complete(self._connect(address))
        self("Runtime.enable")
        self("Page.enable")

    def __call__(self, method: str, **parameters: Any) -> Any:
        """Return the browser's answer to one command."""
        return self._loop.run_until_complete(self._ask(method, parameters))

    async def _connect(self, address: str) -> Any:
        return await websocket_connect(address, max_message_size=1 << 28)

    async def _ask(self, method: str, parameters: dict[str, Any]) -> Any:
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        await self._socket.write_message(json.dumps(command))
        while True:
            message = await asyncio.wait_for(self._socket.read_message(), 60)
            assert message is not None, "the browser has gone"
            answer = json.loads(message)
            if answer.get("method") == "Runtime.exceptionThrown":
                self.errors.append(str(answer["params"]["exceptionDetails"]))
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def evaluate(self, code: str) -> Any:
        """Return the value of an expression of the page."""
        answer = self("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def collect(self, visit: str) -> list[Any]:
        """Return what a statement on each `node` pushes to `found`."""
        elements: list[Any] = self.evaluate(WALK.replace("VISIT", visit))
        return elements

    def wait(self, ready: Any) -> None:
        """Wait until the page's text is as wanted."""
        until(lambda: ready("|".join(self.collect(TEXT))))

    def screenshot(self, path: Path, top: int = 0, height: int = 0) -> None:
        """Write a picture of what the window shows, or of `height` pixels of the page."""
        part: dict[str, Any] = {}
        if height:
            width = self.evaluate("document.documentElement.clientWidth")
            clip = {"x": 0, "y": top, "width": width, "height": height, "scale": 1}
            part = {"clip": clip, "captureBeyondViewport": True}
        picture = self("Page.captureScreenshot", format="png", **part)["data"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(picture))

    def close(self) -> None:
        """Hang up."""

        async def closing() -> None:  # where there is a loop, whatever other tests have left
            self._socket.close()
            await asyncio.sleep(0)

        self._loop.run_until_complete(closing())
        self._loop.close()


@contextlib.contextmanager
def opened(program: str, folder: Path) -> Iterator[Page]:
    """Give an empty page of a browser that keeps all it writes in a folder."""
    process = subprocess.Popen(
        [
            *(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--disable-dev-shm-usage", "--disable-background-networking"),
            *("--remote-debugging-port=0", "--remote-debugging-address=127.0.0.1"),
            *("--window-size=1500,1150", f"--user-data-dir={folder}", "about:blank"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(folder)},
    )
    try:
        port = until(lambda: _port(folder, process))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=30) as answer:
            pages = [page for page in json.load(answer) if page["type"] == "page"]
        with contextlib.closing(Page(pages[0]["webSocketDebuggerUrl"])) as page:
            yield page
    finally:
        process.terminate()
        process.wait(30)


def _port(folder: Path, process: subprocess.Popen[bytes]) -> int | None:
    assert process.poll() is None, "the browser did not start"
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int((folder / "DevToolsActivePort").read_text().splitlines()[0])
    return None
