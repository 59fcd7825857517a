"""Which rows of a step move on the state of which sequence, as words for the card.

Owns their layout, and the slots of sequences on a CPU; on a card the slot of a sequence is its row
of the tables. Must not know what a state is.
"""

from collections.abc import Callable, Iterable, Sequence
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
from workers.engine.models.state_slots import StateSlots, StateStep
from workers.engine.step.batch import PagedRows, aligned
from workers.scheduler import NO_SLOT, Chunk

_Words: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int32]]


class SpanRoom(NamedTuple):
    """Room for so many decodes, then so many segments, which are cut into so many chunks; the words
    of it have `starts`, `slots`, `offsets` and `chunks`, each at a multiple of 16 bytes.
    """

    num_decodes: int
    num_segments: int
    num_chunks: int

    @classmethod
    def holding(cls, num_decodes: int, segment_rows: int, num_segments: int) -> "SpanRoom":
        """For segments of `segment_rows` rows in all, however they share them."""
        return cls(num_decodes, num_segments, most_chunks(segment_rows, num_segments))

    @classmethod
    def of(cls, rows: PagedRows) -> "SpanRoom":
        """For these rows and no others."""
        chunks = chunk_list([segment.num_rows for segment in rows.segments], 0)
        return cls(rows.num_decodes, len(rows.segments), len(chunks))

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

    def lay_out(self, rows: PagedRows, words: _Words) -> None:
        """Enter rows for which there is room into words that are `empty`: decodes first, then, from
        row `num_decodes` on, segments.
        """
        starts, slots, offsets, chunks = self._places()
        count, first = rows.num_decodes, self.num_decodes
        words[starts][:count], words[slots][:count] = (
            rows.positions[:count],
            rows.table_rows[:count],
        )
        end = first + len(rows.segments)
        words[starts][first:end] = [segment.start for segment in rows.segments]
        words[slots][first:end] = [segment.table_row for segment in rows.segments]
        lengths = [segment.num_rows for segment in rows.segments]
        ends = first + np.cumsum(lengths, dtype=np.int32)
        words[offsets][first + 1 : end + 1] = ends
        words[offsets][end + 1 :] = ends[-1] if lengths else first
        entries = chunk_list(lengths, first).reshape(-1)
        words[chunks][: len(entries)] = entries

    def plan(self, words: Tensor) -> DeltaPlan:
        """What words on the card mean."""
        starts, slots, offsets, chunks = [words[place] for place in self._places()]
        return DeltaPlan(starts, slots, offsets, self.num_decodes, chunks.view(-1, 2))

    def _places(self) -> list[slice]:
        num_spans = self.num_decodes + self.num_segments
        found, begin = [], 0
        for size in (num_spans, num_spans, num_spans + 1, 2 * self.num_chunks):
            found.append(slice(begin, begin + size))
            begin += aligned(size)
        return found


@final
class KeptStates:
    """The states of up to `num_slots` `running` sequences, behind which lies `dummy_slot`, for rows
    that pad a step, and those of `num_prefixes` prefixes.

    Copies go behind what was launched before: what they read is written, what they write was read.
    """

    def __init__(self, model: Network, num_slots: int, num_prefixes: int) -> None:
        config, dtype = model.config, model.weights.embedding.dtype
        self.running = StateSlots(config, num_slots + 1, model.device, dtype)
        self.dummy_slot = num_slots
        self._prefixes = StateSlots(config, num_prefixes, model.device, dtype)

    def restore(self, chunks: Iterable[Chunk], slot_of: Callable[[int], int]) -> None:
        """Before a step: what its chunks begin with; `slot_of` a sequence."""
        for chunk in chunks:
            if chunk.restores != NO_SLOT:
                self.running.copy(slot_of(chunk.seq), self._prefixes, chunk.restores)

    def save(self, chunks: Iterable[Chunk], slot_of: Callable[[int], int]) -> None:
        """Behind a step: what is kept of it."""
        for chunk in chunks:
            if chunk.saves != NO_SLOT:
                self._prefixes.copy(chunk.saves, self.running, slot_of(chunk.seq))

    def num_bytes(self) -> int:
        """What all slots take."""
        return self.running.num_bytes() + self._prefixes.num_bytes()


def kept_states(model: Network, num_slots: int, num_prefixes: int | None) -> KeptStates | None:
    """Of a network that has states, for so many sequences and prefixes."""
    if not model.config.delta_rules:
        return None
    return KeptStates(model, num_slots, num_prefixes or 0)


def decode_plan(positions: Tensor, table_rows: Tensor) -> DeltaPlan:
    """The plan of single rows at these positions, int32 [rows], `NO_ROW` for padding."""
    num_rows, device = len(positions), positions.device
    offsets = torch.arange(num_rows + 1, dtype=torch.int32, device=device)
    nothing = torch.empty((0, 2), dtype=torch.int32, device=device)
    return DeltaPlan(positions, table_rows, offsets, num_rows, nothing)


@final
class HostSlots:
    """Which slot each sequence has. Nothing where a network has no states."""

    def __init__(self, model: Network, facts: EngineFacts) -> None:
        self.kept = kept_states(model, facts.max_seqs, facts.snapshots)
        self._device = model.device
        self._by_seq: dict[int, int] = {}
        self._free = list(range(facts.max_seqs))

    def start(self, seqs: Sequence[int]) -> None:
        """Give each sequence a slot. Raises `IndexError` if more run than were planned for."""
        if self.kept is not None:
            self._by_seq.update((seq, self._free.pop()) for seq in seqs)

    def end(self, seqs: Sequence[int]) -> None:
        """Take the slots back; unknown sequences are no fault."""
        found = [self._by_seq.pop(seq) for seq in seqs if seq in self._by_seq]
        self._free.extend(found)

    def restore(self, chunks: Sequence[Chunk]) -> StateStep | None:
        """The states that these chunks, in this order, move on, as they begin."""
        if self.kept is None:
            return None
        self.kept.restore(chunks, self._by_seq.__getitem__)
        spans = [Span(chunk.start, chunk.length, self._by_seq[chunk.seq]) for chunk in chunks]
        return StateStep(self.kept.running, plan_spans(spans, self._device))

    def save(self, chunks: Sequence[Chunk]) -> None:
        """Keep the states behind these chunks that are to be kept."""
        if self.kept is not None:
            self.kept.save(chunks, self._by_seq.__getitem__)
