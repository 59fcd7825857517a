"""What is read while the loop sleeps, without a task.

Owns the loop's sleep, once `read_in_sleep` was called in it: on trio's sockets and on those that
are offered here, which are read at once. Must not know frames.

To wake a task takes trio forty calls: 120 us in a process that has rested, as all that they touch
has left the caches, and half as much as the tokens of 32 streams take. Each socket has its task as
well, which waits in trio's way: it reads what comes while the loop does not sleep, and all that is
more than a sleeper should do. Where trio has no such insides any more, it reads everything.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence, Sized
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol, final

if TYPE_CHECKING:
    from trio._core._run import Runner

_MAX_SLEEP_S: Final = 3600.0


class Sleeper(Protocol):
    """What trio sleeps with."""

    _epoll: select.epoll

    def get_events(self, timeout: float) -> Sequence[object]:
        """Sleep; something empty once the time is over."""
        ...


@final
class DirectReads:
    """`inner` is what trio sleeps with, and what it asks all else of; `runnable` its tasks that can
    run.
    """

    def __init__(self, inner: Sleeper, runnable: Sized) -> None:
        self._inner = inner
        self._runnable = runnable
        self._takes: dict[int, Callable[[], None]] = {}
        self._epoll: Final = select.epoll()
        self._epoll.register(inner._epoll.fileno(), select.EPOLLIN)  # noqa: SLF001

    def __repr__(self) -> str:
        return f"<DirectReads, {len(self._takes)} offered>"

    def __getattr__(self, name: str) -> object:
        """What else trio asks of it; found at once from then on."""
        value = getattr(self._inner, name)
        setattr(self, name, value)
        return value

    def get_events(self, timeout: float) -> Sequence[object]:
        """See `Sleeper`."""
        if not self._takes or timeout <= 0:
            return self._inner.get_events(timeout)
        poll, takes = self._epoll.poll, self._takes
        ends_at = time.perf_counter() + timeout
        while timeout > 0:
            ready = poll(min(timeout, _MAX_SLEEP_S))
            is_taken = False
            for fd, _ in ready:
                if (take := takes.get(fd)) is not None:
                    take()
                    is_taken = True
            # What was taken had made trio's sockets ready too: has anything else?
            if self._runnable or (poll(0) if is_taken else ready):
                break
            timeout = ends_at - time.perf_counter()
        return self._inner.get_events(0)

    def offer(self, fd: int, take: Callable[[], None]) -> None:
        """Have `take` called when `fd` can be read in the loop's sleep, in no task. It must not
        raise, nor move a deadline, and do little. What it leaves there, the end too, is for a task
        that waits for `fd`.
        """
        self._epoll.register(fd, select.EPOLLIN)
        self._takes[fd] = take

    def withdraw(self, fd: int) -> None:
        """Call nobody any more, as must be said before `fd` is closed."""
        if self._takes.pop(fd, None) is not None:
            self._epoll.unregister(fd)


def read_in_sleep() -> None:
    """From now on the running loop reads in its sleep what is offered, if it can be brought to."""
    with suppress(ImportError, AttributeError):
        runner = _runner()
        if runner.is_guest:
            return  # its sleep is in a thread of its own
        runner.io_manager = DirectReads(runner.io_manager, runner.runq)  # type: ignore[assignment]


def direct_reads() -> DirectReads | None:
    """What the running loop reads in its sleep; None if it does not."""
    with suppress(ImportError, AttributeError):
        reads: object = _runner().io_manager
        return reads if isinstance(reads, DirectReads) else None
    return None


def _runner() -> Runner:
    """trio has no public way to it."""
    from trio._core._run import GLOBAL_RUN_CONTEXT  # noqa: PLC0415

    return GLOBAL_RUN_CONTEXT.runner
