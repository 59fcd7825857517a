"""Drafting token by token: a layer whose inputs are its own last state and its own last token.

Owns the passes: one over the rows of a step, then one row for each further draft. `mtp.py` and
`eagle3.py` own the layers. Must not know weights.

Row t gets the token at t + 1 and drafts the one at t + 2; its keys and values stand at t.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeAlias, final

import torch
from torch import Tensor

from kernels.attention import NO_ROW, AttentionPlan, PagedPlan, prepared
from kernels.sample import best_tokens
from workers.engine.drafting.captured import Blocks, CapturedDrafts, Taken
from workers.engine.drafting.drafter import Capture, Drafted, DraftStep
from workers.engine.models.description import ModelDescription
from workers.engine.models.kv_cache import KvCache
from workers.engine.models.network import Network

MAX_DEPTH = 15
"""The most drafts in a row. With published heads hardly more than three are accepted."""

PlanRow: TypeAlias = Callable[[int], AttentionPlan | PagedPlan]
"""Plans one row of each sequence, at that distance behind its anchor's position."""


class RecurrentCell(Protocol):
    """The layer that is run once over a step's rows, then once for each further draft."""

    name: str
    config: ModelDescription
    taps: tuple[int, ...]
    reads_hidden: bool
    num_bytes: int
    like: Tensor

    def first_states(self, kept: Tensor) -> Tensor:
        """The states [T, hidden] of the target's rows, from what is kept of them."""

    def run(
        self,
        ids: Tensor,
        states: Tensor,
        plan: AttentionPlan | PagedPlan,
        cache: KvCache,
        rows: Tensor | None,
    ) -> Tensor:
        """The layer's output [T, hidden] for tokens int64 [T] and states, or of `rows` only."""

    def next_states(self, out: Tensor) -> Tensor:
        """The states for the next draft, from the layer's output."""

    def logits(self, out: Tensor) -> Tensor:
        """The logits [rows, drafted vocabulary] of outputs."""

    def token_ids(self, ids: Tensor) -> Tensor:
        """The target's ids of tokens of the drafted vocabulary."""


@final
class RecurrentDrafter:
    """See `workers.engine.drafting.drafter.Drafter`."""

    def __init__(self, cell: RecurrentCell, target: Network) -> None:
        self.max_depth = MAX_DEPTH
        self.name = cell.name
        self.taps = cell.taps
        self.reads_hidden = cell.reads_hidden
        self.num_bytes = cell.num_bytes
        self.token_bytes = cell.config.token_numbers * cell.like.element_size()
        self._cell = cell
        # The target's plans are prepared for its own heads.
        self._fits = _heads(cell.config) == _heads(target.config)
        self._place = target.place
        self.cuts_anew = not self._fits
        self._cache: KvCache | None = None
        self._captured = CapturedDrafts(self._pass, MAX_DEPTH, cell.like.device, reads_next=True)

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
            self._cell.config,
            num_blocks - 1,
            block_size,
            like.device,
            like.dtype,
            place=self._place,
        )

    @property
    def has_pending_captures(self) -> bool:
        """See `CapturesDrafts`."""
        return self._captured.has_pending

    def prepare(self, capture: Capture) -> bool:
        """See `CapturesDrafts`."""
        return self._captured.prepare(capture)

    def draft(self, step: DraftStep) -> Drafted:
        """See `Drafter`."""
        if self._fits and isinstance(step.plan, PagedPlan):
            tables = step.plan.table_rows[step.rows]
            positions = step.anchor_positions.int()
            blocks = Blocks(step.anchors, positions, tables, step.rows)
            drafted = self._captured.run(step, blocks)
            if drafted is not None:
                return drafted
        assert step.kept is not None
        states = self._cell.first_states(step.kept)
        plan = self._fitting(step.plan)
        out = self._cell.run(step.next_ids, states, plan, self.cache, step.rows)
        if not step.seqs or not step.depth:
            return Drafted(step.anchors.new_empty((len(step.seqs), 0)))
        return self._drafted(out, step.depth, lambda place: step.plan_rows(1, place))

    def _pass(self, taken: Taken, blocks: Blocks, depth: int) -> Drafted:
        """A pass over paged rows, whose positions the host need not know."""
        cell, own = self._cell, blocks if depth else Blocks(*[part[:0] for part in blocks])
        # Prepared again: each step replaces what decodes share.
        plan = self._prepared(taken.plan)
        states = cell.first_states(taken.kept)
        out = cell.run(taken.next_ids, states, plan, self.cache, own.rows)
        if not depth:
            return Drafted(blocks.anchors.new_empty((len(blocks.anchors), 0)))
        num_seqs, tables = len(blocks.rows), taken.plan.block_tables

        def plan_row(offset: int) -> PagedPlan:
            positions = (blocks.positions + offset).masked_fill(blocks.positions < 0, NO_ROW)
            return PagedPlan(positions, blocks.table_rows, tables, num_seqs)

        return self._drafted(out, depth, plan_row)

    def _drafted(self, out: Tensor, depth: int, plan_row: PlanRow) -> Drafted:
        """Make `depth` drafts behind the rows whose outputs are `out`."""
        cell = self._cell
        ids: list[Tensor] = []
        confidence: list[Tensor] = []
        for place in range(depth):
            if place:
                plan = self._fitting(plan_row(place - 1))
                out = cell.run(ids[-1], cell.next_states(out), plan, self.cache, None)
            best, probability = best_tokens(cell.logits(out))
            ids.append(cell.token_ids(best))
            confidence.append(probability)
        return Drafted(torch.stack(ids, 1), torch.stack(confidence, 1))

    def _fitting(self, plan: AttentionPlan | PagedPlan) -> AttentionPlan | PagedPlan:
        """The plan, prepared for the drafter's heads."""
        if isinstance(plan, AttentionPlan) or (self._fits and plan.shares is not None):
            return plan
        return self._prepared(plan if self._fits else replace(plan, work=None, runs=()))

    def _prepared(self, plan: PagedPlan) -> PagedPlan:
        cell, (keys, _) = self._cell, self.cache.layers[0]
        if cell.config.is_latent:
            return plan
        return prepared(plan, cell.config.attention.num_heads, keys, cell.like.dtype)


def _heads(config: ModelDescription) -> tuple[int, int, int]:
    heads = config.attention
    return heads.num_heads, heads.num_kv_heads, heads.head_dim
