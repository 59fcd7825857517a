"""Which sequences a drafter takes in, where taking them in costs time that an answer must earn.

Owns what is known of that cost, of the length of answers, and of blocks that were computed while
the drafter slept. Must not know a step's depth, nor where drafts come from.

A drafter is given every row of a sequence or none from some step on: behind a gap its drafts are
worse (an MTP head's first is right 0.6 of the times instead of 0.9). So it sleeps for a sequence
from its start, where the answer should be too short for the prompt, and from the step on in which
it is put to sleep, for the rest of its life.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, final

from workers.scheduler import Chunk

FIRST_ANSWER: Final = 64.0
"""Tokens of an answer before any has ended."""

_MEMORY: Final = 16.0
"""Answers, and prompts, by which their mean is decided."""

_BESIDE: Final = 1.5
"""A prompt's rows cost so many times the drafter's own pass, where the target must compute its last
layer for all of them: of herma-tiny on a Xeon 1.55."""

_TRIAL_SHARE: Final = 0.005
"""Of all time what trials may take: sequences that are taken in though that does not seem to pay,
so that it is known if it ever does."""

_TRIAL_EVERY: Final = 8
"""Sequences among which one is such a trial, at most."""

_LATELY_S: Final = 300.0
"""What trials took is compared with so much time, or twice of it."""

_DOZES_AFTER: Final = 8
"""Steps without drafts, because they do not pay, until it sleeps for all that run."""


class Mean(NamedTuple):
    """Of so many, all alike."""

    total: float = 0.0
    number: float = 0.0

    def value(self, first: float) -> float:
        """`first` where there were none."""
        return self.total / self.number if self.number else first

    def with_more(self, total: float, number: float, memory: float) -> Mean:
        """As many more, of this sum."""
        kept = 0.5 if self.number > 2 * memory else 1.0
        return Mean(kept * self.total + total, kept * self.number + number)


class Expense(NamedTuple):
    """What is learned: the tokens of answers, and the seconds of rows of prompts."""

    answers: Mean = Mean()
    rows: Mean = Mean()


@final
class TakingIn:
    """It is awake for the sequences that are taken in. Blocks hold `block_size` tokens."""

    def __init__(self, block_size: int, expense: Expense | None = None) -> None:
        self.expense = expense or Expense()
        self.pays = True
        """Whether it paid for the last sequence that was decided of."""
        self.is_trial = False
        """Whether the last one is taken in all the same."""
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
        """Whether there are sequences to decide of."""
        return bool(self._new)

    @property
    def sleeps(self) -> bool:
        """Whether it is awake for no sequence, and hardly will be for the next one."""
        return not self._awake and not self.pays

    def start(self, seq: int, num_tokens: int) -> None:
        """A sequence starts, of which so many tokens are known."""
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
        """So many tokens more, by sequence."""
        lengths = self._lengths
        for seq, more in num_tokens.items():
            lengths[seq] = lengths.get(seq, 0) + more

    def decide(self, chunks: Sequence[Chunk], saved_s: float | None) -> None:
        """Of the sequences that start with these chunks. A token takes `saved_s` less with drafts;
        None: that is not known.
        """
        self.is_trial = False
        for chunk in chunks:
            num_tokens = self._new.pop(chunk.seq, None)
            if num_tokens is not None and self._is_whole(chunk):
                self._decide(chunk.seq, num_tokens - chunk.start, saved_s)

    def is_awake(self, seq: int) -> bool:
        """Whether it is taken in."""
        return seq in self._awake

    def planned(self, chunks: Sequence[Chunk], *, is_resting: bool) -> bool:
        """Whether to take in a step of these chunks; then all of them, for that costs as much.
        `is_resting`: drafts do not pay now.
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
        """A step took so long, `drafting_s` of it the drafter."""
        self._total_s += seconds
        if self._trials:
            self._spent_s += drafting_s
        if self._total_s > 2 * _LATELY_S:
            self._total_s, self._spent_s = 0.5 * self._total_s, 0.5 * self._spent_s

    def took_prompt(self, num_rows: int, seconds: float) -> None:
        """So many rows of prompts were taken in, in a pass of so long."""
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
        """Whether all that was found in the cache was taken in."""
        return not self._missed or self._missed.isdisjoint(
            chunk.block_ids[: -(-chunk.start // self._block_size)]
        )
