"""Inline reads: sockets are read while trio's loop waits for I/O, without waking a task.

Owns the loop's wait after `enable_inline_reads`: it waits for trio's own sockets and for those
registered here, whose callbacks run at once. Must not know frames.

Waking a task takes about forty calls inside trio: 120 us in a process that was idle and whose CPU
caches hold none of that code, half of what the tokens of 32 streams take. Each registered socket
also has a task in `wait_readable`, which reads what arrives while the loop is not waiting, large
arrivals, and the end of the stream. If trio lacks the private parts used here, the tasks read
everything (docs/decisions/0015-inline-reads.md).
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence, Sized
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol, final

if TYPE_CHECKING:
    from trio._core._run import Runner

_MAX_WAIT_S: Final = 3600.0


class IOManager(Protocol):
    """The part of trio's I/O manager that is used here."""

    _epoll: select.epoll

    def get_events(self, timeout: float) -> Sequence[object]:
        """Wait up to `timeout` seconds; returns the events for trio's tasks, empty if none came."""
        ...


@final
class InlineReads:
    """Takes the place of `inner`, trio's I/O manager; `runnable` are the tasks that can run."""

    def __init__(self, inner: IOManager, runnable: Sized) -> None:
        self._inner = inner
        self._runnable = runnable
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._epoll: Final = select.epoll()
        self._epoll.register(inner._epoll.fileno(), select.EPOLLIN)  # noqa: SLF001

    def __repr__(self) -> str:
        return f"<InlineReads of {len(self._callbacks)} sockets>"

    def __getattr__(self, name: str) -> object:
        """Any other attribute of trio's I/O manager, looked up once."""
        value = getattr(self._inner, name)
        setattr(self, name, value)
        return value

    def get_events(self, timeout: float) -> Sequence[object]:
        """See `IOManager`."""
        if not self._callbacks or timeout <= 0:
            return self._inner.get_events(timeout)
        poll, callbacks = self._epoll.poll, self._callbacks
        ends_at = time.perf_counter() + timeout
        while timeout > 0:
            ready = poll(min(timeout, _MAX_WAIT_S))
            is_read = False
            for fd, _ in ready:
                if (callback := callbacks.get(fd)) is not None:
                    callback()
                    is_read = True
            # `ready` was perhaps only what the callbacks have read: poll again after them.
            if self._runnable or (poll(0) if is_read else ready):
                break
            timeout = ends_at - time.perf_counter()
        return self._inner.get_events(0)

    def register(self, fd: int, callback: Callable[[], None]) -> None:
        """Call `callback` when `fd` is readable while the loop waits. The callback runs outside any
        task; it must be short, and must neither raise nor move a deadline to an earlier time. What
        it leaves unread, also the end of the stream, wakes the task that waits for `fd`.
        """
        self._epoll.register(fd, select.EPOLLIN)
        self._callbacks[fd] = callback

    def unregister(self, fd: int) -> None:
        """Drop the callback. Call it before `fd` is closed."""
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)


def enable_inline_reads() -> None:
    """Let the running loop read registered sockets while it waits, if this trio allows it."""
    with suppress(ImportError, AttributeError):
        runner = _runner()
        if runner.is_guest:
            return  # in guest mode the loop waits in another thread
        runner.io_manager = InlineReads(runner.io_manager, runner.runq)  # type: ignore[assignment]


def inline_reads() -> InlineReads | None:
    """The inline reads of the running loop; None if they are not enabled."""
    with suppress(ImportError, AttributeError):
        manager: object = _runner().io_manager
        return manager if isinstance(manager, InlineReads) else None
    return None


def _runner() -> Runner:
    """The running loop's runner, which has no public name in trio."""
    from trio._core._run import GLOBAL_RUN_CONTEXT  # noqa: PLC0415

    return GLOBAL_RUN_CONTEXT.runner
