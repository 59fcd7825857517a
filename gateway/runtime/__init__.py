"""Small tools that the gateway's actors share: coalesced ticks, wake-ups, random bytes."""

from gateway.runtime.tick import coalesced_tick, next_tick
from gateway.runtime.wakeup import Wakeup, break_off

__all__ = [
    "Wakeup",
    "break_off",
    "coalesced_tick",
    "next_tick",
]
