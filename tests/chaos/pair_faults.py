"""What is done to one of two gateways, and to the ledger that they share.

Owns the faults by name and what each may cost. Must not know clients nor how times are measured.
"""

import signal
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import trio

from tests.chaos.pair import HOSTS, Pair

PAUSE_S: Final = 3.0
"""How long a gateway is stopped, a link cut or the ledger locked."""


@dataclass(frozen=True, slots=True)
class PairFault:
    """`hurt` hits the gateway of that host, `heal` ends it. `num_freed`: so many workers give the
    gateway up; 0: none may. `cuts`: connections of its clients may end.
    """

    name: str
    hurt: Callable[[Pair, int], Awaitable[None]]
    heal: Callable[[Pair, int], Awaitable[None]]
    num_freed: int
    cuts: bool


async def _kill(pair: Pair, host: int) -> None:
    pair.signal_gateway(host, signal.SIGKILL)


async def _nothing(pair: Pair, host: int) -> None:
    """`herma up` starts it again."""


async def _stop(pair: Pair, host: int) -> None:
    pair.signal_gateway(host, signal.SIGSTOP)


async def _go_on(pair: Pair, host: int) -> None:
    await trio.sleep(PAUSE_S)
    pair.signal_gateway(host, signal.SIGCONT)


def _one_link(host: int) -> tuple[int, str]:
    """Between the gateway and the worker of the other host."""
    return host, f"w{len(HOSTS) - host}"


async def _cut_link(pair: Pair, host: int) -> None:
    pair.links[_one_link(host)].cut()


async def _swallow_link(pair: Pair, host: int) -> None:
    pair.links[_one_link(host)].swallow()


async def _heal_link(pair: Pair, host: int) -> None:
    await trio.sleep(PAUSE_S)
    pair.links[_one_link(host)].heal()


async def _lock_ledger(pair: Pair, host: int) -> None:
    """Lock the ledger by a transaction of another program."""

    def hold() -> None:
        with closing(sqlite3.connect(pair.ledger, isolation_level=None)) as stranger:
            stranger.execute("PRAGMA busy_timeout = 10000")
            stranger.execute("BEGIN IMMEDIATE")
            time.sleep(PAUSE_S)
            stranger.execute("ROLLBACK")

    await trio.to_thread.run_sync(hold)


async def _lose_ledger(pair: Pair, host: int) -> None:
    """The file is gone, and the gateway starts anew: it must not begin another."""
    pair.ledger.rename(pair.ledger.with_name("away.sqlite"))
    pair.signal_gateway(host, signal.SIGKILL)


async def _find_ledger(pair: Pair, host: int) -> None:
    await trio.sleep(PAUSE_S)
    pair.ledger.with_name("away.sqlite").rename(pair.ledger)


PAIR_FAULTS: Final = {
    fault.name: fault
    for fault in (
        PairFault("gateway-killed", _kill, _nothing, len(HOSTS), cuts=True),
        PairFault("gateway-stopped", _stop, _go_on, len(HOSTS), cuts=True),
        PairFault("gateway-cut-off", _cut_link, _heal_link, 1, cuts=False),
        PairFault("gateway-unheard", _swallow_link, _heal_link, 1, cuts=False),
        PairFault("ledger-locked", _lock_ledger, _nothing, 0, cuts=False),
        PairFault("ledger-gone", _lose_ledger, _find_ledger, len(HOSTS), cuts=True),
    )
}
