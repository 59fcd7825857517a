"""Drafting token by token: a layer that is given its own last state and its own last token.

Owns the passes: one over the rows of a step, then one row for each further draft. What a layer
makes of its inputs is an MTP head's (`mtp.py`) or EAGLE-3's (`eagle3.py`). Must not know weights.

Row t is given the token at t + 1 and drafts the one at t + 2; its keys and values stand at t.
"""

from dataclasses import replace
from typing import Protocol, final

import torch
from torch import Tensor

from kernels.attention import AttentionPlan, PagedPlan, prepared
from kernels.sample import best_tokens
from workers.engine.drafting.drafter import Drafted, DraftStep
from workers.engine.models.description import ModelConfig
from workers.engine.models.kv_cache import KvCache
from workers.engine.models.network import Network

MAX_DEPTH = 15
"""Drafts behind one another; of published heads hardly more than three are accepted."""


class Cell(Protocol):
    """What is run again and again."""

    name: str
    config: ModelConfig
    taps: tuple[int, ...]
    reads_hidden: bool
    num_bytes: int
    like: Tensor

    def first_states(self, step: DraftStep) -> Tensor:
        """The states [T, hidden] of the target's rows."""

    def run(
        self,
        ids: Tensor,
        states: Tensor,
        plan: AttentionPlan | PagedPlan,
        cache: KvCache,
        rows: Tensor | None,
    ) -> Tensor:
        """The layer's output [T, hidden] of tokens int64 [T] and states, or of `rows` only."""

    def next_states(self, out: Tensor) -> Tensor:
        """What an output is as a state."""

    def logits(self, out: Tensor) -> Tensor:
        """[rows, drafted vocabulary]."""

    def token_ids(self, ids: Tensor) -> Tensor:
        """The target's tokens."""


@final
class RecurrentDrafter:
    """See `workers.engine.drafting.drafter.Drafter`."""

    def __init__(self, cell: Cell, target: Network) -> None:
        self.max_depth = MAX_DEPTH
        self.name = cell.name
        self.taps = cell.taps
        self.reads_hidden = cell.reads_hidden
        self.num_bytes = cell.num_bytes
        self.token_bytes = cell.config.token_numbers * cell.like.element_size()
        self._cell = cell
        # Plans of the target are prepared for its heads.
        self._fits = _heads(cell.config) == _heads(target.config)
        self._cache: KvCache | None = None

    @property
    def cache(self) -> KvCache:
        """Its keys and values."""
        assert self._cache is not None  # `take_cache` comes first
        return self._cache

    @property
    def take_in(self) -> None:
        """See `Drafter`."""
        return

    def take_cache(self, num_blocks: int, block_size: int) -> None:
        """See `Drafter`."""
        like = self._cell.like
        self._cache = KvCache(
            self._cell.config, num_blocks - 1, block_size, like.device, like.dtype
        )

    def draft(self, step: DraftStep) -> Drafted:
        """See `Drafter`."""
        cell, cache = self._cell, self.cache
        states = cell.first_states(step)
        out = cell.run(step.next_ids, states, self._fitting(step.plan), cache, step.rows)
        num_seqs = len(step.seqs)
        if not num_seqs or not step.depth:
            return Drafted(step.anchors.new_empty((num_seqs, 0)))
        ids: list[Tensor] = []
        confidence: list[Tensor] = []
        for place in range(step.depth):
            if place:
                plan = self._fitting(step.plan_rows(1, place - 1))
                out = cell.run(ids[-1], cell.next_states(out), plan, cache, None)
            best, probability = best_tokens(cell.logits(out))
            ids.append(cell.token_ids(best))
            confidence.append(probability)
        return Drafted(torch.stack(ids, 1), torch.stack(confidence, 1))

    def _fitting(self, plan: AttentionPlan | PagedPlan) -> AttentionPlan | PagedPlan:
        """The plan for heads of our own."""
        if self._fits or isinstance(plan, AttentionPlan):
            return plan
        cell, (keys, _) = self._cell, self.cache.layers[0]
        bare = replace(plan, work=None, shares=None, runs=())
        return prepared(bare, cell.config.attention.num_heads, keys, cell.like.dtype)


def _heads(config: ModelConfig) -> tuple[int, int, int]:
    heads = config.attention
    return heads.num_heads, heads.num_kv_heads, heads.head_dim
