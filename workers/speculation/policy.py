"""Whether a step verifies drafts, and how many, by measured times and expected gains.

Owns the measured times of passes, the choice among offers, and the trials of drafts that do not
seem to pay. Must not know where drafts come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, final

from workers.speculation.depth import DepthChoice, choose_depths
from workers.speculation.pass_cost import TimeTable

MARGIN: Final = 1.02
"""Drafts must promise this many times the pace of a step without drafts, because chances and times
are estimates.
"""

_BARE_EVERY: Final = 192
_BARE_STEPS: Final = 3
"""After `_BARE_EVERY` passes with drafts come `_BARE_STEPS` without, to measure those. The first is
not counted, because its time begins behind one with drafts."""

_TRIAL_EVERY: Final = 96
"""After this many steps that had offers and verified none, one step verifies some."""

_EXPLORES_EVERY: Final = 32
"""One in this many steps with drafts explores: it assumes the least possible time for sizes that
were never measured, up to twice the usual number of drafts.
"""

_TRUST: Final = 2
"""A step may have this many times the rows of the largest measured step, so larger steps are
measured by doubling.
"""

_FEW: Final = 8
"""Drafts of a trial, or of a quarter of the sequences if they are many."""

_MOST_PAUSE: Final = 16
"""The most steps for which offers are not looked at, after many that held none that pays."""

_HOPE_WEIGHT: Final = 0.1
_LEAST_HOPE: Final = 0.1
"""The gain of offers behind a token that is not known yet, as a share of the gain before it: the
weight of a new observation, and the least share."""

_BARE_SEEN: Final = 3
"""Steps without drafts that a host measures before it drafts, for as many sequences."""

_NEVER_S: Final = 1e9


@final
class SpeculationPolicy:
    """Decides by two tables of seconds by rows: `ahead`, of steps planned before the tokens of the
    step before are known, and `awaiting`, of steps planned after.

    Without `looks_ahead` all steps wait. Then, with `parts_bare`, `ahead` holds the times of steps
    without drafts. Only those behind another such step count, because the first one finds a CPU's
    caches full of other data and takes a third longer.
    """

    def __init__(
        self,
        *,
        looks_ahead: bool,
        ahead: TimeTable | None = None,
        awaiting: TimeTable | None = None,
        parts_bare: bool = False,
    ) -> None:
        self._parts_bare = parts_bare
        self._was_bare = False
        self.looks_ahead = looks_ahead
        self.awaiting = awaiting or TimeTable()
        has_two = looks_ahead or parts_bare
        self.ahead = ahead or TimeTable(takes_least=parts_bare) if has_two else self.awaiting
        self._num_drafting = 0
        self._num_drafts = 0
        self._num_bare_due = 0
        self._num_in_vain = 0
        self._num_looks = 0
        self._pause = 0
        self._hope = 1.0
        self._hoped = 0.0

    def took(self, rows: int, seconds: float, *, is_ahead: bool, is_bare: bool = False) -> None:
        """A step of decodes took `seconds`. `is_bare`: it verified no drafts and made none."""
        if self._parts_bare:
            was_bare, self._was_bare = self._was_bare, is_bare
            if not is_bare:
                self.awaiting.add(rows, seconds)
            elif was_bare:
                self.ahead.add(rows, seconds)
            return
        (self.ahead if is_ahead and self.looks_ahead else self.awaiting).add(rows, seconds)

    def looks(self) -> bool:
        """Whether offers are worth looking at for the next step."""
        if self._num_bare_due > 0:
            return False
        if self._pause > 0:
            self._pause -= 1
            return False
        return True

    def wants(self, chances: Sequence[Sequence[float]], num_sequences: int, room: int) -> bool:
        """Whether the next step should wait for tokens, to verify drafts of these chances behind
        them.
        """
        hope = self._hope
        scaled = [(hope * own[0], *own[1:]) for own in chances if own]
        choice = self.choose(scaled, num_sequences, room)
        self._hoped = choice.gain / hope
        self._num_looks = 0 if choice.num_drafts else self._num_looks + 1
        self._pause = min(_MOST_PAUSE, self._num_looks // 4)
        return choice.num_drafts > 0

    def found(self, choice: DepthChoice) -> None:
        """Record the choice that was made once the tokens that `wants` waited for were known."""
        if self._hoped > 0.0:
            share = min(1.0, choice.gain / self._hoped)
            self._hope = max(_LEAST_HOPE, self._hope + _HOPE_WEIGHT * (share - self._hope))
            self._hoped = 0.0

    def choose(
        self,
        chances: Sequence[Sequence[float]],
        num_sequences: int,
        room: int,
        draft_s: float = 0.0,
    ) -> DepthChoice:
        """Which of the offered drafts to verify, at most `room`; in a trial at least some. The
        draft pass for the next step takes `draft_s`. Prompts in the step would make drafts cheaper;
        that is ignored.
        """
        bare_s = self.ahead.seconds(num_sequences)
        if bare_s is None:
            return DepthChoice([0] * len(chances), 0, 0.0, 0.0)
        is_trial = self._num_in_vain >= _TRIAL_EVERY
        worst_s = _NEVER_S if is_trial else bare_s / MARGIN
        times = self._drafting_s
        room = min(room, self.trusted_room(num_sequences))
        if is_trial:
            room = min(room, max(_FEW, num_sequences // 4))
        elif self._num_drafting % _EXPLORES_EVERY == 1:
            room, times = min(room, 2 * self._num_drafts + _FEW), self._least_s
        verify_s, sizes = partial(times, bare_s), self.awaiting.sizes

        def seconds(rows: int) -> float:
            return verify_s(rows) + draft_s

        return choose_depths(chances, num_sequences, room, worst_s, seconds, sizes)

    def knows_bare(self, num_sequences: int) -> bool:
        """Whether steps of `num_sequences` sequences without drafts were measured often enough, or
        both steps of fewer and of more sequences were. Beyond the largest measured number the
        policy does not guess.
        """
        num_seen = self.ahead.num_seen(num_sequences)
        least = _BARE_SEEN if self._parts_bare else 1
        return num_seen >= least or (not num_seen and self.ahead.spans(num_sequences))

    def trusted_room(self, num_sequences: int) -> int:
        """How many drafts a step of `num_sequences` sequences may verify, by the sizes measured so
        far.
        """
        known = max(num_sequences, self.awaiting.largest)
        return max(_FEW, _TRUST * known - num_sequences)

    def verify_s(self, num_sequences: int, rows: int) -> float:
        """Seconds of a step of `num_sequences` that verifies drafts, `rows` rows in all. The time
        without drafts must be known.
        """
        return self._drafting_s(self.ahead.seconds(num_sequences) or 0.0, rows)

    def planned(self, num_drafts: int, *, had_offers: bool) -> None:
        """Record that a step with `num_drafts` drafts was planned."""
        if num_drafts:
            self._num_drafts = num_drafts
            self._num_in_vain = 0
            self._num_drafting += 1
            if self._num_drafting >= _BARE_EVERY and self.looks_ahead:
                self._num_drafting, self._num_bare_due = 0, _BARE_STEPS
            return
        self._num_in_vain += had_offers
        self._num_bare_due = max(0, self._num_bare_due - 1)

    def _least_s(self, bare_s: float, rows: int) -> float:
        return max(bare_s, self.awaiting.least_seconds(rows) or 0.0)

    def _drafting_s(self, bare_s: float, rows: int) -> float:
        """The time of a step that verifies `rows` rows: as measured, or beyond the measured
        sizes at least that of a step ahead with as many rows.
        """
        known = self.awaiting.seconds(rows)
        if known is not None and self.awaiting.spans(rows):
            return known
        return max(known or bare_s, self.ahead.seconds(rows) or bare_s)
