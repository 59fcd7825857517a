"""The draft passes behind steps on a card.

Owns which rows of a step the drafter takes in, for each way to launch a step, and where its drafts
go: into the tables, where the next step reads them. An engine without a drafter has `NoDrafts`,
with the same methods. Must not know the drafters' networks, nor how a step is chosen.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from kernels.attention import PagedPlan, blocks_at
from kernels.pinned import to_device
from workers.engine.graphs.buckets import GraphBucket
from workers.engine.graphs.capture_order import Decode
from workers.engine.graphs.decode_step import DecodeStep
from workers.engine.graphs.mixed_step import MixedStep
from workers.engine.memory.out_of_memory import is_out_of_memory, shortage
from workers.engine.models.kv_cache import KvCache
from workers.engine.models.network import Network
from workers.engine.step.batch import PagedBatch, PagedRows, SequenceState
from workers.engine.step.draft_pass import DraftPass, Kept, NoDraftPass, StepRows, following_ids
from workers.engine.step.sampler import Picked
from workers.engine.step.states import States
from workers.engine.step.tables import SequenceTables
from workers.scheduler import Chunk, DraftTiming

Draft: TypeAlias = Callable[[Picked], None]
"""Launches the draft pass behind a step, given the tokens that the step has drawn."""


@final
class DeviceDrafts:
    """The draft passes of an engine with a drafter."""

    def __init__(
        self,
        draft_pass: DraftPass,
        model: Network,
        cache: KvCache,
        tables: SequenceTables,
        decode_step: DecodeStep,
        mixed_step: MixedStep,
        *,
        is_hybrid: bool,
    ) -> None:
        """`is_hybrid`: the network has recurrent states. `forward` is that of `draft_pass`."""
        self.verifies_all = not is_hybrid
        self._moves = not (is_hybrid or model.invariant or draft_pass.cuts_anew)
        self._pass = draft_pass
        self.forward = draft_pass.forward
        self._model = model
        self._cache = cache
        self._tables = tables
        self._decode_step = decode_step
        self._mixed_step = mixed_step

    def can_move(self, *, verifies: bool) -> bool:
        """Whether the card itself can move the chunks that may move. It can only in graphs that
        verify, and not with `invariant`, recurrent states or a drafter that `cuts_anew`.
        """
        return self._moves and verifies

    def take_timing(self) -> Callable[[], DraftTiming]:
        """See `DraftPass`."""
        return self._pass.take_timing()

    def behind_decodes(self, graph: Decode, num_rows: int, chunks: Sequence[Chunk]) -> Draft:
        """The pass behind `num_rows` decodes; nothing if the step itself takes them in."""
        if self._decode_step.takes_in:
            return draft_nothing
        # The host knows no token behind the last ones.
        rows = self._decode_step.step_rows(graph, num_rows, np.zeros(num_rows, np.int32))
        return partial(self._draft, rows, self._pass.kept(graph.num_rows), chunks)

    def behind_bucket(
        self, bucket: GraphBucket, rows: PagedRows, states: dict[int, SequenceState]
    ) -> Draft:
        """The pass behind a step in a bucket."""
        following = None
        if not self._pass.takes_decodes:
            following = following_ids(rows.chunks, states)
        step_rows = self._mixed_step.step_rows(bucket, rows, following)
        return partial(self._draft, step_rows, self._pass.kept(bucket.num_rows), rows.sampling)

    def behind_batch(
        self, token_ids: Tensor, batch: PagedBatch, kept: Kept, states: dict[int, SequenceState]
    ) -> Draft:
        """The pass behind a step without a bucket, whose forward pass has `kept` something."""
        following = following_ids(batch.chunks, states).astype(np.int32)
        rows = StepRows(
            token_ids.long(),
            to_device(following, self._model.device).long(),
            batch.plan.positions.long(),
            batch.last_rows,
            batch.sampled_positions.long(),
            batch.plan,
        )
        return partial(self._draft, rows, kept, batch.sampling)

    @torch.inference_mode()
    def _draft(self, rows: StepRows, kept: Kept, sampling: Sequence[Chunk], picked: Picked) -> None:
        """Let the drafter take the step in, and store its drafts where the next step reads them."""
        try:
            chunks, drafted = self._pass.draft(rows, kept, picked, sampling, self._plan_rows)
            if chunks:
                tables = self._tables_of(chunks).long()
                self._tables.drafts[tables, : drafted.ids.shape[1]] = drafted.ids.int()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            # The step itself is done. The next step verifies old drafts, which are wrong and change
            # nothing.
            print(f"no memory to draft: {shortage(error)}", file=sys.stderr)

    def _plan_rows(self, chunks: Sequence[Chunk], positions: Tensor, num_rows: int) -> PagedPlan:
        tables, block_tables = self._tables_of(chunks), self._tables.block_tables
        if num_rows == 1:
            plan = PagedPlan(positions.int(), tables, block_tables, len(chunks))
            return self._model.prepared(plan, self._cache)
        keys, _ = self._cache.layers[0]
        num_heads, dtype = (
            self._model.config.attention.num_heads,
            self._model.weights.embedding.dtype,
        )
        return blocks_at(positions.int(), tables, block_tables, num_rows, num_heads, keys, dtype)

    def _tables_of(self, chunks: Sequence[Chunk]) -> Tensor:
        indices = [self._tables.rows[chunk.seq].index for chunk in chunks]
        return to_device(np.array(indices, np.int32), self._model.device)


@final
class NoDrafts:
    """`DeviceDrafts` of an engine without a drafter: nothing is launched behind a step."""

    verifies_all: Final = False

    def __init__(self, draft_pass: NoDraftPass) -> None:
        self.forward = draft_pass.forward

    def can_move(self, *, verifies: bool) -> bool:  # noqa: ARG002 - the drafts'
        """True: only a drafter leaves the host without positions."""
        return True

    def take_timing(self) -> Callable[[], DraftTiming]:
        """No time."""
        return DraftTiming

    def behind_decodes(self, graph: Decode, num_rows: int, chunks: Sequence[Chunk]) -> Draft:
        """No pass."""
        del graph, num_rows, chunks
        return draft_nothing

    def behind_bucket(
        self, bucket: GraphBucket, rows: PagedRows, states: dict[int, SequenceState]
    ) -> Draft:
        """No pass."""
        del bucket, rows, states
        return draft_nothing

    def behind_batch(
        self, token_ids: Tensor, batch: PagedBatch, kept: Kept, states: dict[int, SequenceState]
    ) -> Draft:
        """No pass."""
        del token_ids, batch, kept, states
        return draft_nothing


def drafts_of(
    draft_pass: DraftPass | NoDraftPass,
    model: Network,
    cache: KvCache,
    tables: SequenceTables,
    decode_step: DecodeStep,
    mixed_step: MixedStep,
    states: States,
) -> DeviceDrafts | NoDrafts:
    """The draft passes of an engine, by the forward passes of `draft_pass`."""
    if isinstance(draft_pass, NoDraftPass):
        return NoDrafts(draft_pass)
    is_hybrid = states.has_any
    return DeviceDrafts(
        draft_pass, model, cache, tables, decode_step, mixed_step, is_hybrid=is_hybrid
    )


def draft_nothing(picked: Picked) -> None:
    """No draft pass."""
