"""First come, first served: one queue before the places of one worker.

Owns the yardstick of the fairness experiment. Must not be in a table: it serves one worker.
"""

from collections.abc import Sequence

from benchmarks.routing.policies.base import Baseline, Placed, Setting
from benchmarks.routing.trace import Turn
from benchmarks.routing.worker import Report


class Fifo(Baseline):
    """One queue before a worker's places, first come first served."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._waiting: list[int] = []

    def route(self, turn: Turn) -> int:
        """There is one worker."""
        return 0

    def arrived(self, turn: Turn, now: float) -> Sequence[Placed]:
        """Last in the queue."""
        self._waiting.append(turn.number)
        return self._fill()

    def heard(self, report: Report, now: float) -> Sequence[Placed]:
        """Whoever is first takes the place of whoever is done."""
        super().heard(report, now)
        return self._fill()

    def _fill(self) -> list[Placed]:
        num_free = self.setting.spec.max_seqs - self.in_flight[0]
        first, self._waiting = self._waiting[:num_free], self._waiting[num_free:]
        self.in_flight[0] += len(first)
        return [Placed(number, 0) for number in first]
