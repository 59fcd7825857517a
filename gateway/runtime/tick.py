"""The beat to which periodic tasks wake.

Owns when the next beat of a period is. Must not know who keeps it.

Tasks that slept for periods of their own would each wake the process at a moment of its own. To
wake an idle process costs ten times what is done then, as all that it touches has left the caches:
those that wake together pay it once. So periods are multiples of each other.
"""

import math
from typing import Final

import trio

_TOO_SOON: Final = 0.25
"""A beat that is nearer than this part of the period is the one just kept, or as good as."""


def next_tick(now: float, period_s: float) -> float:
    """When to do again what was done at `now`: in 0.25 to 1.25 periods, from then on in one."""
    return (math.floor(now / period_s + _TOO_SOON) + 1) * period_s


async def coalesced_tick(period_s: float) -> None:
    """Return at the next beat."""
    await trio.sleep_until(next_tick(trio.current_time(), period_s))
