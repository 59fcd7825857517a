"""Token counts of sequences with penalties, on the device, and the adjustment of their logits.

A sequence that has only a grammar is treated the same, with penalties that change nothing.

Owns the counts, and which of their rows (a slot) belongs to which sequence. Must not know draws,
nor when a table is sent again (`draws.RowOrder`).

All memory is taken at once, at the start. So the measurement of the largest step includes it, and
no request with penalties can run out of it. A sequence that ended may still have a step in flight
that counts into its slot; the next owner clears the slot behind that step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from kernels.penalise import ENTRY_WORDS, IN_PROMPT, MAX_OUTPUTS, Penalties, count, mark, penalise
from kernels.pinned import to_device
from workers.engine.models.state_slots import Place
from workers.engine.step.batch import SequenceState, aligned
from workers.engine.step.draws import WIDENED_ROWS, RowOrder, is_adjusted, send_columns

_Words: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int32]]


class _Part(NamedTuple):
    """The penalised rows [begin, end)."""

    begin: int
    end: int
    penalties: Penalties


class Adjusted(NamedTuple):
    """Float32 `logits` of the penalised rows [begin, end), valid until the next part is made."""

    begin: int
    end: int
    logits: Tensor


@final
class PenaltyTable:
    """Counts of up to `num_rows` sequences, and penalties of as many rows. The memory of counts is
    that of `place`, None: torch's. Without sequences its content is nothing to keep.
    """

    def __init__(
        self, vocab_size: int, num_rows: int, device: torch.device, place: Place | None = None
    ) -> None:
        self._device = device
        place = place or partial(_empty, device)
        self._adjusted = place((min(num_rows, WIDENED_ROWS), vocab_size), torch.float32)
        self._counts = place((num_rows, vocab_size), torch.int16)
        self._places = torch.zeros((2, aligned(num_rows)), dtype=torch.int64, device=device)
        self._amounts = torch.zeros((3, aligned(num_rows)), dtype=torch.float32, device=device)
        self._slots: dict[int, int] = {}
        self._free = list(range(num_rows - 1, -1, -1))
        self._order = RowOrder()
        self._penalised = self._rows(0, 0)
        self._parts: list[_Part] = []

    def __repr__(self) -> str:
        return f"<PenaltyTable slots={self._slots} free={len(self._free)}>"

    def forget(self, seqs: Sequence[int]) -> None:
        """Forget ended sequences: other sequences may get their numbers and their slots."""
        self._order.forget(seqs)
        for seq in seqs:
            slot = self._slots.pop(seq, None)
            if slot is not None:
                self._free.append(slot)

    def arrange(self, states: Sequence[SequenceState]) -> Tensor:
        """Set row i of the next step to `states[i]`. Returns the rows that are penalised, int64.
        The counts of a new sequence begin with the tokens that the host knows now.
        """
        if not self._order.is_new(states):
            return self._penalised.rows
        rows = [row for row, state in enumerate(states) if is_adjusted(state)]
        members = [states[row] for row in rows]
        self._set_up([state for state in members if state.seq not in self._slots])
        if rows:
            slots = [self._slots[state.seq] for state in members]
            params = [state.sampling for state in members]
            amounts = [
                [p.repetition_penalty for p in params],
                [p.frequency_penalty for p in params],
                [p.presence_penalty for p in params],
            ]
            send_columns(self._places, np.array([rows, slots], np.int64))
            send_columns(self._amounts, np.array(amounts, np.float32))
        self._penalised = self._rows(0, len(rows))
        self._parts = [self._part(begin, len(rows)) for begin in range(0, len(rows), WIDENED_ROWS)]
        self._order.sent()
        return self._penalised.rows

    def adjust(self, logits: Tensor) -> Iterator[Adjusted]:
        """The adjusted logits of the penalised rows, part by part; `logits` [rows, vocab] are those
        of the rows of the last `arrange`.
        """
        for begin, end, penalties in self._parts:
            out = self._adjusted[: end - begin]
            penalise(logits, self._counts, penalties, out)
            yield Adjusted(begin, end, out)

    def count(self, ids: Tensor) -> None:
        """Count the tokens `ids` int64 [rows] of the last `arrange` as outputs; -1 is none."""
        count(ids, self._counts, self._penalised)

    def _set_up(self, fresh: Sequence[SequenceState]) -> None:
        """Give each new sequence a slot with the counts of its prompt and its outputs."""
        if not fresh:
            return
        slots = self._free[len(self._free) - len(fresh) :]
        taken = list(zip(slots, fresh, strict=True))
        prompts = np.concatenate([_prompt_entries(slot, state) for slot, state in taken])
        outputs = np.concatenate([_output_entries(slot, state) for slot, state in taken])
        sent = [to_device(part, self._device) for part in (prompts, outputs) if part.size]
        for slot in slots:
            self._counts[slot].zero_()
        for entries in sent:
            mark(entries, self._counts)
        del self._free[len(self._free) - len(fresh) :]
        self._slots.update({state.seq: slot for slot, state in taken})

    def _part(self, begin: int, num_rows: int) -> _Part:
        end = min(begin + WIDENED_ROWS, num_rows)
        return _Part(begin, end, self._rows(begin, end))

    def _rows(self, begin: int, end: int) -> Penalties:
        rows, slots = self._places[:, begin:end].unbind()
        return Penalties(rows, slots, *self._amounts[:, begin:end].unbind())


def _empty(device: torch.device, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


def _prompt_entries(slot: int, state: SequenceState) -> _Words:
    """Flat entries of `mark`."""
    tokens = np.array(state.tokens[: state.num_prompt], np.int32)
    return _entries(slot, tokens, np.full(len(tokens), IN_PROMPT, np.int32))


def _output_entries(slot: int, state: SequenceState) -> _Words:
    """Flat entries of `mark` for the outputs so far; a new sequence has some after a resume."""
    said = np.array(state.tokens[state.num_prompt :], np.int32)
    tokens, times = np.unique(said, return_counts=True)
    return _entries(slot, tokens, np.minimum(times, MAX_OUTPUTS).astype(np.int32))


def _entries(slot: int, tokens: _Words, words: _Words) -> _Words:
    entries = np.empty((len(tokens), ENTRY_WORDS), np.int32)
    entries[:, 0] = slot
    entries[:, 1] = tokens
    entries[:, 2] = words
    return entries.ravel()
