"""A mixed step at fixed addresses: decodes and segments, padded to the size of a bucket.

Owns the step's input, which one transfer fills, and the order of its operations. Must not know
sequences or plans, nor whether it is captured.

Padding rows behind the decodes stand at position 0 of the dummy table. Their results are undefined
and unused; rows affect each other only through the cache.

A step that verifies also draws its tokens and compares them with the drafts, as if every row were
greedy or had a temperature. Launched one by one, each of these few kernels would take the host as
long as a layer. If a sequence needs more than that, all tokens are drawn again behind the graph.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from kernels.accept import accept
from kernels.attention import NO_ROW, ExtendSegment, PagedPlan, bucket_for
from kernels.pinned import to_device
from kernels.sample import pick
from workers.engine.graphs.buckets import GraphBucket
from workers.engine.graphs.head_buckets import HeadBuckets
from workers.engine.models.kv_cache import KvCache
from workers.engine.models.network import Network
from workers.engine.step.batch import (
    Numbers,
    PagedRows,
    aligned,
    num_sampled,
    send_into,
)
from workers.engine.step.draft_pass import DraftPass, NoDraftPass, StepRows
from workers.engine.step.draws import DrawTable
from workers.engine.step.sampler import Picked
from workers.engine.step.states import NoRoom, StateRoom, States
from workers.engine.step.tables import SequenceTables

_Words: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int32]]


class _Places(NamedTuple):
    """The parts of an input's int32 words, each at a multiple of 16 bytes; see `_Input`."""

    token_ids: slice
    positions: slice
    table_rows: slice
    last_rows: slice
    sampled_positions: slice
    sampled_tables: slice
    behind: slice
    firsts: slice
    owners: slice
    work: slice
    spans: slice


@final
class _Input:
    """The input of one bucket: `words` int32 on the card, and `empty`, the words of no rows, on the
    host. `spans` has the rows of recurrent states.

    In a bucket that verifies the words also hold: `behind`, the row behind each sampled row if that
    is a draft; `firsts`, the first row of each sampled sequence; `owners`, the table row of each
    sampled sequence, which gets its last token.

    The results of such a bucket: `picked` int64 [2, sampled], the sampled ids, and the drafts that
    they are compared with; `ends` int64 [sequences], the rows behind the accepted drafts.

    `sent` int32 [2, words] is for chunks that may move: words before they move, and for each word
    the table row whose accepted drafts are added to it.
    """

    def __init__(
        self,
        bucket: GraphBucket,
        segments: HeadBuckets,
        spans: StateRoom | NoRoom,
        dummy_row: int,
        device: torch.device,
    ) -> None:
        self.segments = segments
        self.spans = spans
        self.places = places = _places(bucket, segments, spans)
        self.empty: _Words = np.zeros(places.spans.stop, np.int32)
        self.empty[places.positions][: bucket.num_decodes] = NO_ROW
        self.empty[places.table_rows] = dummy_row
        self.empty[places.behind] = NO_ROW
        self.empty[places.owners] = NO_ROW
        sampled, sequences = _verified(bucket)
        self.picked = torch.full((2, sampled), -1, dtype=torch.int64, device=device)
        self.ends = torch.zeros(sequences, dtype=torch.int64, device=device)
        self.empty[places.spans] = spans.empty()
        self.words = torch.zeros(len(self.empty), dtype=torch.int32, device=device)
        self.sent = torch.zeros((2, len(self.empty)), dtype=torch.int32, device=device)
        self.token_ids = torch.zeros(bucket.num_rows, dtype=torch.int32, device=device)
        self.prefills: tuple[ExtendSegment, ...] = ()


@final
class MixedStep:
    """The mixed steps of all `buckets`."""

    def __init__(
        self,
        model: Network,
        cache: KvCache,
        tables: SequenceTables,
        draws: DrawTable,
        buckets: Iterable[GraphBucket],
        *,
        shares: bool,
        states: States,
        draft_pass: DraftPass | NoDraftPass,
    ) -> None:
        """`shares`: decodes may attend to common prefixes together. `draws`: the parameters by
        which steps that verify draw. Steps keep what `draft_pass` needs.
        """
        self._draft_pass = draft_pass
        self._draws = draws
        self._model = model
        self._states = states
        self._shares = shares
        self._cache = cache
        self._tables = tables
        self._inputs = {bucket: self._input(bucket) for bucket in buckets}

    def fill(
        self, bucket: GraphBucket, rows: PagedRows, *, draws: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Fill the bucket's input with the rows of the next step. Returns the positions of the
        tokens to sample, and their table rows, int32 [sampled] on the card. With `draws` the tokens
        that the step draws become the last tokens of their sequences in the tables.
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
        last_rows, count = rows.last_rows, len(rows.last_rows)
        words[places.last_rows][:count] = last_rows + moved * (last_rows >= num_decodes)
        words[places.sampled_positions][:count] = rows.sampled_positions
        words[places.sampled_tables][:count] = rows.sampled_tables
        if bucket.verifies and count:
            _lay_out_verified(words, places, rows, draws=draws)
        # Kernels read the words; the plain-torch reference reads these segments.
        found.prefills = tuple(
            [segment._replace(first_row=segment.first_row + moved) for segment in rows.segments]
        )
        found.segments.lay_out(found.prefills, bucket.num_decodes, words[places.work], rows.runs)
        found.spans.lay_out(rows, self._slot_of, words[places.spans])
        self._send(found, words, rows)
        sampled = places.sampled_positions, places.sampled_tables
        positions, table_rows = [found.words[place][:count] for place in sampled]
        return positions, table_rows

    def _send(self, found: _Input, words: _Words, rows: PagedRows) -> None:
        """Send the words. Segments that may move are moved on, on the card, by the number of drafts
        that the step before accepts.
        """
        moving = [chunk.seq for chunk in rows.chunks if chunk.may_move]
        if not moving:
            send_into(found.words, words)
            return
        tables, places = self._tables, found.places
        owners = np.full(tables.dummy_row + 1, tables.dummy_row, np.int32)
        at = [tables.rows[seq].index for seq in moving]
        owners[at] = at
        moves = np.full_like(words, tables.dummy_row)
        moves[places.positions][: len(rows.table_rows)] = owners[rows.table_rows]
        moves[places.sampled_positions][: len(rows.sampled_tables)] = owners[rows.sampled_tables]
        found.segments.follow(words[places.work], owners, moves[places.work])
        send_into(found.sent, np.stack((words, moves)))
        accepted = tables.num_accepted
        torch.add(found.sent[0], accepted.index_select(0, found.sent[1]), out=found.words)
        if not accepted.is_cuda:
            steps = accepted.tolist()
            found.prefills = tuple(
                [
                    one._replace(start=one.start + steps[owners[one.table_row]])
                    for one in found.prefills
                ]
            )

    def _slot_of(self, seq: int) -> int:
        return self._tables.rows[seq].index

    def holds(self, bucket: GraphBucket, rows: PagedRows) -> bool:
        """Whether a bucket with enough rows also has room for the attention work of these segments,
        and for the rows that are folded into states first.
        """
        found = self._inputs[bucket]
        return found.spans.holds(rows.chunks) and found.segments.holds(rows.segments)

    def clear(self, bucket: GraphBucket) -> None:
        """Fill the input with no rows."""
        found = self._inputs[bucket]
        found.prefills = ()
        send_into(found.words, found.empty)

    def run(self, bucket: GraphBucket) -> Tensor:
        """Compute the step. Returns the logits [`bucket.num_sampled`, vocab] of the sampled rows,
        in their order.
        """
        found = self._inputs[bucket]
        words, places = found.words, found.places
        plan = self._model.prepared(self._plan(bucket), self._cache)
        token_ids = self._tables.known(words[places.token_ids], words[places.table_rows])
        hidden = self._model.embed(token_ids)
        last_rows = words[places.last_rows].long()
        step = found.spans.step(words[places.spans])
        self._draft_pass.keep_ids(found.token_ids, token_ids)
        last, _ = self._draft_pass.forward(hidden, plan, last_rows, step)
        logits = self._model.logits(last)
        if bucket.verifies:
            self._verify(found, logits, token_ids)
        return logits

    def picked(self, bucket: GraphBucket, rows: PagedRows) -> Picked:
        """The tokens that the last run of this bucket, which verifies, has drawn."""
        found, count = self._inputs[bucket], len(rows.last_rows)
        ids, drafts = found.picked[:, :count]
        ends = found.ends[: len(rows.sampling)]
        seqs = tuple([chunk.seq for chunk in rows.sampling])
        num_drafts = tuple([len(chunk.drafts) for chunk in rows.sampling])
        if not any(num_drafts):
            return Picked(seqs, ids, ends=ends)
        return Picked(seqs, ids, drafts=drafts, num_drafts=num_drafts, ends=ends)

    def _verify(self, found: _Input, logits: Tensor, token_ids: Tensor) -> None:
        """Draw a token for each sampled row, and accept the drafts that equal it."""
        words, places = found.words, found.places
        draws = self._draws.rows(logits.shape[0], filtered=False)
        ids = pick(logits, draws, words[places.sampled_positions])
        behind = words[places.behind]
        # `torch.where` would send a number to the card, which a capture forbids.
        drafts = token_ids[behind.clamp(min=0).long()].masked_fill(behind < 0, -1).long()
        firsts, owners = words[places.firsts].long(), words[places.owners]
        found.picked[0].copy_(ids)
        found.picked[1].copy_(drafts)
        kept = self._tables.last_token, self._tables.num_accepted
        found.ends.copy_(accept(ids, drafts, firsts, *kept, owners))

    def step_rows(
        self, bucket: GraphBucket, rows: PagedRows, following: Numbers | None
    ) -> StepRows:
        """The rows of the last run of this bucket, with its padding, for the drafter."""
        found = self._inputs[bucket]
        words, places, count = found.words, found.places, len(rows.last_rows)
        behind = None
        if following is not None:
            first, moved = rows.num_decodes, bucket.num_decodes - rows.num_decodes
            padded = np.zeros(bucket.num_rows, np.int32)
            padded[:first] = following[:first]
            padded[bucket.num_decodes : moved + len(following)] = following[first:]
            behind = to_device(padded, self._model.device).long()
        return StepRows(
            found.token_ids.long(),
            behind,
            words[places.positions].clamp(min=0).long(),
            words[places.last_rows][:count].long(),
            words[places.sampled_positions][:count].long(),
            self._model.prepared(self._plan(bucket), self._cache),
            in_place=True,
        )

    def _plan(self, bucket: GraphBucket) -> PagedPlan:
        found = self._inputs[bucket]
        words, places = found.words, found.places
        first, *others = [
            PagedPlan(
                words[places.positions],
                words[places.table_rows],
                self._tables.block_tables,
                bucket.num_decodes,
                found.prefills,
                work=work,
                invariant=self._model.invariant,
                window_tables=self._tables.window_tables,
            )
            for work in found.segments.works(words[places.work])
        ]
        return replace(first, others=tuple(others))

    def _input(self, bucket: GraphBucket) -> _Input:
        config = self._model.config
        buckets = [
            bucket_for(
                bucket.segment_rows,
                bucket.num_segments,
                heads.num_heads,
                self._cache.keys_of(kind),
                self._model.weights.embedding.dtype,
                invariant=self._model.invariant,
                is_scoped=config.is_scoped,
                num_sharing=bucket.num_decodes if self._shares else 0,
                longest=bucket.longest_segment,
            )
            # Latent attention takes rows one by one.
            for kind, heads in enumerate(() if config.is_latent else config.head_sizes)
        ]
        segments = HeadBuckets(tuple(buckets))
        spans = self._states.room(
            bucket.num_decodes, bucket.segment_rows, bucket.num_segments, bucket.verifies
        )
        return _Input(bucket, segments, spans, self._tables.dummy_row, self._model.device)


def _verified(bucket: GraphBucket) -> tuple[int, int]:
    """How many rows, and of how many sequences, a bucket draws itself; 0 unless it verifies."""
    return (bucket.num_sampled, bucket.num_segments) if bucket.verifies else (0, 0)


def _lay_out_verified(words: _Words, places: _Places, rows: PagedRows, *, draws: bool) -> None:
    """Enter `behind`, `firsts` and, if the step `draws`, `owners`: see `_Input`."""
    sizes = [num_sampled(chunk) for chunk in rows.sampling]
    ends = np.cumsum(sizes)
    behind = rows.last_rows + 1
    behind[ends - 1] = NO_ROW
    words[places.behind][: len(behind)] = behind
    # Padding sequences have one row, the last.
    words[places.firsts] = len(words[places.behind]) - 1
    words[places.firsts][: len(sizes)] = ends - sizes
    if draws:
        words[places.owners][: len(sizes)] = rows.sampled_tables[ends - sizes]


def _places(bucket: GraphBucket, segments: HeadBuckets, spans: StateRoom | NoRoom) -> _Places:
    sampled, sequences = _verified(bucket)
    sizes = [bucket.num_rows] * 3 + [bucket.num_sampled] * 3
    sizes += [sampled, sequences, sequences, segments.num_words]
    sizes.append(spans.num_words)
    found, begin = [], 0
    for size in sizes:
        found.append(slice(begin, begin + size))
        begin += aligned(size)
    return _Places(*found)
