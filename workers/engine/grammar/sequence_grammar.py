"""Where one sequence stands in its grammar.

Owns the matcher of one sequence and where its grammar begins. Must not know logits or devices: a
mask is a row of bits on the host.
"""

from __future__ import annotations

from array import array
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, final

import numpy as np

from protocol.errors import HermaError
from protocol.messages import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher

Words: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int32]]

ALL_BITS: Final = -1
_WORD_BITS: Final = 32


class GrammarBroken(HermaError):
    """A grammar cannot be followed; the text is the reason, in one line."""


class Vocabulary(NamedTuple):
    """`size` logits; `gap_id` is the token that may stand between reasoning and answer."""

    size: int
    gap_id: int | None

    @property
    def num_words(self) -> int:
        """Words of a mask."""
        return -(-self.size // _WORD_BITS)


class _Place(Enum):
    """What the next token belongs to."""

    START = "reasoning, if it is the token that opens it, else the answer"
    REASONING = "reasoning"
    GAP = "the answer, or what stands before it"
    ANSWER = "the answer"


@final
class SequenceGrammar:
    """`matcher` is this sequence's own. It never moves past a token that `fill` did not get."""

    def __init__(self, matcher: LLMatcher, grammar: Grammar, vocabulary: Vocabulary) -> None:
        self.error = ""
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._closing_id = grammar.closing_id
        self._opening_id = grammar.opening_id
        self._num_seen = 0
        if grammar.closing_id is None:
            self._place = _Place.ANSWER
        else:
            self._place = _Place.REASONING if grammar.opening_id is None else _Place.START

    def fill(self, outputs: array[int], row: Words) -> int | None:
        """Write to `row` which tokens may come behind `outputs`, all that the sequence has; returns
        the token if there is only one. Raises `GrammarBroken` if no token may come.
        """
        for token_id in outputs[self._num_seen :]:
            self._take(token_id)
        self._num_seen = len(outputs)
        if self._place is _Place.REASONING:
            row[:] = ALL_BITS
            return None
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if self._matcher.is_error():
            self._break(self._matcher.get_error())
        if self._place is _Place.START and self._opening_id is not None:
            _allow(row, self._opening_id)
        elif self._place is _Place.GAP and self._vocabulary.gap_id is not None:
            _allow(row, self._vocabulary.gap_id)
        return self._lone(row)

    def _take(self, token_id: int) -> None:
        place = self._place
        if place is _Place.REASONING:
            if token_id == self._closing_id:
                self._place = _Place.GAP
            return
        if place is _Place.START and token_id == self._opening_id:
            self._place = _Place.REASONING
            return
        self._place = _Place.ANSWER
        if place is _Place.GAP and token_id == self._vocabulary.gap_id:
            return
        if not self._matcher.consume_token(token_id):
            self._break(f"token {token_id} does not follow it. {self._matcher.get_error()}")

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
