"""`lmetric`: uncached prompt tokens times batch size, the least wins.

The score of LMetric (Zhang et al., "Simple is Better: Multiplication May Be All You Need for LLM
Request Scheduling", arXiv 2603.15202). The batch is the requests in flight on the worker, this one
included, so that caches distinguish idle workers.
"""

from benchmarks.routing.policies.base import EventFed
from benchmarks.routing.trace import TracedTurn


class LMetric(EventFed):
    """The product, without weights."""

    def route(self, turn: TracedTurn) -> int:
        """The least product; the least busy among equals."""
        uncached = self.uncached(turn)

        def score(worker: int) -> tuple[int, int]:
            batch = self.in_flight[worker] + 1
            return uncached[worker] * batch, batch

        return min(range(self.setting.num_workers), key=score)
