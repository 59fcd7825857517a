"""First come, first served: one queue before the places of one worker.

The baseline of the fairness experiment. It serves one worker, so it is in no table.
"""

from collections.abc import Sequence

from benchmarks.routing.policies.base import Baseline, Placed, Setting
from benchmarks.routing.trace import TracedTurn
from benchmarks.routing.worker import WorkerReport


class Fifo(Baseline):
    """One queue before a worker's places."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._waiting: list[int] = []

    def route(self, turn: TracedTurn) -> int:
        return 0

    def arrived(self, turn: TracedTurn, now: float) -> Sequence[Placed]:
        self._waiting.append(turn.number)
        return self._fill()

    def on_report(self, report: WorkerReport, now: float) -> Sequence[Placed]:
        """The first in the queue takes the place of each finished turn."""
        super().on_report(report, now)
        return self._fill()

    def _fill(self) -> list[Placed]:
        num_free = self.setting.spec.max_seqs - self.in_flight[0]
        first, self._waiting = self._waiting[:num_free], self._waiting[num_free:]
        self.in_flight[0] += len(first)
        return [Placed(number, 0) for number in first]
