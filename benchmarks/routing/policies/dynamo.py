"""`dynamo_kv`: NVIDIA Dynamo's KV router with its defaults.

The cost of ai-dynamo/dynamo (KV router documentation): prompt blocks still to be computed on the
worker, this request's uncached ones included, times the overlap weight 1.0, plus the blocks that
its sequences hold; the least wins (temperature 0), equals by chance. Load is the router's own
count: blocks of a request from routing to its end, its prompt work until its first token. The
router's queue (16 x 8,192 prompt tokens on every worker) is left out: to a request, waiting here or
there is the same.
"""

from collections.abc import Sequence
from random import Random
from typing import Final

from benchmarks.routing.policies.base import EventFed, Placed, Setting
from benchmarks.routing.trace import TracedTurn
from benchmarks.routing.worker import WorkerReport

OVERLAP_WEIGHT: Final = 1.0


class DynamoKv(EventFed):
    """Prompt work ahead plus blocks held."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._chance = Random(setting.seed)
        self._prefill_tokens = [0] * setting.num_workers
        self._active_blocks = [0] * setting.num_workers
        self._booked: dict[int, tuple[int, int]] = {}

    def route(self, turn: TracedTurn) -> int:
        """The least cost, which is added to the worker's load."""
        size, uncached = self.setting.block_size, self.uncached(turn)
        blocks = -(-turn.prompt_tokens // size)
        costs = [
            OVERLAP_WEIGHT * (ahead + own) / size + active + blocks
            for ahead, own, active in zip(
                self._prefill_tokens, uncached, self._active_blocks, strict=True
            )
        ]
        least = min(costs)
        worker = self._chance.choice([one for one, cost in enumerate(costs) if cost == least])
        self._prefill_tokens[worker] += uncached[worker]
        self._active_blocks[worker] += blocks
        self._booked[turn.number] = uncached[worker], blocks
        return worker

    def on_report(self, report: WorkerReport, now: float) -> Sequence[Placed]:
        """Remove finished prompts and ended sequences from the load."""
        for number in report.started:
            self._prefill_tokens[report.worker] -= self._booked[number][0]
        for number in report.finished:
            self._active_blocks[report.worker] -= self._booked.pop(number)[1]
        return super().on_report(report, now)
