"""Steps on a card: started while the one before is still computed.

Owns the choice between a decode step, a mixed step in a captured bucket and one that is launched
kernel by kernel. Must not know plans, nor what a kernel does. Sampled tokens stay in the sequence
tables; the host reads a copy of them a step later.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from kernels.attention import SharingCosts, sharing_costs
from kernels.choose import uses_triton
from protocol.messages import EngineFacts
from workers.engine.graphs.buckets import graph_buckets, invariant_buckets, need_of
from workers.engine.graphs.capture import Capture, CudaCapture, held_on_card, run_again, sparing
from workers.engine.graphs.capture_order import CaptureOrder, capture_sizes
from workers.engine.graphs.captured_steps import Graphs
from workers.engine.graphs.decode_step import DecodeStep
from workers.engine.graphs.mixed_step import MixedStep, embed_known
from workers.engine.models.kv_cache import KvCache
from workers.engine.models.network import Network
from workers.engine.step.batch import (
    PagedBatch,
    PagedRows,
    SequenceState,
    make_paged_batch,
    paged_rows,
    to_device,
)
from workers.engine.step.draws import Kind
from workers.engine.step.sampler import Picked, Sampler
from workers.engine.step.shared_prefixes import SharedPrefixes
from workers.engine.step.steps import Launched, TokensLost, Unsampled, fetch
from workers.engine.step.tables import SequenceTables, TableRow, no_updates
from workers.scheduler import Chunk

_Draw: TypeAlias = Callable[[], Picked]
"""What is left of a step once its network is launched."""


@final
class DeviceSteps:
    """`workers.engine.step.steps.Steps` for CUDA; on a CPU the same, for tests."""

    lookahead: Final = 1

    def __init__(
        self,
        model: Network,
        cache: KvCache,
        facts: EngineFacts,
        capture: Capture | None = None,
        *,
        spare_bytes: int = 0,
        sharing: SharingCosts | None = None,
    ) -> None:
        """`facts` limit what a step can hold, so which graphs there are. `capture` None takes that
        of the device, which leaves `spare_bytes` to steps without a graph: none on a CPU.
        `sharing` None shares tokens where the device's kernels gain by it.
        """
        max_rows = min(facts.max_seqs, facts.token_budget)
        self.used_graph = False
        self._model = model
        self._cache = cache
        self._device = model.device
        self._nothing = Picked((), torch.empty(0, dtype=torch.int64, device=self._device))
        max_blocks = -(-facts.context_length // cache.block_size)
        self._tables = SequenceTables(max_rows, max_blocks, cache.dummy_block, self._device)
        self._sampler = Sampler(model.config.vocab_size, max_rows, self._device)
        self._decode_step = DecodeStep(model, cache, self._tables, self._sampler.draws, max_rows)
        weights = model.config.layer_weights // model.config.num_layers
        limits = max_rows, facts.token_budget, weights
        held = graph_buckets(*limits)
        if model.invariant:
            held = invariant_buckets(capture_sizes(max_rows), *limits)
        costs = (sharing or _sharing_on(model, cache)) if _can_share(model) else None
        self._mixed_step = MixedStep(model, cache, self._tables, held, shares=costs is not None)
        self._prefixes = SharedPrefixes(costs, cache.block_size)
        self._graphs = Graphs(
            CaptureOrder(0 if model.invariant else max_rows, held, shares=costs is not None),
            self._decode_step,
            self._mixed_step,
            capture or _capture_on(self._device, spare_bytes),
        )

    def start(self, states: Sequence[SequenceState]) -> None:
        """See `Steps`."""
        self._tables.start([state.seq for state in states])

    def end(self, seqs: Sequence[int]) -> None:
        """See `Steps`."""
        self._tables.end(seqs)
        self._prefixes.forget(seqs)
        self._sampler.forget(seqs)

    @torch.inference_mode()
    def launch(
        self, chunks: Sequence[Chunk], states: dict[int, SequenceState]
    ) -> Launched | Unsampled:
        """See `Steps`. A step that samples nothing is waited for too: otherwise all chunks of a
        long prompt would be launched at once, and a new request would wait for them all.
        """
        rows = self._bring_up_to_date(chunks)
        if not self._model.invariant and all(
            chunk.length == 1 and row.next_position == chunk.start
            for chunk, row in zip(chunks, rows, strict=True)
        ):
            draw = self._decode(chunks, rows, states)
        else:
            draw = self._mixed(chunks, states)
        awaits = any(_awaits_token(chunk, states[chunk.seq]) for chunk in chunks)
        # Before the rows move on: a step whose draw finds no memory is launched again.
        picked = None if awaits else draw()
        for chunk, row in zip(chunks, rows, strict=True):
            row.next_position = chunk.start + chunk.length if chunk.samples else -1
        return Unsampled(lambda: _fetched(draw())) if picked is None else _fetched(picked)

    @property
    def num_graphs(self) -> tuple[int, int]:
        """How many are captured, of how many that are wanted; (0, 0) where nothing is captured."""
        return self._graphs.counts

    @property
    def has_pending_captures(self) -> bool:
        """See `Steps`."""
        return self._graphs.has_pending_captures

    @torch.inference_mode()
    def prepare(self, *, pending_only: bool) -> bool:
        """See `Steps`."""
        return self._graphs.prepare(pending_only=pending_only)

    @torch.inference_mode()
    def hidden(
        self, chunks: Sequence[Chunk], states: dict[int, SequenceState]
    ) -> list[tuple[Chunk, Tensor]]:
        """See `Steps`."""
        self._bring_up_to_date(chunks)
        batch = self._batch(self._rows(chunks, states))
        parts = torch.split(self._forward(batch, None), [chunk.length for chunk in batch.chunks])
        return list(zip(batch.chunks, parts, strict=True))

    def _bring_up_to_date(self, chunks: Sequence[Chunk]) -> list[TableRow]:
        """The tables' rows of the chunks; what changed in them is sent."""
        updates = no_updates()
        rows = []
        for chunk in chunks:
            row = self._tables.rows[chunk.seq]
            if row.block_ids is not chunk.block_ids:
                row.change(chunk.block_ids, updates)
            rows.append(row)
        if updates:
            self._send(updates, rows)
        return rows

    def _send(self, updates: array[int], rows: Sequence[TableRow]) -> None:
        """Write to the tables. If memory runs out their content is unknown: the step is repeated
        and sends all of it.
        """
        try:
            self._tables.write(to_device(np.frombuffer(updates, np.int32), self._device))
        except (RuntimeError, MemoryError):
            for row in rows:
                row.block_ids = ()
            raise

    def _decode(
        self, chunks: Sequence[Chunk], rows: Sequence[TableRow], states: dict[int, SequenceState]
    ) -> _Draw:
        num_rows, order = len(chunks), self._prefixes.order(chunks)
        if order is not None:
            chunks, rows = [chunks[i] for i in order.rows], [rows[i] for i in order.rows]
        members = [states[chunk.seq] for chunk in chunks]
        self._sampler.draws.arrange(members)
        kind = self._sampler.draws.kind
        graph = self._graphs.for_decodes(num_rows, kind, shares=order is not None)
        self.used_graph = self._graphs.holds(graph)
        indices = [row.index for row in rows]
        self._decode_step.share(graph, order, indices)
        positions, table_rows = self._decode_step.fill([chunk.start for chunk in chunks], indices)
        result = self._graphs.run(graph)[:num_rows]
        if kind is not Kind.GENERAL:
            picked = Picked(tuple([state.seq for state in members]), result)
            return lambda: picked
        return partial(self._sample, result, members, positions + 1, table_rows)

    def _mixed(self, chunks: Sequence[Chunk], states: dict[int, SequenceState]) -> _Draw:
        rows = self._sharing_rows(chunks, states)
        bucket = self._graphs.for_mixed(need_of(chunks, invariant=self._model.invariant))
        if bucket is not None and not self._mixed_step.holds(bucket, rows):
            bucket = None
        self.used_graph = bucket is not None
        if bucket is None:
            return self._unpadded(rows, states)
        positions, table_rows = self._mixed_step.fill(bucket, rows)
        logits = self._graphs.run(bucket)[: len(rows.sampling)]
        if not rows.sampling:
            return lambda: self._nothing
        members = [states[chunk.seq] for chunk in rows.sampling]
        return partial(self._sample, logits, members, positions, table_rows)

    def _unpadded(self, rows: PagedRows, states: dict[int, SequenceState]) -> _Draw:
        batch = self._batch(rows)
        hidden = self._forward(batch, batch.last_rows)
        if not batch.sampling:
            return lambda: self._nothing
        members = [states[chunk.seq] for chunk in batch.sampling]
        logits = self._model.logits(hidden)
        return partial(self._sample, logits, members, batch.sampled_positions, batch.table_rows)

    def _sharing_rows(self, chunks: Sequence[Chunk], states: dict[int, SequenceState]) -> PagedRows:
        """The rows, of which the decodes stand in the order in which they share."""
        singles = [chunk for chunk in chunks if chunk.length == 1]
        order = self._prefixes.order(singles) if len(singles) > 1 else None
        if order is None:
            return self._rows(chunks, states)
        longer = [chunk for chunk in chunks if chunk.length > 1]
        rows = self._rows([*[singles[i] for i in order.rows], *longer], states)
        tables = [self._tables.rows[chunk.seq].index for chunk in rows.chunks[: rows.num_decodes]]
        return replace(rows, runs=order.on_card(tables))

    def _rows(self, chunks: Sequence[Chunk], states: dict[int, SequenceState]) -> PagedRows:
        block_size, invariant = self._cache.block_size, self._model.invariant
        return paged_rows(chunks, states, self._tables, block_size, invariant=invariant)

    def _batch(self, rows: PagedRows) -> PagedBatch:
        prepare = partial(self._model.prepared, cache=self._cache)
        return make_paged_batch(rows, self._tables, prepare, invariant=self._model.invariant)

    def _forward(self, batch: PagedBatch, rows: Tensor | None) -> Tensor:
        plan = batch.plan
        hidden = embed_known(self._model, self._tables, batch.token_ids, plan.table_rows)
        return self._model.forward(hidden, plan, self._cache, rows)

    @torch.inference_mode()
    def _sample(
        self,
        logits: Tensor,
        members: Sequence[SequenceState],
        positions: Tensor,
        table_rows: Tensor,
    ) -> Picked:
        picked = self._sampler.sample(logits, members, positions)
        rows, tokens = table_rows.long(), picked.ids.int()
        self._sampler.count(picked)
        # Behind all that takes memory: a step that is repeated begins with the tokens before.
        self._tables.last_token.index_copy_(0, rows, tokens)
        return picked


def _awaits_token(chunk: Chunk, state: SequenceState) -> bool:
    """Whether the chunk samples behind a token that the host does not know, and a grammar must."""
    is_known = chunk.start + chunk.length <= len(state.tokens)
    return state.grammar is not None and chunk.samples and not is_known


def _fetched(picked: Picked) -> Launched:
    """Launch the copy of the tokens."""
    try:
        return fetch(picked)
    except (RuntimeError, MemoryError) as error:
        raise TokensLost(f"the tokens of a step cannot be read: {error}") from error


def _capture_on(device: torch.device, spare_bytes: int) -> Capture | None:
    """The reference implementations read back from the device, which no graph can hold."""
    if not uses_triton(torch.empty(0, device=device)):
        return None
    if device.type != "cuda":
        return run_again
    return sparing(CudaCapture(), spare_bytes, held_on_card)


def _can_share(model: Network) -> bool:
    """Not where a row's result must be the same beside any others, nor in layers with windows."""
    return not model.invariant and not model.config.is_scoped


def _sharing_on(model: Network, cache: KvCache) -> SharingCosts | None:
    keys, _ = cache.layers[0]
    if not uses_triton(keys):
        return None
    heads = model.config.attention.num_heads
    return sharing_costs(heads, keys, model.weights.embedding.dtype)
