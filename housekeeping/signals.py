"""Signals: a graceful stop by SIGINT or SIGTERM, a reload by SIGHUP, an end with the parent.

Owns the handlers of these signals in processes that serve, and the Linux call that ends a child
with its parent. Must not know what a process has to finish or to reload.
"""

import ctypes
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def die_with_parent(parent_pid: int, number: int) -> None:
    """Have the kernel send this process signal `number` when its parent dies; on Linux only.

    `parent_pid` is the parent's own statement of its number. Linux sends the signal when the
    parent's thread that forked ends, so parents fork in their main thread; see prctl(2). If the
    parent died before this call, this process ends at once, by the same signal. Raises `OSError`
    if the kernel refuses.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), number)


@contextmanager
def graceful_stop(stop: Callable[[], None], force: Callable[[int], None]) -> Iterator[None]:
    """Within the block the first SIGINT or SIGTERM calls `stop` in trio's loop. The same signal
    again calls `force` with its number. It must be the same one, because after Ctrl-C a child gets
    SIGINT from the terminal and SIGTERM from its parent.

    After the block both are ignored: the process is ending, its exit status is decided, and a
    signal could only interrupt the closing.
    """
    import trio  # noqa: PLC0415 (engines bind themselves to their parent without it)

    token = trio.lowlevel.current_trio_token()
    seen: set[int] = set()

    def on_signal(number: int) -> None:
        if number in seen:
            force(number)
        seen.add(number)
        stop()

    def handler(number: int, _frame: FrameType | None) -> None:
        token.run_sync_soon(on_signal, number)

    for each in _SIGNALS:
        signal.signal(each, handler)
    try:
        yield
    finally:
        sys.unraisablehook = _without_late_signals(sys.unraisablehook)
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)


def outlive_hangups() -> bool:
    """Ignore SIGHUP from now on, unless the process runs on a terminal, where the signal means that
    the terminal is closed. Returns whether it is ignored and can ask for a reload.
    """
    if sys.stdin is None or sys.stdin.isatty():
        return False
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return True


async def hangups() -> AsyncIterator[None]:
    """Yield once for each SIGHUP; not at all on a terminal, where it ends the process."""
    import trio  # noqa: PLC0415

    if not outlive_hangups():
        return
    with trio.open_signal_receiver(signal.SIGHUP) as received:
        async for _ in received:
            yield


def signal_name(number: int) -> str:
    """SIGKILL for 9; "" if the number has no name on this system."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""


_Hook = Callable[["sys.UnraisableHookArgs"], object]


def _without_late_signals(report: _Hook) -> _Hook:
    """`report`, except for the `OSError` with which CPython reports a signal that arrived before
    its handler was removed and was processed after that: such a signal is meant to be ignored.
    """

    def hook(unraisable: "sys.UnraisableHookArgs") -> None:
        if "ignored due to race condition" not in str(unraisable.exc_value):
            report(unraisable)

    return hook
