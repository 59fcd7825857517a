"""Several child processes as one command.

Owns their life together: starts them, starts one that dies again, stops them all. Must not know
what they run.
"""

import itertools
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Final

import trio

from herma.child import Child
from herma.cli import EXIT_SAID_WHY
from protocol.stopping import stopping

MIN_BACKOFF_S: Final = 0.2
MAX_BACKOFF_S: Final = 10.0
HEALTHY_S: Final = 30.0
"""A child that lived so long starts again with the shortest back-off."""


async def keep_running(children: Sequence[Child]) -> int:
    """Until SIGINT or SIGTERM; the same again hurries the children, which changes nothing here.

    Returns the exit status: 2 if a child said at its first start what is wrong. It is the last that
    a process does: afterwards both signals are ignored.
    """

    def hurry(_number: int) -> None:
        for child in children:
            child.hurry()

    stop = trio.Event()
    with stopping(stop.set, hurry):
        return await _run_all(children, stop)


async def _run_all(children: Sequence[Child], stop: trio.Event) -> int:
    status = 0
    async with trio.open_nursery() as nursery:

        def give_up(child_status: int) -> None:
            nonlocal status
            status = status or child_status
            nursery.cancel_scope.cancel()

        for child in children:
            nursery.start_soon(_keep_running, child, give_up)
        await stop.wait()
        give_up(0)
    return status


async def _keep_running(child: Child, give_up: Callable[[int], None]) -> None:
    """Start the child again when it dies, unless it said at its first start what is wrong. Later
    that may pass: somebody else took its port while it was down. The others serve meanwhile.
    """
    backoff_s = MIN_BACKOFF_S
    for num_starts in itertools.count():
        started_at = trio.current_time()
        status = await child.run()
        if status == EXIT_SAID_WHY and num_starts == 0:
            give_up(status)
            return
        if trio.current_time() - started_at > HEALTHY_S:
            backoff_s = MIN_BACKOFF_S
        how = _signal_name(-status) if status < 0 else f"exit code {status}"
        print(f"herma: {child.name} ended: {how}; again in {backoff_s:g} s", file=sys.stderr)
        await trio.sleep(backoff_s)
        backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)


def _signal_name(number: int) -> str:
    """SIGKILL for 9; the number alone if it has no name here."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
