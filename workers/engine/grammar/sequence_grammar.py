"""The state of one sequence's grammar. Owns the matcher of one sequence and the position at which
its grammar begins. Must not know logits or devices: a mask is a row of bits on the host.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, final

import numpy as np

from protocol.errors import HermaError
from protocol.messages import Grammar
from workers.engine.memory.budget import num_processors

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

Words: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int32]]
Rows: TypeAlias = np.ndarray[tuple[int, int], np.dtype[np.int32]]

ALL_BITS: Final = -1
MAX_TAKEN_BACK: Final = 64
"""Tokens that can be taken back: more than the drafts of a step."""

_MANY: Final = 4
"""Rows from which threads are worth their start."""

_MAX_THREADS: Final = 8
_WORD_BITS: Final = 32


class GrammarBroken(HermaError):
    """A grammar cannot be followed; the text is the reason, in one line."""


class GrammarVocabulary(NamedTuple):
    """`size` logits; `gap_id` is the token that may stand between reasoning and answer; `eos_ids`
    end a sequence.
    """

    size: int
    gap_id: int | None
    eos_ids: tuple[int, ...] = ()

    @property
    def num_words(self) -> int:
        """Words of a mask."""
        return -(-self.size // _WORD_BITS)


@contextmanager
def _emptied_if_broken(row: Words) -> Iterator[None]:
    try:
        yield
    except GrammarBroken:
        row[:] = 0


@cache
def _executor() -> LLExecutor:
    """Threads of the library: a mask takes 40 us, and up to 2 ms."""
    from llguidance import LLExecutor  # noqa: PLC0415 -- most engines see no grammar

    return LLExecutor(num_threads=max(1, min(_MAX_THREADS, num_processors() // 2)))


class _Place(Enum):
    """What the next token belongs to."""

    START = "reasoning, if it is the token that opens it, else the answer"
    REASONING = "reasoning"
    GAP = "the answer, or what stands before it"
    ANSWER = "the answer"


class _Taken(NamedTuple):
    """A token that was followed, the place before it, and whether the matcher moved."""

    token_id: int
    place: _Place
    is_matched: bool


@final
class SequenceGrammar:
    """`matcher` is this sequence's own. It never moves past a token that `fill` did not get, and
    back behind those of the last `MAX_TAKEN_BACK` that the next call no longer has: drafts.
    """

    def __init__(self, matcher: LLMatcher, grammar: Grammar, vocabulary: GrammarVocabulary) -> None:
        self.error = ""
        self.matcher = matcher
        self.source = grammar
        self._vocabulary = vocabulary
        self._closing_id = grammar.closing_id
        self._opening_id = grammar.opening_id
        self._num_seen = 0
        self._taken: list[_Taken] = []
        if grammar.closing_id is None:
            self._place = _Place.ANSWER
        else:
            self._place = _Place.REASONING if grammar.opening_id is None else _Place.START

    def fill(self, outputs: array[int], row: Words) -> int | None:
        """Write to `row` which tokens may come behind `outputs`, all that the sequence has; returns
        the token if there is only one. Raises `GrammarBroken` if no token may come.
        """
        if not self.follow(outputs, row):
            return None
        self.matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        return self.complete(row)

    @staticmethod
    def fill_all(
        grammars: Sequence[tuple[int, SequenceGrammar, array[int]]], rows: Rows
    ) -> list[int | None]:
        """`fill` for many rows at once, in threads. `rows` int32 [n, words] is contiguous; in
        `grammars` is a row's number with what follows there. A row whose grammar allows no token,
        or cannot be followed, is 0 throughout, and the grammar has the `error`.
        """
        asked: list[tuple[LLMatcher, int]] = []
        for row, grammar, outputs in grammars:
            with _emptied_if_broken(rows[row]):
                if grammar.follow(outputs, rows[row]):
                    asked.append((grammar.matcher, row))
        if len(asked) >= _MANY:
            _executor().unsafe_compute_mask_ptr(asked, rows.ctypes.data, rows[0].nbytes, len(rows))
        else:
            for matcher, row in asked:
                matcher.unsafe_compute_mask_ptr(rows[row].ctypes.data, rows[row].nbytes)
        lone: list[int | None] = [None] * len(grammars)
        computed = {row for _, row in asked}
        for index, (row, grammar, _) in enumerate(grammars):
            if row in computed:
                with _emptied_if_broken(rows[row]):
                    lone[index] = grammar.complete(rows[row])
        return lone

    def follow(self, outputs: array[int], row: Words) -> bool:
        """Move behind `outputs`. True if the matcher says what may come next; else any token may
        that does not end the sequence, as `row` shows: the answer has to follow the reasoning.
        Raises `GrammarBroken`.
        """
        self._move_behind(outputs)
        if self._place is _Place.REASONING:
            row[:] = ALL_BITS
            for token_id in self._vocabulary.eos_ids:
                _forbid(row, token_id)
            return False
        return True

    def complete(self, row: Words) -> int | None:
        """Add to the matcher's mask what may stand before the answer; returns the token if there
        is only one. Raises `GrammarBroken`.
        """
        if self.matcher.is_error():
            self._break(self.matcher.get_error())
        if self._place is _Place.START and self._opening_id is not None:
            _allow(row, self._opening_id)
        elif self._place is _Place.GAP and self._vocabulary.gap_id is not None:
            _allow(row, self._vocabulary.gap_id)
        return self._lone(row)

    def num_allowed(self, outputs: array[int], drafts: Sequence[int]) -> int:
        """How many of the leading `drafts` may come behind `outputs`: none if those cannot be
        followed, of which the next mask tells.
        """
        try:
            self._move_behind(outputs)
        except GrammarBroken:
            return 0
        for index, token_id in enumerate(drafts):
            if not self._may_take(token_id):
                return index
            self._take(token_id)
        return len(drafts)

    def _may_take(self, token_id: int) -> bool:
        if self._place is _Place.REASONING:
            return token_id not in self._vocabulary.eos_ids
        return self._next_place(token_id) is not None or bool(
            self.matcher.validate_tokens([token_id])
        )

    def _move_behind(self, outputs: array[int]) -> None:
        self._take_back(outputs)
        for token_id in outputs[self._num_seen :]:
            self._take(token_id)
        del self._taken[:-MAX_TAKEN_BACK]

    def _take_back(self, outputs: array[int]) -> None:
        """Take back the last tokens from the matcher until its tokens are a prefix of `outputs`."""
        taken, first = self._taken, self._num_seen - len(self._taken)
        num_same = 0
        for token_id, one in zip(outputs[first : self._num_seen], taken, strict=False):
            if token_id != one.token_id:
                break
            num_same += 1
        gone = taken[num_same:]
        if gone:
            del taken[num_same:]
            self._place = gone[0].place
            self._num_seen -= len(gone)
            self.matcher.rollback(sum([one.is_matched for one in gone]))

    def _take(self, token_id: int) -> None:
        place, after = self._place, self._next_place(token_id)
        self._place = after or _Place.ANSWER
        if after is None and not self.matcher.consume_token(token_id):
            self._break(f"token {token_id} does not follow it. {self.matcher.get_error()}")
        self._taken.append(_Taken(token_id, place, after is None))
        self._num_seen += 1

    def _next_place(self, token_id: int) -> _Place | None:
        """Where a token leads that stands before the answer; None if it is part of it."""
        place = self._place
        if place is _Place.REASONING:
            return _Place.GAP if token_id == self._closing_id else place
        if place is _Place.START and token_id == self._opening_id:
            return _Place.REASONING
        if place is _Place.GAP and token_id == self._vocabulary.gap_id:
            return _Place.ANSWER
        return None

    def _lone(self, row: Words) -> int | None:
        # Counted first: for a vocabulary of 150k it takes a third of the time of finding them.
        num_used = np.count_nonzero(row)
        if num_used == 0:
            self._break("no token can follow")
        if num_used > 1:
            return None
        index = int(np.flatnonzero(row)[0])
        word = int(row[index]) & 0xFFFFFFFF
        return index * _WORD_BITS + word.bit_length() - 1 if word & (word - 1) == 0 else None

    def _break(self, why: str) -> None:
        self.error = f"the grammar cannot be followed: {' '.join(why.split())[:400]}"
        raise GrammarBroken(self.error)


def _allow(row: Words, token_id: int) -> None:
    if token_id < row.size * _WORD_BITS:
        row.view(np.uint32)[token_id // _WORD_BITS] |= np.uint32(1 << (token_id % _WORD_BITS))


def _forbid(row: Words, token_id: int) -> None:
    if token_id < row.size * _WORD_BITS:
        row.view(np.uint32)[token_id // _WORD_BITS] &= np.uint32(
            ~(1 << (token_id % _WORD_BITS)) & 0xFFFFFFFF
        )
