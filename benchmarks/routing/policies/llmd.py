"""`llmd_precise`: llm-d's scheduler with precise prefix-cache scoring, as its guide configures it.

The profile of llm-d's guide "precise prefix cache aware routing": scorers for the prefix held
(weight 3, block events), KV-cache utilisation (2) and queue length (2); the highest sum wins,
equals by chance. Prefix and queue are scaled between the workers' minimum and maximum; a worker
without any block scores 0. Engine counters are scraped every 50 ms; `speculativeIndexing` is off by
default.
"""

from collections.abc import Sequence
from random import Random
from typing import Final

from benchmarks.routing.policies.base import EventFed, Placed, Setting
from benchmarks.routing.trace import TracedTurn

PREFIX_WEIGHT: Final = 3.0
UTILISATION_WEIGHT: Final = 2.0
QUEUE_WEIGHT: Final = 2.0
SCRAPE_S: Final = 0.05


class LlmdPrecise(EventFed):
    """A weighted sum of scores."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._chance = Random(setting.seed)
        self._scraped_at = -1.0
        self._waiting: list[int] = []
        self._free: list[float] = []

    def arrived(self, turn: TracedTurn, now: float) -> Sequence[Placed]:
        """Place it at once, by counters at most 50 ms old."""
        if self._scraped_at < 0 or now - self._scraped_at >= SCRAPE_S:
            self._scraped_at = now
            loads = [worker.load() for worker in self.setting.workers]
            self._waiting = [load.waiting for load in loads]
            self._free = [load.free_blocks / load.num_blocks for load in loads]
        return super().arrived(turn, now)

    def route(self, turn: TracedTurn) -> int:
        most, least = max(self._waiting), min(self._waiting)
        scores = [
            PREFIX_WEIGHT * prefix
            + UTILISATION_WEIGHT * free
            + QUEUE_WEIGHT * ((most - waiting) / (most - least) if most > least else 1.0)
            for prefix, free, waiting in zip(
                _scaled(self.matched(turn)), self._free, self._waiting, strict=True
            )
        ]
        best = max(scores)
        return self._chance.choice([one for one, score in enumerate(scores) if score == best])


def _scaled(matched: Sequence[int]) -> list[float]:
    """Scale between the minimum and maximum of workers with any value; equals all get 1."""
    hits = [blocks for blocks in matched if blocks]
    if not hits:
        return [0.0] * len(matched)
    least, most = min(hits), max(hits)
    if least == most:
        return [float(blocks > 0) for blocks in matched]
    return [(blocks - least) / (most - least) if blocks else 0.0 for blocks in matched]
