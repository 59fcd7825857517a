"""A small mixed step at fixed addresses: decodes and segments among the padding of a bucket.

Owns the step's input, which one transfer fills, and the order of its operations. Must not know
sequences or plans, nor whether it is captured.

Behind the decodes, rows that no segment has stand at position 0 of the dummy table. What they
compute is undefined and unused: rows affect each other through the cache only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from kernels.attention import NO_ROW, ExtendSegment, PagedPlan, SegmentBucket, bucket_for
from kernels.delta_rule import Span
from workers.engine.graphs.buckets import GraphBucket
from workers.engine.models.kv_cache import KvCache
from workers.engine.models.network import Network
from workers.engine.models.state_slots import StateSlots, StateStep
from workers.engine.step.batch import Numbers, PagedRows, aligned, send_into, to_device
from workers.engine.step.draft_pass import DraftPass, StepRows
from workers.engine.step.spans import SpanRoom
from workers.engine.step.tables import SequenceTables

_Words: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int32]]


class _Places(NamedTuple):
    """Where the parts of an input lie in it, all int32, each at a multiple of 16 bytes."""

    token_ids: slice
    positions: slice
    table_rows: slice
    last_rows: slice
    sampled_positions: slice
    sampled_tables: slice
    work: slice
    spans: slice


@final
class _Input:
    """The input of one bucket, on the card; `empty` is one without rows. `spans` are those of a
    network with states.
    """

    def __init__(
        self,
        bucket: GraphBucket,
        segments: SegmentBucket,
        spans: SpanRoom | None,
        dummy_row: int,
        device: torch.device,
    ) -> None:
        self.segments = segments
        self.spans = spans
        self.places = places = _places(bucket, segments, spans)
        self.empty: _Words = np.zeros(places.spans.stop, np.int32)
        self.empty[places.positions][: bucket.num_decodes] = NO_ROW
        self.empty[places.table_rows] = dummy_row
        if spans is not None:
            self.empty[places.spans] = spans.empty(dummy_row)
        self.words = torch.zeros(len(self.empty), dtype=torch.int32, device=device)
        self.token_ids = torch.zeros(bucket.num_rows, dtype=torch.int32, device=device)
        self.prefills: tuple[ExtendSegment, ...] = ()


@final
class MixedStep:
    """Steps in `buckets`."""

    def __init__(
        self,
        model: Network,
        cache: KvCache,
        tables: SequenceTables,
        buckets: Iterable[GraphBucket],
        *,
        shares: bool = False,
        states: StateSlots | None = None,
        draft_pass: DraftPass | None = None,
    ) -> None:
        """Their decodes may attend to tokens together if it `shares`. `states` are those that a
        network with recurrent layers moves on. Those that verify leave what `draft_pass` keeps.
        """
        self._draft_pass = draft_pass
        self._model = model
        self._states = states
        self._shares = shares
        self._cache = cache
        self._tables = tables
        self._inputs = {bucket: self._input(bucket) for bucket in buckets}

    def fill(self, bucket: GraphBucket, rows: PagedRows) -> tuple[Tensor, Tensor]:
        """The rows of the next step, which the bucket holds; returns of those that are sampled the
        positions of the new tokens and the table rows on the card, int32 [sampled].
        """
        found = self._inputs[bucket]
        places, num_decodes = found.places, rows.num_decodes
        moved = bucket.num_decodes - num_decodes
        words = found.empty.copy()
        for place, values in (
            (places.token_ids, rows.token_ids),
            (places.positions, rows.positions),
            (places.table_rows, rows.table_rows),
        ):
            part = words[place]
            part[:num_decodes] = values[:num_decodes]
            part[bucket.num_decodes : moved + len(values)] = values[num_decodes:]
        num_sampled = len(rows.last_rows)
        last_rows = rows.last_rows
        words[places.last_rows][:num_sampled] = last_rows + moved * (last_rows >= num_decodes)
        words[places.sampled_positions][:num_sampled] = rows.sampled_positions
        words[places.sampled_tables][:num_sampled] = rows.sampled_tables
        # Also for the reference: kernels read the words.
        found.prefills = tuple(
            [segment._replace(first_row=segment.first_row + moved) for segment in rows.segments]
        )
        found.segments.lay_out(found.prefills, bucket.num_decodes, words[places.work], rows.runs)
        if found.spans is not None:
            decodes = rows.positions[:num_decodes], rows.table_rows[:num_decodes]
            spans = [Span(each.start, each.num_rows, each.table_row) for each in rows.segments]
            found.spans.lay_out(decodes, spans, words[places.spans])
        send_into(found.words, words)
        sampled = places.sampled_positions, places.sampled_tables
        positions, table_rows = [found.words[place][:num_sampled] for place in sampled]
        return positions, table_rows

    def holds(self, bucket: GraphBucket, rows: PagedRows) -> bool:
        """Whether the work of these segments, whose rows the bucket holds, fits into it too."""
        return self._inputs[bucket].segments.holds(rows.segments)

    def clear(self, bucket: GraphBucket) -> None:
        """No rows."""
        found = self._inputs[bucket]
        found.prefills = ()
        send_into(found.words, found.empty)

    def run(self, bucket: GraphBucket) -> Tensor:
        """The logits [`bucket.num_sampled`, vocab] of the sampled rows, in their order."""
        found = self._inputs[bucket]
        words, places = found.words, found.places
        plan = self._model.prepared(self._plan(bucket), self._cache)
        token_ids = self._tables.known(words[places.token_ids], words[places.table_rows])
        hidden = self._model.embed(token_ids)
        last_rows = words[places.last_rows].long()
        if self._draft_pass is None or not bucket.verifies:
            step = None
            if self._states is not None and found.spans is not None:
                step = StateStep(self._states, found.spans.plan(words[places.spans]))
            last = self._model.forward(hidden, plan, self._cache, last_rows, states=step)
            return self._model.logits(last)
        found.token_ids.copy_(token_ids)
        hidden, _ = self._draft_pass.forward(hidden, plan, last_rows)
        return self._model.logits(hidden)

    def step_rows(self, bucket: GraphBucket, rows: PagedRows, following: Numbers) -> StepRows:
        """The rows of the step that was run last, padding behind them, for its drafter."""
        found = self._inputs[bucket]
        words, places, num_sampled = found.words, found.places, len(rows.last_rows)
        behind = np.zeros(bucket.num_rows, np.int32)
        behind[: len(following)] = following
        return StepRows(
            found.token_ids.long(),
            to_device(behind, self._model.device).long(),
            words[places.positions].long(),
            words[places.last_rows][:num_sampled].long(),
            words[places.sampled_positions][:num_sampled].long(),
            self._model.prepared(self._plan(bucket), self._cache),
            in_place=True,
        )

    def _plan(self, bucket: GraphBucket) -> PagedPlan:
        found = self._inputs[bucket]
        words, places = found.words, found.places
        return PagedPlan(
            words[places.positions],
            words[places.table_rows],
            self._tables.block_tables,
            bucket.num_decodes,
            found.prefills,
            work=found.segments.work(words[places.work]),
            invariant=self._model.invariant,
        )

    def _input(self, bucket: GraphBucket) -> _Input:
        keys, _ = self._cache.layers[0]
        segments = bucket_for(
            bucket.segment_rows,
            bucket.num_segments,
            self._model.config.attention.num_heads,
            keys,
            self._model.weights.embedding.dtype,
            invariant=self._model.invariant,
            is_scoped=self._model.config.is_scoped,
            num_sharing=bucket.num_decodes if self._shares else 0,
            longest=bucket.longest_segment,
        )
        spans = None if self._states is None else SpanRoom.holding(*bucket[:3])
        return _Input(bucket, segments, spans, self._tables.dummy_row, self._model.device)


def _places(bucket: GraphBucket, segments: SegmentBucket, spans: SpanRoom | None) -> _Places:
    sizes = [bucket.num_rows] * 3 + [bucket.num_sampled] * 3 + [segments.num_words]
    sizes.append(0 if spans is None else spans.num_words)
    found, begin = [], 0
    for size in sizes:
        found.append(slice(begin, begin + size))
        begin += aligned(size)
    return _Places(*found)
