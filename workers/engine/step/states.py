"""The recurrent states of an engine's sequences, and the states that a step updates.

Owns the slots of running sequences and of prefixes, the rings of rows that may be taken back, and
the slots of sequences on a CPU; on a card the slot of a sequence is its row of the tables. Must not
know how spans are laid out in words (`spans.py`), nor what a state is.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import final

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
from protocol.messages import EngineFacts
from workers.engine.models.network import Network
from workers.engine.models.state_slots import (
    MOST_TAKEN_BACK,
    StateSlots,
    StateStep,
    Stop,
    Verified,
    rings_of,
)
from workers.engine.step.batch import aligned, to_device
from workers.engine.step.spans import SpanRoom, Words, spans_of
from workers.scheduler import NO_SLOT, Chunk


@final
class Rings:
    """The rows of each sequence's last step that are drafts and may be taken back. The next step
    folds the accepted ones into the sequence's state.
    """

    def __init__(self, model: Network, num_slots: int) -> None:
        place, dtype = partial(_empty, model.device), model.weights.embedding.dtype
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

    def __init__(
        self,
        model: Network,
        num_slots: int,
        num_prefixes: int,
        *,
        verifies: bool,
    ) -> None:
        config, dtype = model.config, model.weights.embedding.dtype
        place = partial(_empty, model.device)
        self.running = StateSlots(config, num_slots + 1, place, dtype)
        self.dummy_slot = num_slots
        self.rings = Rings(model, num_slots + 1) if verifies else None
        self.prefixes = StateSlots(config, num_prefixes, place, dtype)

    def restore(self, chunks: Iterable[Chunk], slot_of: Callable[[int], int]) -> None:
        """Before a step: copy the states that chunks restore into the slots of their sequences
        (`slot_of`), and keep the states that decodes save before they compute.
        """
        for chunk in chunks:
            if chunk.restores != NO_SLOT:
                self.running.copy(slot_of(chunk.seq), self.prefixes, chunk.restores)
            elif chunk.saves and chunk.saves[0][0] <= chunk.start:
                position, kept = chunk.saves[0]
                assert position == chunk.start - max(0, self.folds_of(chunk))
                self._keep(kept, slot_of(chunk.seq))

    def save(self, chunks: Iterable[Chunk], slot_of: Callable[[int], int]) -> None:
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

    def step(self, plan: DeltaPlan, taken: VerifyPlan, stops: tuple[Stop, ...] = ()) -> StateStep:
        """A step over the spans of `plan`, of which those in `taken` are verified."""
        verified = None if self.rings is None else Verified(self.rings.layers, taken)
        return StateStep(self.running, plan, self.prefixes, stops, verified)

    def num_bytes(self) -> int:
        """Bytes of all slots and rings on the device."""
        rings = 0 if self.rings is None else self.rings.num_bytes()
        return rings + self.running.num_bytes() + self.prefixes.num_bytes()


def kept_states(
    model: Network,
    num_slots: int,
    num_prefixes: int | None,
    *,
    verifies: bool,
) -> KeptStates | None:
    """The states of a network with recurrent layers, with rings if it `verifies`; None for other
    networks.
    """
    if not model.config.delta_rules:
        return None
    return KeptStates(model, num_slots, num_prefixes or 0, verifies=verifies)


def _empty(device: torch.device, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


def decode_step(kept: KeptStates, rows: Tensor) -> StateStep:
    """The states that a step of single rows updates. `rows` int32 [4, rows]: positions (`NO_ROW`
    for padding), slots, numbers of folded rows, and the running sums of these before each row.
    """
    positions, slots, folds, firsts = rows.unbind()
    num_rows, device = len(positions), rows.device
    offsets = torch.arange(num_rows + 1, dtype=torch.int32, device=device)
    nothing = torch.empty((0, 2), dtype=torch.int32, device=device)
    plan = DeltaPlan(positions, slots, offsets, num_rows, nothing)
    return kept.step(plan, VerifyPlan(positions, folds, firsts, num_rows))


def step_on(
    device: torch.device,
    kept: KeptStates,
    decodes: Sequence[Words],
    chunks: Iterable[Chunk],
    slot_of: Callable[[int], int],
) -> StateStep:
    """The states that a step on a card updates: `decodes` (see `SpanRoom.lay_out`), then the rows
    of `chunks`. One transfer carries all words.
    """
    num_decodes = len(decodes[0])
    spans, rests = spans_of(chunks, slot_of, kept.dummy_slot, kept.folds_of)
    folds = [*[int(each) for each in decodes[2]], *[span.folds for span in spans]]
    most_folds = sum([max(0, each) for each in folds])
    rooms = [SpanRoom.of(num_decodes, spans, most_folds)]
    rooms += [SpanRoom.of(0, [rest.span]) for rest in rests]
    words = [room.empty(kept.dummy_slot) for room in rooms]
    nothing = np.zeros(0, np.int32)
    rooms[0].lay_out(decodes, spans, words[0])
    for room, rest, part in zip(rooms[1:], rests, words[1:], strict=True):
        room.lay_out((nothing, nothing, nothing), [rest.span], part)
    padded = [np.pad(part, (0, aligned(len(part)) - len(part))) for part in words]
    sizes = [len(part) for part in padded]
    sent = torch.split(to_device(np.concatenate(padded), device), sizes)
    first, *others = [room.plan(part) for room, part in zip(rooms, sent, strict=True)]
    stops = []
    for rest, plan in zip(rests, others, strict=True):
        begin = num_decodes + rest.first_row
        rows = slice(begin, begin + rest.span.length)
        stops.append(Stop(rest.span.slot, rest.kept, rows, plan))
    return kept.step(first, rooms[0].verified(sent[0]), tuple(stops))


@final
class HostSlots:
    """The slot of each sequence on a CPU. Does nothing for a network without recurrent layers."""

    def __init__(
        self,
        model: Network,
        facts: EngineFacts,
        *,
        verifies: bool = False,
    ) -> None:
        self.kept = kept_states(model, facts.max_seqs, facts.snapshots, verifies=verifies)
        self._device = model.device
        self._by_seq: dict[int, int] = {}
        self._free = list(range(facts.max_seqs))

    def slot_of(self, seq: int) -> int:
        """The slot of a sequence. Raises `KeyError` if it has not started."""
        return self._by_seq[seq]

    def start(self, seqs: Sequence[int]) -> None:
        """Give each sequence a slot. Raises `IndexError` if more run than were planned for."""
        if self.kept is not None:
            self._by_seq.update((seq, self._free.pop()) for seq in seqs)

    def end(self, seqs: Sequence[int]) -> None:
        """Free the slots; unknown sequences are ignored."""
        found = [self._by_seq.pop(seq) for seq in seqs if seq in self._by_seq]
        self._free.extend(found)
        if self.kept is not None:
            self.kept.end(seqs)

    def num_bytes(self) -> int:
        """Bytes of states and rings."""
        return 0 if self.kept is None else self.kept.num_bytes()

    def restore(self, chunks: Sequence[Chunk]) -> StateStep | None:
        """Restore the states with which these chunks begin. Returns the states that their rows, in
        this order, update.
        """
        if self.kept is None:
            return None
        kept, slot_of = self.kept, self._by_seq.__getitem__
        kept.restore(chunks, slot_of)
        spans, rests = spans_of(chunks, slot_of, kept.dummy_slot, kept.folds_of)
        kept.computed(chunks)
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
        return kept.step(plan, plan_verified(spans, self._device), tuple(stops))

    def save(self, chunks: Sequence[Chunk]) -> None:
        """Keep the states at the ends of these chunks that their `saves` name."""
        if self.kept is not None:
            self.kept.save(chunks, self._by_seq.__getitem__)
