"""The live frames: a terminal that follows a gateway until a key ends it.

Owns the keyboard's mode, the keys and the tasks around them; the screen is rich's. Must not know
what a frame shows.
"""

import os
import re
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, final

import trio
from rich.console import Console, Group
from rich.live import Live

from herma.top.frame import PARTS, View, draw
from herma.top.source import GatewayPage, TopData
from protocol.errors import ConfigError, HermaError

_SHIFT_TAB: Final = b"\x1b[Z"
_KEY: Final = re.compile(rb"\x1b\[[0-9;]*[@-~]|.", re.DOTALL)
"""Matches one key: a read over a slow line may return several."""

PAUSE_S: Final = 0.2
"""Seconds between frames: at most five frames a second, so that a slow ssh keeps up."""
RETRY_S: Final = 2.0
STALE_S: Final = 5.0
"""Seconds without news after which a frame is marked stale. The stream sends a state each
second.
"""


async def follow(page: GatewayPage, view: View, console: Console) -> None:
    """Show the gateway on the terminal of `console` until q, Ctrl-C or SIGTERM. Raises `HermaError`
    if it does not answer at the start, and `ConfigError` without a terminal.
    """
    if not sys.stdin.isatty() or not console.is_terminal or console.is_dumb_terminal:
        raise ConfigError("this is no terminal: use --once for one frame, or --json")
    shown = TopData.of((await page.state())[0])
    live = Live(console=console, screen=True, auto_refresh=False)
    screen = _Screen(page, shown, view, live)
    with _single_keys(sys.stdin.fileno()), live:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(screen.read)
            nursery.start_soon(screen.paint)
            nursery.start_soon(screen.watch_size)
            nursery.start_soon(screen.end_at_signal, nursery.cancel_scope)
            await screen.watch_keys()
            nursery.cancel_scope.cancel()


@contextmanager
def _single_keys(keyboard: int) -> Iterator[None]:
    """Read keys without Enter. Ctrl-Z is off, because it would leave the terminal so."""
    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        modes = termios.tcgetattr(keyboard)
        modes[6][termios.VSUSP] = b"\x00"
        termios.tcsetattr(keyboard, termios.TCSANOW, modes)
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


@final
class _Screen:
    """The screen and its tasks. `_news` is set when the frame must be drawn again."""

    def __init__(self, page: GatewayPage, shown: TopData, view: View, live: Live) -> None:
        self._page = page
        self._shown = shown
        self._view = view
        self._live = live
        self._news = trio.Event()
        self._trouble = ""
        self._heard_at = time.monotonic()

    async def read(self) -> None:
        """Follow the stream, and connect again after each end of it."""
        while True:
            try:
                await self._page.follow(self._shown, self._hear)
                self._trouble = "the stream has ended"
            except HermaError as error:
                self._trouble = str(error)
            self._news.set()
            await trio.sleep(RETRY_S)

    def _hear(self) -> None:
        self._trouble, self._heard_at = "", time.monotonic()
        self._news.set()

    async def paint(self) -> None:
        while True:
            self._news = trio.Event()
            self._draw()
            await trio.sleep(PAUSE_S)
            with trio.move_on_after(1):
                await self._news.wait()

    async def watch_size(self) -> None:
        with trio.open_signal_receiver(signal.SIGWINCH) as changes:
            async for _ in changes:
                self._news.set()

    async def end_at_signal(self, scope: trio.CancelScope) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as ends:
            async for _ in ends:
                scope.cancel()

    async def watch_keys(self) -> None:
        """Return at q, or when the keyboard is gone."""
        keyboard = sys.stdin.fileno()
        while True:
            await trio.lowlevel.wait_readable(keyboard)
            if not (read := os.read(keyboard, 64)):
                return
            for key in _KEY.findall(read):
                if key in {b"q", b"Q", b"\x04"}:
                    return
                if key in {b"\t", _SHIFT_TAB}:
                    self._turn(1 if key == b"\t" else -1)

    def _turn(self, step: int) -> None:
        part = PARTS[(PARTS.index(self._view.part) + step) % len(PARTS)]
        self._view = self._view._replace(part=part)
        self._news.set()

    def _draw(self) -> None:
        overview = self._shown.overview
        if overview is None:
            return
        size = self._live.console.size
        silent_s = time.monotonic() - self._heard_at
        is_stale = bool(self._trouble) or silent_s >= STALE_S
        view = self._view._replace(
            columns=size.width,
            rows=size.height,
            status=f"no connection for {silent_s:.0f} s" if is_stale else "live",
            is_stale=is_stale,
            keys=True,
        )
        lines = draw(overview, list(self._shown.samples), list(self._shown.events), view)
        self._live.update(Group(*lines), refresh=True)
