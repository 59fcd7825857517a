"""`aibrix_prefix`: AIBrix's `prefix-cache` routing with its defaults.

Owns the policy of vllm-project/aibrix (`prefix_cache.go`): when the requests in flight differ by
more than 8, the fewest requests; else by share of the prompt that was routed there before, then by
requests, the first whose requests are at most the mean plus one standard deviation; else the
fewest requests. Its hash table holds 200,000 blocks of 16, far more than an engine.
"""

from statistics import fmean, pstdev
from typing import Final

from benchmarks.routing.policies.base import Baseline, Setting
from benchmarks.routing.policies.routed_blocks import RoutedBlocks
from benchmarks.routing.trace import TracedTurn

IMBALANCE_ABS: Final = 8
LOAD_FACTOR: Final = 1
TABLE_TOKENS: Final = 200_000 * 16


class AibrixPrefix(Baseline):
    """Affinity among workers that are not busier than usual."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._table = RoutedBlocks(setting.num_workers, TABLE_TOKENS // setting.block_size)

    def route(self, turn: TracedTurn) -> int:
        """The rule of the module's docstring; the prompt is remembered in any case."""
        worker = self._choose(turn)
        self._table.insert(turn.digests, worker)
        return worker

    def _choose(self, turn: TracedTurn) -> int:
        in_flight = self.in_flight
        if max(in_flight) - min(in_flight) > IMBALANCE_ABS:
            return self.least_loaded()
        matched = self._table.matched(turn.digests)
        limit = fmean(in_flight) + LOAD_FACTOR * pstdev(in_flight)
        holders = [worker for worker, blocks in enumerate(matched) if blocks]
        holders.sort(key=lambda worker: (-matched[worker], in_flight[worker]))
        for worker in holders:
            if in_flight[worker] <= limit:
                return worker
        return self.least_loaded()
