"""`smg_cache_aware`: the SGLang and SMG gateways' `cache_aware` with its command line's defaults.

The policy of sgl-project/sglang's model gateway and of SMG for workers over HTTP
(`cache_aware.rs`): cache threshold 0.3, balance thresholds 64 requests and 1.5 times, a prefix tree
of 2^26 characters. When requests in flight are out of balance, the least busy worker; else the
worker of the longest routed prefix if more than 0.3 of the prompt matches, else the least busy one.
"""

from typing import Final

from benchmarks.routing.policies.base import Baseline, Setting
from benchmarks.routing.policies.routed_blocks import RoutedBlocks
from benchmarks.routing.trace import TracedTurn

CACHE_THRESHOLD: Final = 0.3
BALANCE_ABS: Final = 64
BALANCE_REL: Final = 1.5
MAX_TREE_CHARACTERS: Final = 2**26
CHARACTERS_PER_TOKEN: Final = 4


class SmgCacheAware(Baseline):
    """Affinity until the load is out of balance."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        max_tokens = MAX_TREE_CHARACTERS // CHARACTERS_PER_TOKEN
        self._tree = RoutedBlocks(setting.num_workers, max_tokens // setting.block_size)

    def route(self, turn: TracedTurn) -> int:
        """The rule of the module's docstring; the prompt is remembered in any case."""
        worker = self._choose(turn)
        self._tree.insert(turn.digests, worker)
        return worker

    def _choose(self, turn: TracedTurn) -> int:
        most, least = max(self.in_flight), min(self.in_flight)
        if most - least > BALANCE_ABS and most > BALANCE_REL * least:
            return self.least_loaded()
        match = self._tree.longest(turn.digests)
        share = match.num_blocks * self.setting.block_size / turn.prompt_tokens
        if match.worker is not None and share > CACHE_THRESHOLD:
            return match.worker
        return self.least_loaded()
