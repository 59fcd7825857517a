"""A thread that sends a heartbeat and the loop's state every 200 ms.

Owns the shared status: plain attributes written by the loop's thread only, so that a heartbeat
costs the loop nothing. Must not know what a step does.
"""

import threading
from dataclasses import dataclass
from typing import Final

from workers.ipc import SUPERVISOR, Heartbeat, StartProgress, encode_control
from workers.loop.channel import EngineChannel

BEAT_EVERY_S: Final = 0.2


@dataclass(slots=True)
class EngineStatus:
    """The loop's state. One writer (the loop), one reader (the heartbeat)."""

    step: int = 0
    busy: bool = False
    phase: str = ""
    longest_step_s: float = 0.0
    expected_step_s: float = 0.0


class Reporter:
    """Declares long operations: `report(phase, fraction, detail)` before each of them."""

    def __init__(self, channel: EngineChannel, status: EngineStatus) -> None:
        self._channel = channel
        self._status = status

    def __call__(self, phase: str, fraction: float, detail: str = "") -> None:
        self._status.phase = phase
        progress = StartProgress(phase, fraction, detail)
        self._channel.send([(SUPERVISOR, encode_control(progress))])


def start_heartbeats(channel: EngineChannel, status: EngineStatus) -> None:
    """Heartbeat from a daemon thread until the process ends."""
    tick = threading.Event()

    def send_all() -> None:
        while not tick.wait(BEAT_EVERY_S):
            message = Heartbeat(
                status.step,
                status.busy,
                status.phase,
                status.longest_step_s,
                status.expected_step_s,
            )
            channel.send([(SUPERVISOR, encode_control(message))])

    threading.Thread(target=send_all, name="heartbeat", daemon=True).start()
