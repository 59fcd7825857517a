"""Steps on a card: started while the one before is still computed.

Owns the choice between a captured decode and a mixed step, and what is sent to the card for each.
Must not know plans, nor what a kernel does. Sampled tokens stay in the sequence tables; the host
reads a copy of them a step later.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, final

import numpy as np
import torch
from torch import Tensor

from kernels.attention import NO_ROW
from workers.core.plan import Chunk
from workers.engine.batch import ON_CARD, PagedBatch, make_paged_batch, to_device
from workers.engine.draws import Kind
from workers.engine.graphs import DecodeGraphs
from workers.engine.kv_cache import KvCache
from workers.engine.models.qwen3 import Qwen3
from workers.engine.sampler import Picked, Sampler
from workers.engine.sequences import SequenceState
from workers.engine.steps import Launched, fetch
from workers.engine.tables import SequenceTables, TableRow


@final
class DeviceSteps:
    """`workers.engine.steps.Steps` for CUDA; on a CPU the same, without graphs, for tests."""

    lookahead: Final = 1

    def __init__(self, model: Qwen3, cache: KvCache, max_rows: int, context_length: int) -> None:
        self._model = model
        self._cache = cache
        self._device = model.device
        max_blocks = -(-context_length // cache.block_size)
        self._tables = SequenceTables(max_rows, max_blocks, cache.dummy_block, self._device)
        self._sampler = Sampler(model.config.vocab_size, max_rows, self._device)
        self._graphs = DecodeGraphs(model, cache, self._tables, self._sampler.draws, max_rows)

    def start(self, states: Sequence[SequenceState]) -> None:
        """See `Steps`."""
        self._tables.start([state.seq for state in states])

    def end(self, seqs: Sequence[int]) -> None:
        """See `Steps`."""
        self._tables.end(seqs)
        self._sampler.forget(seqs)

    @torch.inference_mode()
    def launch(self, chunks: Sequence[Chunk], states: dict[int, SequenceState]) -> Launched | None:
        """See `Steps`."""
        rows = self._bring_up_to_date(chunks)
        if all(
            chunk.length == 1 and row.next_position == chunk.start
            for chunk, row in zip(chunks, rows, strict=True)
        ):
            picked: Picked | None = self._decode(chunks, rows, states)
        else:
            picked = self._mixed(chunks, states)
        for chunk, row in zip(chunks, rows, strict=True):
            row.next_position = chunk.start + chunk.length if chunk.samples else -1
        return None if picked is None else fetch(picked)

    @property
    def is_wishing(self) -> bool:
        """See `Steps`."""
        return self._graphs.is_wishing

    @torch.inference_mode()
    def prepare(self, *, wished_only: bool) -> bool:
        """See `Steps`."""
        return self._graphs.prepare(wished_only=wished_only)

    @torch.inference_mode()
    def hidden(
        self, chunks: Sequence[Chunk], states: dict[int, SequenceState]
    ) -> list[tuple[Chunk, Tensor]]:
        """See `Steps`."""
        self._bring_up_to_date(chunks)
        batch = self._batch(chunks, states)
        parts = torch.split(self._forward(batch, None), [chunk.length for chunk in batch.chunks])
        return list(zip(batch.chunks, parts, strict=True))

    def _bring_up_to_date(self, chunks: Sequence[Chunk]) -> list[TableRow]:
        """The tables' rows of the chunks; what changed in them is sent."""
        updates: list[int] = []
        rows = []
        for chunk in chunks:
            row = self._tables.rows[chunk.seq]
            if row.block_ids is not chunk.block_ids:
                row.change(chunk.block_ids, updates)
            rows.append(row)
        if updates:
            self._tables.write(to_device(np.array(updates, np.int32), self._device))
        return rows

    def _decode(
        self, chunks: Sequence[Chunk], rows: Sequence[TableRow], states: dict[int, SequenceState]
    ) -> Picked:
        num_rows = len(chunks)
        members = [states[chunk.seq] for chunk in chunks]
        self._sampler.draws.arrange(members)
        kind = self._sampler.draws.kind
        size = self._graphs.size_for(num_rows, kind)
        sent = np.zeros(self._graphs.rows.shape, np.int32)
        sent[0, :num_rows] = [chunk.start for chunk in chunks]
        sent[0, num_rows:] = NO_ROW
        sent[1, :num_rows] = [row.index for row in rows]
        sent[1, num_rows:] = self._tables.dummy_row
        self._graphs.rows.copy_(to_device(sent, self._device), non_blocking=True)
        result = self._graphs.run(size, kind)[:num_rows]
        if kind is not Kind.GENERAL:
            return Picked(tuple([state.seq for state in members]), result)
        positions, table_rows = self._graphs.rows[:, :num_rows].unbind()
        return self._sample(result, members, positions + 1, table_rows.long())

    def _mixed(self, chunks: Sequence[Chunk], states: dict[int, SequenceState]) -> Picked | None:
        batch = self._batch(chunks, states)
        hidden = self._forward(batch, batch.last_rows)
        if not batch.sampling:
            return None
        logits = self._model.logits(hidden)
        members = [states[chunk.seq] for chunk in batch.sampling]
        return self._sample(logits, members, batch.sampled_positions, batch.table_rows)

    def _batch(self, chunks: Sequence[Chunk], states: dict[int, SequenceState]) -> PagedBatch:
        block_size = self._cache.block_size
        prepare = partial(self._model.prepared, cache=self._cache)
        return make_paged_batch(chunks, states, self._tables, block_size, prepare)

    def _forward(self, batch: PagedBatch, rows: Tensor | None) -> Tensor:
        held = self._tables.last_token[batch.plan.table_rows.long()]
        tokens = torch.where(batch.token_ids == ON_CARD, held, batch.token_ids)
        # A sequence whose logits were no numbers holds -1; its chunk must not fault the others.
        hidden = self._model.embed(tokens.clamp_(min=0))
        return self._model.forward(hidden, batch.plan, self._cache, rows)

    def _sample(
        self,
        logits: Tensor,
        members: Sequence[SequenceState],
        positions: Tensor,
        table_rows: Tensor,
    ) -> Picked:
        picked = self._sampler.sample(logits, members, positions)
        self._tables.last_token.index_copy_(0, table_rows, picked.ids.int())
        return picked
