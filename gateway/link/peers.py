"""The registered workers, and when each was last heard.

Owns which of them are silent. Must not know clocks (`now` is an argument) or frames.
"""

import math
from dataclasses import dataclass, field
from typing import Final, final

from protocol.ids import WorkerId
from protocol.messages import Retain

SILENCE_S: Final = 1.0


@dataclass(slots=True)
class Peer:
    """One worker that has registered. `pong` is the nonce of the last ping that it answered. Its
    engine `retains` if it takes `Retain`; `expectations` go with the next frames for it.
    """

    name: str
    heard_at: float
    is_welcome: bool = False
    pong: int = 0
    retains: bool = False
    expectations: list[Retain] = field(default_factory=list)


@final
class Peers(dict[WorkerId, Peer]):
    """The peers by worker identity."""

    def silent_at(self) -> float:
        """When the first peer will have been silent for `SILENCE_S`; infinity without peers."""
        return min([peer.heard_at for peer in self.values()], default=math.inf) + SILENCE_S

    def silent(self, now: float) -> list[tuple[WorkerId, float]]:
        """The workers that have been silent for at least `SILENCE_S`, each with its seconds."""
        return [
            (worker_id, now - peer.heard_at)
            for worker_id, peer in self.items()
            if now >= peer.heard_at + SILENCE_S
        ]

    def excuse(self, late_s: float, now: float) -> None:
        """Do not count the last `late_s` seconds as silence: this process could not receive."""
        for peer in self.values():
            peer.heard_at = min(now, peer.heard_at + late_s)
