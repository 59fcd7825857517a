"""Coalesced ticks: periodic tasks wake together.

Owns when the next tick of a period is. Must not know what waits for it.

Waking an idle process costs ten times the work that it then does, because its data has left the CPU
caches. Tasks that wake together pay that cost once, so their periods are multiples of each other.
"""

import math
from typing import Final

import trio

_TOO_SOON: Final = 0.25
"""A tick that is nearer than this share of the period is skipped."""


def next_tick(now: float, period_s: float) -> float:
    """The next multiple of `period_s`, 0.25 to 1.25 periods after `now`."""
    return (math.floor(now / period_s + _TOO_SOON) + 1) * period_s


async def coalesced_tick(period_s: float) -> None:
    """Return at the next tick."""
    await trio.sleep_until(next_tick(trio.current_time(), period_s))
