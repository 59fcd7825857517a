"""Waiting, as the gateway's tasks share it: coalesced ticks and wake-ups."""

from gateway.runtime.tick import coalesced_tick, next_tick
from gateway.runtime.wakeup import Wakeup, break_off

__all__ = [
    "Wakeup",
    "break_off",
    "coalesced_tick",
    "next_tick",
]
