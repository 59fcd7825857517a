"""The workers behind the link, and when each was last heard.

Owns the judgement of silence. Must not know clocks (`now` is an argument) or frames.
"""

import math
from dataclasses import dataclass
from typing import Final, final

from protocol.ids import WorkerId

SILENCE_S: Final = 1.0


@dataclass(slots=True)
class Peer:
    """One worker that has registered. `pong` is the last ping that it has answered."""

    name: str
    heard_at: float
    is_welcome: bool = False
    pong: int = 0


@final
class Peers(dict[WorkerId, Peer]):
    """By their identity."""

    def silent_at(self) -> float:
        """When the first of them will have been silent for `SILENCE_S`."""
        return min([peer.heard_at for peer in self.values()], default=math.inf) + SILENCE_S

    def silent(self, now: float) -> list[tuple[WorkerId, float]]:
        """Those that have been silent for so long, and for how many seconds."""
        return [
            (worker_id, now - peer.heard_at)
            for worker_id, peer in self.items()
            if now >= peer.heard_at + SILENCE_S
        ]

    def excuse(self, late_s: float, now: float) -> None:
        """This process could hear no worker for so long: do not count that time as silence."""
        for peer in self.values():
            peer.heard_at = min(now, peer.heard_at + late_s)
