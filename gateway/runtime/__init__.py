"""Waiting, as the gateway's tasks share it, and the memory of the process."""

from gateway.runtime.memory import bound_arenas, resident_bytes, return_memory
from gateway.runtime.tick import coalesced_tick, next_tick
from gateway.runtime.wakeup import Wakeup, break_off

__all__ = [
    "Wakeup",
    "bound_arenas",
    "break_off",
    "coalesced_tick",
    "next_tick",
    "resident_bytes",
    "return_memory",
]
