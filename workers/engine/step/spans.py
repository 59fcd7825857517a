"""Which rows of a step move on the state of which sequence, as words for the card.

Owns their layout, where a step stops to keep a state, and the slots of sequences on a CPU; on a
card the slot of a sequence is its row of the tables. Must not know what a state is.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from kernels.attention import NO_ROW
from kernels.delta_rule import (
    NO_SPAN,
    DeltaPlan,
    Span,
    chunk_list,
    most_chunks,
    plan_spans,
)
from protocol.messages import EngineFacts
from workers.engine.models.network import Network
from workers.engine.models.state_slots import (
    PrefixSlots,
    StateSlots,
    StateStep,
    Stop,
    Verified,
    rings_of,
)
from workers.engine.step.batch import aligned, to_device
from workers.engine.step.swaps import HostRoom
from workers.scheduler import NO_SLOT, Chunk

_Words: TypeAlias = np.ndarray[tuple[int], np.dtype[np.integer]]


class SpanRoom(NamedTuple):
    """Room for so many decodes, then so many longer spans, which are cut into so many chunks; the
    words of it have `starts`, `slots`, `offsets` and `chunks`, each at a multiple of 16 bytes.
    """

    num_decodes: int
    num_spans: int
    num_chunks: int

    @classmethod
    def holding(cls, num_decodes: int, segment_rows: int, num_segments: int) -> "SpanRoom":
        """For segments of `segment_rows` rows in all, however they share them."""
        return cls(num_decodes, num_segments, most_chunks(segment_rows, num_segments))

    @classmethod
    def of(cls, num_decodes: int, spans: Sequence[Span]) -> "SpanRoom":
        """For so many decodes and these spans, and no others."""
        return cls(num_decodes, len(spans), len(chunk_list(_computed(spans), 0)))

    @property
    def num_words(self) -> int:
        """int32."""
        return int(self._places()[-1].stop)

    def empty(self, dummy_slot: int) -> _Words:
        """Words of no spans: those there are move the dummy slot."""
        words = np.zeros(self.num_words, np.int32)
        starts, slots, offsets, chunks = self._places()
        words[starts], words[slots], words[chunks] = NO_ROW, dummy_slot, NO_SPAN
        words[offsets][: self.num_decodes] = np.arange(self.num_decodes)
        words[offsets][self.num_decodes :] = self.num_decodes
        return words

    def lay_out(self, decodes: Sequence[_Words], spans: Sequence[Span], words: _Words) -> None:
        """Enter rows for which there is room into words that are `empty`: `decodes` are positions
        and slots of single rows; the spans begin at row `num_decodes`.
        """
        starts, slots, offsets, chunks = self._places()
        first, end = self.num_decodes, self.num_decodes + len(spans)
        for place, values in zip((starts, slots), decodes, strict=True):
            words[place][: len(values)] = values
        words[starts][first:end] = [span.start for span in spans]
        words[slots][first:end] = [span.slot for span in spans]
        ends = first + np.cumsum([span.length for span in spans], dtype=np.int32)
        words[offsets][first + 1 : end + 1] = ends
        words[offsets][end + 1 :] = ends[-1] if spans else first
        entries = chunk_list(_computed(spans), first).reshape(-1)
        words[chunks][: len(entries)] = entries

    def plan(self, words: Tensor) -> DeltaPlan:
        """What words on the card mean."""
        starts, slots, offsets, chunks = [words[place] for place in self._places()]
        return DeltaPlan(starts, slots, offsets, self.num_decodes, chunks.view(-1, 2))

    def _places(self) -> list[slice]:
        num_spans = self.num_decodes + self.num_spans
        found, begin = [], 0
        for size in (num_spans, num_spans, num_spans + 1, 2 * self.num_chunks):
            found.append(slice(begin, begin + size))
            begin += aligned(size)
        return found


class Rest(NamedTuple):
    """What follows a stop: the `span` from row `first_row` on, of which the state ahead is kept in
    slot `kept`.
    """

    first_row: int
    span: Span
    kept: int


def spans_of(
    chunks: Iterable[Chunk], slot_of: Callable[[int], int], dummy_slot: int
) -> tuple[list[Span], list[Rest]]:
    """The spans of chunks whose rows lie in this order, each up to its first stop; rows behind one
    are left out, and are those of the rests, in order. Chunks with drafts are left out, too.
    """
    spans: list[Span] = []
    rests: list[Rest] = []
    first_row = 0
    for chunk in chunks:
        slot, start, end = slot_of(chunk.seq), chunk.start, chunk.start + chunk.length
        if chunk.drafts:
            spans.append(Span(NO_ROW, chunk.num_rows, dummy_slot))
            first_row += chunk.num_rows
            continue
        stops = stops_of(chunk)
        bounds = [*[position for position, _ in stops], end]
        spans.append(Span(start, bounds[0] - start, slot))
        if stops:
            spans.append(Span(NO_ROW, end - bounds[0], dummy_slot))
        for (position, kept), until in zip(stops, bounds[1:], strict=True):
            rest = Span(position, until - position, slot)
            rests.append(Rest(first_row + position - start, rest, kept))
        first_row += chunk.length
    return spans, rests


def stops_of(chunk: Chunk) -> tuple[tuple[int, int], ...]:
    """Where a step keeps a state on its way, with the slot, but not behind all of the chunk."""
    return tuple([each for each in chunk.saves if each[0] < chunk.start + chunk.length])


def _computed(spans: Iterable[Span]) -> list[int]:
    return [0 if span.start < 0 else span.length for span in spans]


@final
class KeptStates:
    """The states of up to `num_slots` `running` sequences, behind which lies `dummy_slot`, for rows
    that pad a step, and those of `num_prefixes` prefixes, of which those that are `on_host` come
    last; behind them those of preempted sequences.

    Copies go behind what was launched before: what they read is written, what they write was read.
    """

    def __init__(
        self, model: Network, num_slots: int, num_prefixes: int, on_host: HostRoom | None
    ) -> None:
        config, dtype = model.config, model.weights.embedding.dtype
        place = partial(_empty, model.device)
        self.running = StateSlots(config, num_slots + 1, place, dtype)
        self.dummy_slot = num_slots
        kept = None
        if on_host is not None:
            num_on_host = on_host.num_prefixes + on_host.num_states
            kept = StateSlots(config, num_on_host, on_host.pool.tensor, dtype)
            num_prefixes -= on_host.num_prefixes
        self.prefixes = PrefixSlots(StateSlots(config, num_prefixes, place, dtype), kept)

    def restore(self, chunks: Iterable[Chunk], slot_of: Callable[[int], int]) -> None:
        """Before a step: what its chunks begin with; `slot_of` a sequence."""
        for chunk in chunks:
            if chunk.restores != NO_SLOT:
                self.running.copy(slot_of(chunk.seq), *self.prefixes.at(chunk.restores))

    def save(self, chunks: Iterable[Chunk], slot_of: Callable[[int], int]) -> None:
        """Behind a step: what is kept of its end; it has kept the rest on its way."""
        for chunk in chunks:
            for position, kept in chunk.saves[-1:]:
                if position == chunk.start + chunk.length:
                    slots, slot = self.prefixes.at(kept)
                    slots.copy(slot, self.running, slot_of(chunk.seq))

    def parts(self) -> tuple[StateSlots, PrefixSlots]:
        """For what copies states elsewhere."""
        return self.running, self.prefixes

    def num_bytes(self) -> int:
        """What all slots take of the device."""
        return self.running.num_bytes() + self.prefixes.on_device.num_bytes()


def kept_states(
    model: Network, num_slots: int, num_prefixes: int | None, on_host: HostRoom | None
) -> KeptStates | None:
    """Of a network that has states, for so many sequences and prefixes."""
    if not model.config.delta_rules:
        return None
    return KeptStates(model, num_slots, num_prefixes or 0, on_host)


def _empty(device: torch.device, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


def decode_plan(positions: Tensor, table_rows: Tensor) -> DeltaPlan:
    """The plan of single rows at these positions, int32 [rows], `NO_ROW` for padding."""
    num_rows, device = len(positions), positions.device
    offsets = torch.arange(num_rows + 1, dtype=torch.int32, device=device)
    nothing = torch.empty((0, 2), dtype=torch.int32, device=device)
    return DeltaPlan(positions, table_rows, offsets, num_rows, nothing)


def step_on(
    device: torch.device,
    kept: KeptStates,
    decodes: Sequence[_Words],
    chunks: Iterable[Chunk],
    slot_of: Callable[[int], int],
) -> StateStep:
    """The states that rows on a card move on: `decodes` (see `SpanRoom.lay_out`), then the rows of
    `chunks`. One transfer has all words.
    """
    num_decodes = len(decodes[0])
    spans, rests = spans_of(chunks, slot_of, kept.dummy_slot)
    rooms = [SpanRoom.of(num_decodes, spans), *[SpanRoom.of(0, [rest.span]) for rest in rests]]
    words = [room.empty(kept.dummy_slot) for room in rooms]
    nothing = np.zeros(0, np.int32)
    rooms[0].lay_out(decodes, spans, words[0])
    for room, rest, part in zip(rooms[1:], rests, words[1:], strict=True):
        room.lay_out((nothing, nothing), [rest.span], part)
    padded = [np.pad(part, (0, aligned(len(part)) - len(part))) for part in words]
    sizes = [len(part) for part in padded]
    sent = torch.split(to_device(np.concatenate(padded), device), sizes)
    first, *others = [room.plan(part) for room, part in zip(rooms, sent, strict=True)]
    stops = []
    for rest, plan in zip(rests, others, strict=True):
        begin = num_decodes + rest.first_row
        rows = slice(begin, begin + rest.span.length)
        stops.append(Stop(rest.span.slot, rest.kept, rows, plan))
    return StateStep(kept.running, first, kept.prefixes, tuple(stops))


@final
class HostSlots:
    """Which slot each sequence has, and how many of the rows that it verified last belong to it:
    they go into its state in its next step. Nothing where a network has no states.
    """

    def __init__(
        self,
        model: Network,
        facts: EngineFacts,
        on_host: HostRoom | None = None,
        num_verified: int = 0,
    ) -> None:
        """Steps verify up to `num_verified` rows of a sequence; 0: none."""
        self.kept = kept_states(model, facts.max_seqs, facts.snapshots, on_host)
        place, dtype = partial(_empty, model.device), model.weights.embedding.dtype
        held = facts.max_seqs + 1, num_verified
        self._rings = rings_of(model.config, *held, place, dtype) if num_verified else ()
        self.most_drafts = max(0, num_verified - 1)
        self._accepted: dict[int, int] = {}
        self._device = model.device
        self._by_seq: dict[int, int] = {}
        self._free = list(range(facts.max_seqs))

    def slot_of(self, seq: int) -> int:
        """Of a sequence that has started. Raises `KeyError`."""
        return self._by_seq[seq]

    def start(self, seqs: Sequence[int]) -> None:
        """Give each sequence a slot. Raises `IndexError` if more run than were planned for."""
        if self.kept is not None:
            self._by_seq.update((seq, self._free.pop()) for seq in seqs)

    def end(self, seqs: Sequence[int]) -> None:
        """Take the slots back; unknown sequences are no fault."""
        found = [self._by_seq.pop(seq) for seq in seqs if seq in self._by_seq]
        self._free.extend(found)
        for seq in seqs:
            self._accepted.pop(seq, None)

    def num_bytes(self) -> int:
        """What states and rings take."""
        rings = sum([ring.rows.nbytes + ring.gates.nbytes for ring in self._rings])
        return rings + (0 if self.kept is None else self.kept.num_bytes())

    def accept(self, accepted: Mapping[int, int]) -> None:
        """Of the rows that the last step verified the first so many belong to their sequences."""
        if self.kept is not None:
            self._accepted.update(accepted)

    def restore(self, chunks: Sequence[Chunk]) -> StateStep | None:
        """The states that these chunks, in this order, move on, as they begin."""
        if self.kept is None:
            return None
        kept, slot_of = self.kept, self._by_seq.__getitem__
        kept.restore(chunks, slot_of)
        verified = self._verified(chunks)
        spans, rests = spans_of(chunks, slot_of, kept.dummy_slot)
        stops = [
            Stop(
                rest.span.slot,
                rest.kept,
                slice(rest.first_row, rest.first_row + rest.span.length),
                plan_spans([rest.span], self._device),
            )
            for rest in rests
        ]
        plan = plan_spans(spans, self._device)
        return StateStep(kept.running, plan, kept.prefixes, tuple(stops), verified)

    def _verified(self, chunks: Sequence[Chunk]) -> Verified | None:
        """The rows that may be taken back, and those of earlier steps that may not any more."""
        spans: list[Span] = []
        accepted: list[int] = []
        rows: list[int] = []
        first_row = 0
        for chunk in chunks:
            begins = chunk.start == 0 or chunk.restores != NO_SLOT
            before = self._accepted.pop(chunk.seq, 0)
            before = 0 if begins else before
            num_rows = chunk.num_rows if chunk.drafts else 0
            if num_rows or before:
                spans.append(Span(chunk.start, num_rows, self._by_seq[chunk.seq]))
                accepted.append(before)
                rows += range(first_row, first_row + num_rows)
            first_row += chunk.num_rows
        if not spans:
            return None
        counts = torch.tensor(accepted, dtype=torch.int32, device=self._device)
        own = torch.tensor(rows, dtype=torch.int64, device=self._device)
        return Verified(self._rings, own, counts, plan_spans(spans, self._device))

    def save(self, chunks: Sequence[Chunk]) -> None:
        """Keep the states behind these chunks that are to be kept."""
        if self.kept is not None:
            self.kept.save(chunks, self._by_seq.__getitem__)
