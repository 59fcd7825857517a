"""Reads sockets while trio's loop waits, without waking a task.

Owns the loop's wait once `enable_inline_reads` was called in it: it waits for trio's own sockets
and for those registered here, whose callbacks run at once. Must not know frames.

To wake a task takes some forty calls inside trio: 120 us in a process that was idle, whose caches
hold none of it, and half as much as the tokens of 32 streams take. Each registered socket has a
task as well, in `wait_readable`. The task reads what comes while the loop does not wait, large
arrivals, and the end. Where trio lacks the private parts used here, the tasks read everything
(docs/decisions/0015-inline-reads.md).
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
    """trio's own, as far as it is used here."""

    _epoll: select.epoll

    def get_events(self, timeout: float) -> Sequence[object]:
        """Wait up to `timeout` seconds; returns what trio's tasks wait for, empty at the end."""
        ...


@final
class InlineReads:
    """Stands before `inner`, trio's I/O manager; `runnable` are the tasks that can run."""

    def __init__(self, inner: IOManager, runnable: Sized) -> None:
        self._inner = inner
        self._runnable = runnable
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._epoll: Final = select.epoll()
        self._epoll.register(inner._epoll.fileno(), select.EPOLLIN)  # noqa: SLF001

    def __repr__(self) -> str:
        return f"<InlineReads of {len(self._callbacks)} sockets>"

    def __getattr__(self, name: str) -> object:
        """What else trio asks its I/O manager for, looked up once."""
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
            # The arrival had made trio's own epoll ready too: has anything else?
            if self._runnable or (poll(0) if is_read else ready):
                break
            timeout = ends_at - time.perf_counter()
        return self._inner.get_events(0)

    def register(self, fd: int, callback: Callable[[], None]) -> None:
        """Call `callback` when `fd` is readable while the loop waits. It runs in no task, must
        neither raise nor move a deadline to an earlier time, and must be short. What it leaves
        unread, the end included, wakes the task that waits for `fd`.
        """
        self._epoll.register(fd, select.EPOLLIN)
        self._callbacks[fd] = callback

    def unregister(self, fd: int) -> None:
        """Drop the callback; to be called before `fd` is closed."""
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)


def enable_inline_reads() -> None:
    """Let the running loop read registered sockets while it waits, if this trio allows it."""
    with suppress(ImportError, AttributeError):
        runner = _runner()
        if runner.is_guest:
            return  # it waits in another thread
        runner.io_manager = InlineReads(runner.io_manager, runner.runq)  # type: ignore[assignment]


def inline_reads() -> InlineReads | None:
    """The running loop's, None if they are not enabled."""
    with suppress(ImportError, AttributeError):
        manager: object = _runner().io_manager
        return manager if isinstance(manager, InlineReads) else None
    return None


def _runner() -> Runner:
    """trio has no public way to it."""
    from trio._core._run import GLOBAL_RUN_CONTEXT  # noqa: PLC0415

    return GLOBAL_RUN_CONTEXT.runner
