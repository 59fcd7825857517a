"""Headless Chromium, by the DevTools protocol over a pipe.

Owns the process and the exchange of JSON messages, each ended by a NUL. Needs no driver and no
package; tests that use it are skipped where no Chromium is installed.
"""

import base64
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import trio

PATIENCE_S = 120.0
"""Bounds every command; a browser on a loaded machine is slow."""
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PROGRAM = next((path for name in NAMES if (path := shutil.which(name))), None)

OPTIONS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--mute-audio",
    "--force-color-profile=srgb",
)

needs_browser = pytest.mark.skipif(PROGRAM is None, reason=f"no {' or '.join(NAMES)} is installed")


class PageError(Exception):
    """A script of the page failed, or the browser refuses a command."""


class Page:
    """One tab. `problems` are uncaught errors and what the page's console was told of errors;
    `urls` is everything that was asked for.
    """

    def __init__(self, browser: "Browser", session: str, target: str) -> None:
        self._browser = browser
        self._session = session
        self.target = target
        self.problems: list[str] = []
        self.urls: list[str] = []

    async def tell(self, method: str, **parameters: Any) -> Any:
        return await self._browser.tell(method, self._session, **parameters)

    async def run(self, script: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        told = await self.tell(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in told:
            raise PageError(told["exceptionDetails"].get("exception", {}).get("description", told))
        return told["result"].get("value")

    async def until(self, script: str) -> Any:
        """The value of an expression once it is truthy."""
        value = None
        with trio.move_on_after(PATIENCE_S):
            while not value:
                # While a page is loaded its elements are missing.
                with suppress(PageError):
                    value = await self.run(script)
                await trio.sleep(0.03)
        assert value, f"never true: {script}; {self.problems}"
        return value

    async def go(self, url: str) -> None:
        await self.tell("Page.navigate", url=url)

    async def close(self) -> None:
        """The tab is gone."""
        await self._browser.tell("Target.closeTarget", targetId=self.target)

    async def resize(self, width: int, height: int, *, is_phone: bool = False) -> None:
        await self.tell(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=is_phone,
        )  # fmt: skip

    async def prefer(self, scheme: str) -> None:
        """What the system's theme is: `dark` or `light`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.tell("Emulation.setEmulatedMedia", features=features)

    async def press(self, key: str, code: int = 0) -> None:
        for kind in ("keyDown", "keyUp"):
            await self.tell(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code,
                **({"text": key} if len(key) == 1 else {}),
            )  # fmt: skip

    async def picture(self, path: Path, *, is_whole: bool = False) -> None:
        """A PNG of what is seen, or of the whole page."""
        clip = {}
        if is_whole:
            size = (await self.tell("Page.getLayoutMetrics"))["cssContentSize"]
            clip = {
                "clip": {
                    "x": 0,
                    "y": 0,
                    "width": size["width"],
                    "height": size["height"],
                    "scale": 1,
                }
            }
        shot = await self.tell(
            "Page.captureScreenshot", format="png", captureBeyondViewport=is_whole, **clip
        )
        await trio.Path(path).write_bytes(base64.b64decode(shot["data"]))

    def hear(self, method: str, told: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(told["exceptionDetails"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.problems.append(told["entry"]["text"] + " " + told["entry"].get("url", ""))
        elif method == "Network.requestWillBeSent":
            self.urls.append(told["request"]["url"])


class Browser:
    """A running browser."""

    def __init__(self, to: trio.abc.SendStream, back: trio.abc.ReceiveStream) -> None:
        self._to = to
        self._back = back
        self._numbers = itertools.count(1)
        self._answers: dict[int, tuple[trio.Event, list[Any]]] = {}
        self._pages: dict[str, Page] = {}

    async def run(self) -> None:
        """Take messages until the browser ends."""
        rest = b""
        async for data in self._back:
            *whole, rest = (rest + data).split(b"\0")
            for message in whole:
                self._take(json.loads(message))

    async def tell(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        event, answer = self._answers[number] = trio.Event(), list[Any]()
        await self._to.send_all(json.dumps(message).encode() + b"\0")
        with trio.fail_after(PATIENCE_S):
            await event.wait()
        if "error" in answer[0]:
            raise PageError(f"{method}: {answer[0]['error']}")
        return answer[0]["result"]

    async def open(
        self, url: str = "about:blank", width: int = 1440, height: int = 900, *,
        is_phone: bool = False, scheme: str = "light",
    ) -> Page:  # fmt: skip
        """A new tab, which remembers nothing of others."""
        context = (await self.tell("Target.createBrowserContext"))["browserContextId"]
        target = (
            await self.tell("Target.createTarget", url="about:blank", browserContextId=context)
        )["targetId"]
        told = await self.tell("Target.attachToTarget", targetId=target, flatten=True)
        page = self._pages[told["sessionId"]] = Page(self, told["sessionId"], target)
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.tell(f"{domain}.enable")
        await page.resize(width, height, is_phone=is_phone)
        await page.prefer(scheme)
        await page.go(url)
        return page

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            event, answer = self._answers.pop(message["id"])
            answer.append(message)
            event.set()
        elif (page := self._pages.get(message.get("sessionId", ""))) is not None:
            page.hear(message["method"], message["params"])


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    """A browser for the length of the block."""
    assert PROGRAM is not None
    read_end, to = os.pipe()
    back, write_end = os.pipe()
    with TemporaryDirectory(prefix="herma-browser-", ignore_cleanup_errors=True) as folder:
        # Descriptor 3 is what the browser reads, 4 what it writes.
        script = f'exec 3<&{read_end} 4>&{write_end}; exec "$0" "$@"'
        process = await trio.lowlevel.open_process(
            ["bash", "-c", script, PROGRAM, *OPTIONS, f"--user-data-dir={folder}", "about:blank"],
            pass_fds=(read_end, write_end),
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )
        os.close(read_end)
        os.close(write_end)
        try:
            async with (
                trio.lowlevel.FdStream(to) as sender,
                trio.lowlevel.FdStream(back) as receiver,
            ):
                browser = Browser(sender, receiver)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(browser.run)
                    yield browser
                    nursery.cancel_scope.cancel()
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
