"""The recurrent states of an engine's sequences, and the states that a step updates.

A network without recurrent layers has `NoStates`, with the same methods, so no caller asks whether
there are any.

Owns the slots of running sequences and of prefixes, and the rings of rows that may be taken back;
which slot a sequence has is told by `slot_of`. Must not know how spans are laid out in words
(`spans.py`), nor what a state is.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeAlias, final

import msgspec
import numpy as np
import torch
from torch import Tensor

from kernels.delta_rule import (
    IN_CHUNKS,
    DeltaPlan,
    VerifyPlan,
    plan_spans,
    plan_verified,
)
from kernels.pinned import to_device
from workers.engine.models.network import Network
from workers.engine.models.state_slots import (
    MOST_TAKEN_BACK,
    StateSlots,
    StateStep,
    Stop,
    Verified,
    rings_of,
)
from workers.engine.step.batch import PagedRows, aligned
from workers.engine.step.spans import SpanRoom, Words, spans_of, stops_of
from workers.scheduler import NO_SLOT, Chunk

SlotOf: TypeAlias = Callable[[int], int]
"""Gives the running slot of a sequence."""


@final
class Rings:
    """The rows of each sequence's last step that are drafts and may be taken back. The next step
    folds the accepted ones into the sequence's state.
    """

    def __init__(self, model: Network, num_slots: int) -> None:
        dtype = model.weights.embedding.dtype
        place = model.place or partial(_empty, model.device)
        self.layers = rings_of(model.config, num_slots, MOST_TAKEN_BACK, place, dtype)
        self._verified: dict[int, int] = {}

    def folds_of(self, chunk: Chunk) -> int:
        """The number of rows to fold into the state before the rows of this chunk. `IN_CHUNKS` for
        a chunk of a prompt, whose rows are computed in chunks; the rows of other chunks are
        computed one by one.
        """
        start = self._verified.get(chunk.seq)
        is_new = start is None or chunk.start == 0 or chunk.restores != NO_SLOT
        folds = 0 if is_new or start is None else chunk.start - start - 1
        assert 0 <= folds <= MOST_TAKEN_BACK
        if chunk.length == 1:
            return folds
        assert folds == 0  # a chunk after drafts has one token, and its own drafts
        return IN_CHUNKS

    def computed(self, chunks: Iterable[Chunk]) -> None:
        """Remember which of these chunks had drafts. Call it for every step, after `folds_of`."""
        for chunk in chunks:
            if chunk.drafts:
                self._verified[chunk.seq] = chunk.start
            else:
                self._verified.pop(chunk.seq, None)

    def end(self, seqs: Iterable[int]) -> None:
        """Forget sequences; unknown ones are ignored."""
        for seq in seqs:
            self._verified.pop(seq, None)

    def num_bytes(self) -> int:
        """Bytes of all rings."""
        return sum([ring.rows.nbytes + ring.gates.nbytes for ring in self.layers])


@final
class KeptStates:
    """The recurrent states of an engine.

    - `running`: a slot for each of `num_slots` sequences, then `dummy_slot` for rows that pad a
      step.
    - `prefixes`: `num_prefixes` slots.
    - `rings`: rows that may be taken back; None if steps do not verify.

    Copies are launched behind earlier steps, so what they read is written by then, and what they
    overwrite has been read.
    """

    has_any: Final = True

    def __init__(
        self,
        model: Network,
        num_slots: int,
        num_prefixes: int,
        *,
        verifies: bool,
    ) -> None:
        config, dtype = model.config, model.weights.embedding.dtype
        place = model.place or partial(_empty, model.device)
        self._device = model.device
        self.running = StateSlots(config, num_slots + 1, place, dtype)
        self.dummy_slot = num_slots
        self.rings = Rings(model, num_slots + 1) if verifies else None
        self.prefixes = StateSlots(config, num_prefixes, place, dtype)

    def restore(self, chunks: Iterable[Chunk], slot_of: SlotOf) -> None:
        """Before a step: copy the states that chunks restore into the slots of their sequences, and
        keep the states that decodes save before they compute.
        """
        for chunk in chunks:
            if chunk.restores != NO_SLOT:
                self.running.copy(slot_of(chunk.seq), self.prefixes, chunk.restores)
            elif chunk.saves and chunk.saves[0][0] <= chunk.start:
                position, kept = chunk.saves[0]
                assert position == chunk.start - max(0, self.folds_of(chunk))
                self._keep(kept, slot_of(chunk.seq))

    def save(self, chunks: Iterable[Chunk], slot_of: SlotOf) -> None:
        """After a step: keep the states at the ends of its chunks. The step itself has kept the
        states at its stops.
        """
        for chunk in chunks:
            for position, kept in chunk.saves[-1:]:
                if position == chunk.start + chunk.length:
                    self._keep(kept, slot_of(chunk.seq))

    def _keep(self, kept: int, running: int) -> None:
        self.prefixes.copy(kept, self.running, running)

    def end(self, seqs: Sequence[int]) -> None:
        """Forget sequences; unknown ones are ignored."""
        if self.rings is not None:
            self.rings.end(seqs)

    def folds_of(self, chunk: Chunk) -> int:
        """The number of rows to fold before this chunk (`Rings.folds_of`); `IN_CHUNKS` without
        rings.
        """
        return IN_CHUNKS if self.rings is None else self.rings.folds_of(chunk)

    def num_folds(self, chunks: Iterable[Chunk]) -> int:
        """The number of rows to fold before these chunks."""
        return sum([max(0, self.folds_of(chunk)) for chunk in chunks])

    def computed(self, chunks: Iterable[Chunk]) -> None:
        """Remember which of these chunks had drafts (`Rings.computed`)."""
        if self.rings is not None:
            self.rings.computed(chunks)

    def folds(self, chunks: Sequence[Chunk]) -> Words:
        """The number of rows that each of these decodes folds, int32."""
        return np.array([max(0, self.folds_of(chunk)) for chunk in chunks], np.int32)

    def verifiable(self, chunk: Chunk, *, saves: bool) -> Chunk:
        """The chunk with only the drafts that a step verifies: none if it `saves` a state."""
        most = 0 if saves else MOST_TAKEN_BACK
        return msgspec.structs.replace(chunk, drafts=chunk.drafts[:most])

    def has_stops(self, chunks: Iterable[Chunk]) -> bool:
        """Whether a state is kept within a chunk, which no graph does."""
        return any(stops_of(chunk) for chunk in chunks)

    def room(
        self, num_decodes: int, segment_rows: int, num_segments: int, verifies: bool
    ) -> "StateRoom":
        """Room for the spans of any step that a bucket serves (`SpanRoom.holding`)."""
        return StateRoom(
            self, SpanRoom.holding(num_decodes, segment_rows, num_segments, verifies), verifies
        )

    def decode_step(self, rows: Tensor) -> StateStep:
        """The states that a step of single rows updates. `rows` int32 [4, rows]: positions
        (`NO_ROW` for padding), slots, numbers of folded rows, and the running sums of these before
        each row.
        """
        positions, slots, folds, firsts = rows.unbind()
        num_rows, device = len(positions), rows.device
        offsets = torch.arange(num_rows + 1, dtype=torch.int32, device=device)
        nothing = torch.empty((0, 2), dtype=torch.int32, device=device)
        plan = DeltaPlan(positions, slots, offsets, num_rows, nothing)
        return self.step(plan, VerifyPlan(positions, folds, firsts, num_rows))

    def card_step(self, planned: PagedRows, slot_of: SlotOf) -> StateStep:
        """The states that a step on a card without a bucket updates: its decodes, then the rows of
        its other chunks. One transfer carries all words.
        """
        num_decodes, chunks = planned.num_decodes, planned.chunks
        own_folds = np.array([self.folds_of(chunk) for chunk in chunks[:num_decodes]], np.int32)
        decodes = planned.positions[:num_decodes], planned.table_rows[:num_decodes], own_folds
        spans, rests = spans_of(chunks[num_decodes:], slot_of, self.dummy_slot, self.folds_of)
        folds = [*own_folds.tolist(), *[span.folds for span in spans]]
        most_folds = sum([max(0, each) for each in folds])
        rooms = [SpanRoom.of(num_decodes, spans, most_folds)]
        rooms += [SpanRoom.of(0, [rest.span]) for rest in rests]
        words = [room.empty(self.dummy_slot) for room in rooms]
        nothing = np.zeros(0, np.int32)
        rooms[0].lay_out(decodes, spans, words[0])
        for room, rest, part in zip(rooms[1:], rests, words[1:], strict=True):
            room.lay_out((nothing, nothing, nothing), [rest.span], part)
        padded = [np.pad(part, (0, aligned(len(part)) - len(part))) for part in words]
        sizes = [len(part) for part in padded]
        sent = torch.split(to_device(np.concatenate(padded), self._device), sizes)
        first, *others = [room.plan(part) for room, part in zip(rooms, sent, strict=True)]
        stops = []
        for rest, plan in zip(rests, others, strict=True):
            begin = num_decodes + rest.first_row
            rows = slice(begin, begin + rest.span.length)
            stops.append(Stop(rest.span.slot, rest.kept, rows, plan))
        return self.step(first, rooms[0].verified(sent[0]), tuple(stops))

    def host_step(self, chunks: Sequence[Chunk], slot_of: SlotOf) -> StateStep:
        """The states that a step on a host updates. The step has the rows of `chunks`."""
        spans, rests = spans_of(chunks, slot_of, self.dummy_slot, self.folds_of)
        self.computed(chunks)
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
        return self.step(plan, plan_verified(spans, self._device), tuple(stops))

    def step(self, plan: DeltaPlan, taken: VerifyPlan, stops: tuple[Stop, ...] = ()) -> StateStep:
        """A step over the spans of `plan`, of which those in `taken` are verified."""
        verified = None if self.rings is None else Verified(self.rings.layers, taken)
        return StateStep(self.running, plan, self.prefixes, stops, verified)

    def num_bytes(self) -> int:
        """Bytes of all slots and rings on the device."""
        rings = 0 if self.rings is None else self.rings.num_bytes()
        return rings + self.running.num_bytes() + self.prefixes.num_bytes()


@final
class StateRoom:
    """Room for the spans of the steps of one bucket, in words at a fixed address."""

    def __init__(self, states: KeptStates, spans: SpanRoom, verifies: bool) -> None:
        self._states = states
        self._spans = spans
        self._verifies = verifies
        self.num_words = spans.num_words

    def empty(self) -> Words:
        """Words without spans, which belong to the dummy slot."""
        return self._spans.empty(self._states.dummy_slot)

    def holds(self, chunks: Sequence[Chunk]) -> bool:
        """Whether there is room for the rows that are folded into states before these chunks."""
        states = self._states
        if self._verifies and any(states.folds_of(chunk) < 0 for chunk in chunks):
            return False  # a prompt with states: its kernels would slow all steps
        return states.num_folds(chunks) <= self._spans.most_folds

    def lay_out(self, rows: PagedRows, slot_of: SlotOf, words: Words) -> None:
        """Write the spans of a step into words made by `empty`."""
        states, count = self._states, rows.num_decodes
        folds = np.array([states.folds_of(chunk) for chunk in rows.chunks[:count]], np.int32)
        decodes = rows.positions[:count], rows.table_rows[:count], folds
        spans, _ = spans_of(rows.chunks[count:], slot_of, states.dummy_slot, states.folds_of)
        self._spans.lay_out(decodes, spans, words)

    def step(self, words: Tensor) -> StateStep:
        """The states that the step updates whose spans are in `words`, on the card."""
        return self._states.step(self._spans.plan(words), self._spans.verified(words))


@final
class NoRoom:
    """`StateRoom` of a network without recurrent layers."""

    num_words: Final = 0

    def empty(self) -> Words:
        """No words."""
        return np.zeros(0, np.int32)

    def holds(self, chunks: Sequence[Chunk]) -> bool:  # noqa: ARG002 - the room's
        """True: nothing needs room."""
        return True

    def lay_out(self, rows: PagedRows, slot_of: SlotOf, words: Words) -> None:
        """Write nothing."""

    def step(self, words: Tensor) -> None:
        """No states."""


@final
class NoStates:
    """`KeptStates` of a network without recurrent layers: there is nothing to copy, to keep or to
    move on.
    """

    has_any: Final = False
    running: Final = None
    prefixes: Final = None

    def restore(self, chunks: Iterable[Chunk], slot_of: SlotOf) -> None:
        """Copy nothing."""

    def save(self, chunks: Iterable[Chunk], slot_of: SlotOf) -> None:
        """Keep nothing."""

    def end(self, seqs: Sequence[int]) -> None:
        """Forget nothing."""

    def computed(self, chunks: Iterable[Chunk]) -> None:
        """Remember nothing."""

    def num_folds(self, chunks: Iterable[Chunk]) -> int:  # noqa: ARG002 - the states'
        """0."""
        return 0

    def folds(self, chunks: Sequence[Chunk]) -> Words:
        """Zeros."""
        return np.zeros(len(chunks), np.int32)

    def verifiable(self, chunk: Chunk, *, saves: bool) -> Chunk:  # noqa: ARG002 - the states'
        """The chunk with all its drafts."""
        return chunk

    def has_stops(self, chunks: Iterable[Chunk]) -> bool:  # noqa: ARG002 - the states'
        """False: snapshots of windows need none."""
        return False

    def room(
        self,
        num_decodes: int,  # noqa: ARG002 - the states'
        segment_rows: int,  # noqa: ARG002
        num_segments: int,  # noqa: ARG002
        verifies: bool,  # noqa: ARG002
    ) -> NoRoom:
        """No room."""
        return NoRoom()

    def decode_step(self, rows: Tensor) -> None:
        """No states."""

    def card_step(self, planned: PagedRows, slot_of: SlotOf) -> None:
        """No states."""

    def host_step(self, chunks: Sequence[Chunk], slot_of: SlotOf) -> None:
        """No states."""

    def num_bytes(self) -> int:
        """0."""
        return 0


States: TypeAlias = KeptStates | NoStates


def states_of(
    model: Network, num_slots: int, num_prefixes: int | None, *, verifies: bool
) -> States:
    """The states of a network, with rings if it `verifies`."""
    if not model.config.delta_rules:
        return NoStates()
    return KeptStates(model, num_slots, num_prefixes or 0, verifies=verifies)


def _empty(device: torch.device, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=device)
