"""Bounds: policies with knowledge that no router can have.

Owns two of them, reported and never compared. `bound_infinite`: all workers share one cache that
never evicts, and each turn goes where the least prompt work waits. `bound_oracle`: real caches, but
the router sees into the engines without delay and knows the length of every answer; it chooses the
earliest first token at the least cost to others.
"""

from benchmarks.routing.policies.base import Baseline
from benchmarks.routing.trace import TracedTurn
from benchmarks.routing.worker import SimWorker


class BoundInfinite(Baseline):
    """Every block ever computed is on every worker."""

    def route(self, turn: TracedTurn) -> int:
        """The least waiting prompt work, then the fewest sequences."""

        def ahead(worker: SimWorker) -> tuple[float, int]:
            return worker.uncached_ahead_s(), worker.num_running + len(worker.waiting)

        return min(self.setting.workers, key=ahead).number


class BoundOracle(Baseline):
    """Knows caches, queues and answer lengths exactly."""

    def route(self, turn: TracedTurn) -> int:
        """The least sum of its own delay and the delay of the sequences that run there."""
        return min(self.setting.workers, key=lambda worker: self._cost_s(turn, worker)).number

    def _cost_s(self, turn: TracedTurn, worker: SimWorker) -> float:
        cost, size = worker.spec.cost, self.setting.block_size
        cached = worker.cache.match(turn.digests)[0] * size
        own_s = cost.chunk_s(cached, max(1, turn.prompt_tokens - cached))
        step_s = cost.decode_s(worker.num_running, 0)
        each_s = cost.sequence_s + cost.context_s * turn.prompt_tokens
        harm_s = len(worker.decoding) * (own_s + min(turn.output_tokens, 512) * each_s)
        return worker.uncached_ahead_s() + self._room_s(turn, worker, step_s) + own_s + harm_s

    def _room_s(self, turn: TracedTurn, worker: SimWorker, step_s: float) -> float:
        """The time until the worker has a place and blocks for it and for the turns ahead of it."""
        size = self.setting.block_size
        num_blocks = sum(-(-one.num_tokens // size) for one in worker.waiting)
        lack = num_blocks + -(-turn.prompt_tokens // size) - worker.cache.num_free
        places = worker.spec.max_seqs - worker.num_running - len(worker.waiting)
        if lack <= 0 and places > 0:
            return 0.0
        waited_steps = 0
        for left, held in worker.remaining():
            waited_steps, lack, places = left, lack - held, places + 1
            if lack <= 0 and places > 0:
                break
        return waited_steps * step_s
