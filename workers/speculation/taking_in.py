"""Which sequences a drafter takes in, on a host, where that costs time.

Owns the measured cost of prompts, the length of answers, and which blocks were computed without the
drafter. Must not know a step's depth, nor where drafts come from.

To take a sequence in is to give the drafter every row of it. Behind a gap its drafts are worse (an
MTP head's first is right 0.6 of the times instead of 0.9), so a sequence is taken in from its start
on or never, and once it is left out it stays so. The drafter is awake for the sequences that are
taken in and asleep for the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, final

from workers.scheduler import Chunk

FIRST_ANSWER: Final = 64.0
"""The assumed tokens of an answer before any has ended."""

_MEMORY: Final = 16.0
"""Observations after which older ones count half: answers, and prompts of 256 rows."""

_BESIDE: Final = 1.5
"""A prompt's rows cost this many times the drafter's own pass, because the target must compute its
last layer for all of them: 1.55 for herma-tiny on a Xeon.
"""

_TRIAL_SHARE: Final = 0.005
"""The share of all time that trials may take: sequences that are taken in although that does not
seem to pay, to measure whether it does."""

_TRIAL_EVERY: Final = 8
"""At most one in this many sequences is a trial."""

_LATELY_S: Final = 300.0
"""The share of trials is taken over the last 300 to 600 s."""

_DOZES_AFTER: Final = 8
"""Steps in a row in which drafts do not pay, after which all running sequences are left out."""


class Mean(NamedTuple):
    """The mean of a `number` of observations with this `total`; older ones count less."""

    total: float = 0.0
    number: float = 0.0

    def value(self, first: float) -> float:
        """The mean, or `first` without observations."""
        return self.total / self.number if self.number else first

    def with_more(self, total: float, number: float, memory: float) -> Mean:
        """With more observations; the old ones are halved beyond twice `memory` of them."""
        kept = 0.5 if self.number > 2 * memory else 1.0
        return Mean(kept * self.total + total, kept * self.number + number)


class Expense(NamedTuple):
    """The learned costs: tokens of an answer, and seconds for a row of a prompt."""

    answers: Mean = Mean()
    rows: Mean = Mean()


@final
class TakingIn:
    """Decides for each new sequence, and remembers it. Blocks hold `block_size` tokens."""

    def __init__(self, block_size: int, expense: Expense | None = None) -> None:
        self.expense = expense or Expense()
        self.pays = True
        """Whether the last sequence decided on should earn its cost."""
        self.is_trial = False
        """Whether the last sequence decided on is taken in as a trial."""
        self._block_size = block_size
        self._new: dict[int, int] = {}
        self._awake: set[int] = set()
        self._trials: set[int] = set()
        self._lengths: dict[int, int] = {}
        self._missed: set[int] = set()
        self._num_dozing = 0
        self._num_since_trial = _TRIAL_EVERY
        self._spent_s = 0.0
        self._total_s = 0.0

    @property
    def has_new(self) -> bool:
        """Whether there are sequences to decide on."""
        return bool(self._new)

    @property
    def sleeps(self) -> bool:
        """Whether no sequence is taken in, and the next one is expected not to be."""
        return not self._awake and not self.pays

    def start(self, seq: int, num_tokens: int) -> None:
        """A sequence starts with `num_tokens` known tokens."""
        self._new[seq] = num_tokens

    def end(self, seq: int) -> None:
        """The sequence is over."""
        self._new.pop(seq, None)
        self._awake.discard(seq)
        self._trials.discard(seq)
        if num_tokens := self._lengths.pop(seq, 0):
            answers = self.expense.answers.with_more(num_tokens, 1.0, _MEMORY)
            self.expense = self.expense._replace(answers=answers)

    def answered(self, num_tokens: Mapping[int, int]) -> None:
        """Each sequence's answer grew by `num_tokens`."""
        lengths = self._lengths
        for seq, more in num_tokens.items():
            lengths[seq] = lengths.get(seq, 0) + more

    def decide(self, chunks: Sequence[Chunk], saved_s: float | None) -> None:
        """Decide on the sequences that start with these chunks. With drafts a token takes `saved_s`
        less; None where that was not measured.
        """
        self.is_trial = False
        for chunk in chunks:
            num_tokens = self._new.pop(chunk.seq, None)
            if num_tokens is not None and self._is_whole(chunk):
                self._decide(chunk.seq, num_tokens - chunk.start, saved_s)

    def is_awake(self, seq: int) -> bool:
        """Whether the sequence is taken in."""
        return seq in self._awake

    def planned(self, chunks: Sequence[Chunk], *, is_resting: bool) -> bool:
        """Whether the drafter takes in a step of these chunks: all sequences or none, because a
        pass over some of them costs as much as a pass over all. `is_resting`: drafts do not pay
        now.
        """
        self._num_dozing = self._num_dozing + 1 if is_resting else 0
        if self._num_dozing >= _DOZES_AFTER:
            self._awake.clear()
            self._trials.clear()
        takes = bool(self._awake) and any(chunk.seq in self._awake for chunk in chunks)
        size, missed = self._block_size, self._missed
        for chunk in chunks:
            if not takes:
                end = chunk.start + chunk.num_rows
                missed.update(chunk.block_ids[chunk.start // size : -(-end // size)])
            elif missed:
                missed.difference_update(chunk.block_ids[-(-chunk.start // size) :])
        return takes

    def took(self, seconds: float, drafting_s: float) -> None:
        """A step took `seconds`, of which the drafter took `drafting_s`."""
        self._total_s += seconds
        if self._trials:
            self._spent_s += drafting_s
        if self._total_s > 2 * _LATELY_S:
            self._total_s, self._spent_s = 0.5 * self._total_s, 0.5 * self._spent_s

    def took_prompt(self, num_rows: int, seconds: float) -> None:
        """A draft pass took `seconds` longer for `num_rows` rows of prompts."""
        rows = self.expense.rows
        more = rows.with_more(max(0.0, seconds), num_rows, 256.0 * _MEMORY)
        self.expense = self.expense._replace(rows=more)

    def _decide(self, seq: int, num_rows: int, saved_s: float | None) -> None:
        expense = self.expense
        cost_s = _BESIDE * num_rows * expense.rows.value(0.0)
        gain_s = (saved_s or 0.0) * expense.answers.value(FIRST_ANSWER)
        self.pays = gain_s > cost_s
        self._num_since_trial += 1
        if not self.pays:
            if not self._may_try(cost_s):
                return
            self.is_trial = True
            self._num_since_trial = 0
            self._trials.add(seq)
        self._num_dozing = 0
        self._awake.add(seq)

    def _may_try(self, cost_s: float) -> bool:
        if not self._total_s:
            return True
        is_due = self._num_since_trial >= _TRIAL_EVERY
        return is_due and self._spent_s + cost_s <= _TRIAL_SHARE * self._total_s

    def _is_whole(self, chunk: Chunk) -> bool:
        """Whether the drafter has taken in the whole prefix that was found in the cache."""
        return not self._missed or self._missed.isdisjoint(
            chunk.block_ids[: -(-chunk.start // self._block_size)]
        )
