"""How many drafts a drafting network makes behind a step, possibly none.

Owns the times of draft passes, the choice of one depth for all sequences of a step, and the trials
of depths that do not seem to pay. Must not know which of the drafts are verified (`policy.py`), nor
the network.

The drafter takes in the rows of steps without drafts too, so it has nothing to catch up with when
drafts begin to pay. On a host that costs time, and is not done for all sequences (`taking_in.py`);
then drafts are made only for those that are taken in.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from itertools import accumulate
from operator import mul
from typing import Final, final

from workers.speculation.pass_cost import TimeTable
from workers.speculation.place_odds import FADED_TRIES, PlaceOdds
from workers.speculation.policy import MARGIN, SpeculationPolicy

DEPTHS: Final = (1, 2, 3, 4, 5, 7, 10, 15)
"""The depths to choose from: few, because a card captures a graph of a pass for each of them."""

_TRIAL_EVERY: Final = 96
_MOST_TRIAL_EVERY: Final = 12 * _TRIAL_EVERY
_TRIAL_SHARE: Final = 0.003
"""After `_TRIAL_EVERY` steps without drafts comes a trial with drafts, or after more steps, up to
`_MOST_TRIAL_EVERY`, where the last trial cost more than `_TRIAL_SHARE` of the time between two. Of
256 sequences of an 8B on an H200 a trial takes some 12 ms more than its tokens are worth, which
every 96 steps is 1.4 % of the time."""

_DEEPER_EVERY: Final = 64
_UNKNOWN_EVERY: Final = 8
"""One in this many steps with drafts has the next greater depth than the depth that seems best; one
of `_UNKNOWN_EVERY` has a greater depth whose rows are more than were ever measured, if that may
pay.
"""

_MAY_PAY: Final = 0.9
"""The share of the best pace that a depth of unknown rows must promise to be tried. Their time is a
hopeful guess, but for the steps in which graphs grow."""

_BARE_EVERY: Final = 192
_MOST_BARE_EVERY: Final = 8 * _BARE_EVERY
_BARE_STEPS: Final = 4
"""After `_BARE_EVERY` steps with drafts come `_BARE_STEPS` without, to measure those. The interval
doubles each time, up to `_MOST_BARE_EVERY`. The first of these steps verifies the last drafts, and
the second waits for its tokens."""

_STAYS: Final = 1.01
"""The depth changes only if the new depth promises this many times the pace of the present one."""


def depths_up_to(most: int) -> tuple[int, ...]:
    """The depths of a drafter that makes up to `most` drafts."""
    return tuple([depth for depth in DEPTHS if depth < most] + [most])


@final
class DraftTimes:
    """Seconds of draft passes by sequences and depth. `known` are the times of an earlier engine,
    as `export` returned them.
    """

    def __init__(self, known: Mapping[int, Mapping[int, float]] | None = None) -> None:
        self._by_depth = {depth: TimeTable(known=times) for depth, times in (known or {}).items()}
        self._depths = sorted(self._by_depth)

    def export(self) -> dict[int, dict[int, float]]:
        """The result of `TimeTable.export` for each depth."""
        return {depth: table.export() for depth, table in self._by_depth.items()}

    def add(self, num_sequences: int, depth: int, seconds: float) -> None:
        """A pass took so long."""
        if depth not in self._by_depth:
            self._by_depth[depth] = TimeTable()
            self._depths = sorted(self._by_depth)
        self._by_depth[depth].add(num_sequences, seconds)

    def seconds(self, num_sequences: int, depth: int) -> float:
        """The expected time of a pass; 0 while nothing is known. Between known depths, and below
        the first, it is interpolated; beyond the deepest it grows with the number of drafts. For a
        network that makes all drafts at once the interpolation is too low, so lesser depths are
        tried, and then they are known.
        """
        below, below_s = 0, 0.0
        for known in self._depths:
            known_s = self._by_depth[known].seconds(num_sequences) or 0.0
            if known >= depth:
                return below_s + (known_s - below_s) * (depth - below) / (known - below)
            below, below_s = known, known_s
        return below_s * depth / below if below else 0.0


class Mode(Enum):
    """Why a step drafts as it does."""

    RESTING = "drafts do not pay"
    DRAFTING = "they do"
    TRYING = "they do not seem to pay, or not so many"
    MEASURING = "what a step without drafts takes is looked at again"


@final
class DraftDepth:
    """Chooses the depth of each draft pass, up to `most`, by `policy`'s times of passes that verify
    and the `odds` of drafts.
    """

    def __init__(
        self, odds: PlaceOdds, policy: SpeculationPolicy, most: int, times: DraftTimes | None = None
    ) -> None:
        self.times = times or DraftTimes()
        self.mode = Mode.RESTING
        self._odds = odds
        self._policy = policy
        self._depths = depths_up_to(most)
        self._last = 0
        self._trial_every = self._num_resting = _TRIAL_EVERY  # the first trial is soon
        self._num_drafting = 0
        self._bare_every = _BARE_EVERY
        self._num_bare = 0

    def choose(self, num_sequences: int, room: int) -> int:
        """How many drafts to make for each sequence behind a step of `num_sequences`; the next step
        may verify `room` drafts in all. `mode` says why.
        """
        bare_s = self._policy.ahead.seconds(num_sequences)
        if bare_s is None:
            self.mode = Mode.RESTING
            return 0
        if self._num_bare or not self._policy.knows_bare(num_sequences):
            self.mode = Mode.MEASURING
            return 0
        room = min(room, self._policy.trusted_room(num_sequences))
        most = max(1, room // num_sequences)
        depth, pace = self._best(num_sequences, most)
        if pace > MARGIN * num_sequences / bare_s:
            self.mode = Mode.DRAFTING
            deeper = self._deeper(depth, pace, num_sequences, most)
            if deeper is not None:
                self.mode = Mode.TRYING
                return deeper
            return depth
        self.mode = Mode.TRYING if self._num_resting >= self._trial_every else Mode.RESTING
        return depth if self.mode is Mode.TRYING else 0

    def saved_s(self, num_sequences: int) -> float | None:
        """How many seconds drafts save for each token in a step of `num_sequences`; 0 if they do
        not pay, None if the times are not known.
        """
        bare_s = self._policy.ahead.seconds(num_sequences)
        if bare_s is None:
            return None
        most = max(1, self._policy.trusted_room(num_sequences) // num_sequences)
        _, pace = self._best(num_sequences, most)
        return max(0.0, bare_s / num_sequences - MARGIN / pace)

    def try_now(self) -> None:
        """Let the next step be a trial, if drafts do not pay."""
        self._num_resting = self._trial_every

    def planned(self, depth: int) -> None:
        """A step was computed, and `depth` drafts were made for each sequence behind it."""
        self._num_bare = max(0, self._num_bare - 1)
        if not depth:
            self._num_resting += 1
            return
        if self.mode is Mode.TRYING and self._num_resting >= self._trial_every:
            self._odds.fade(FADED_TRIES)
        self._num_resting = 0
        self._num_drafting += 1
        self._last = depth
        if self._num_drafting >= self._bare_every:
            self._bare_every = min(_MOST_BARE_EVERY, 2 * self._bare_every)
            self._num_drafting, self._num_bare = 0, _BARE_STEPS

    def verified(self, num_sequences: int, num_tokens: int, seconds: float) -> None:
        """A step that verified drafts took `seconds`, including its draft pass. A trial that pays
        is repeated at once.
        """
        bare_s = self._policy.ahead.seconds(num_sequences)
        if bare_s is not None and self.mode in (Mode.RESTING, Mode.TRYING):
            if num_tokens / seconds > MARGIN * num_sequences / bare_s:
                self._num_resting = self._trial_every
                return
            self._bare_every = _BARE_EVERY
            lost_s = seconds - bare_s * num_tokens / num_sequences
            every = int(lost_s / (_TRIAL_SHARE * bare_s))
            self._trial_every = min(_MOST_TRIAL_EVERY, max(_TRIAL_EVERY, every))

    def _deeper(self, depth: int, pace: float, num_sequences: int, most: int) -> int | None:
        """The greater depth than `depth`, which has this `pace`, that this step tries: up to `most`
        if its rows are unknown.
        """
        deeper = self._depths[self._depths.index(depth) + 1 :]
        if self._num_drafting % _UNKNOWN_EVERY == _UNKNOWN_EVERY - 1:
            lengths, largest = self._lengths(), self._policy.awaiting.largest
            for more in deeper:
                rows = num_sequences * (1 + more)
                if more > most or rows <= largest:
                    continue
                seconds = self._policy.awaiting.seconds(rows) or 0.0
                seconds += self.times.seconds(num_sequences, more)
                if num_sequences * lengths[more] > _MAY_PAY * pace * seconds:
                    return more
        if deeper and self._num_drafting % _DEEPER_EVERY == _DEEPER_EVERY - 1:
            return deeper[0]
        return None

    def _lengths(self) -> list[float]:
        """The expected tokens of a sequence in a pass, by depth."""
        chances = self._odds.chances(None, self._depths[-1])
        return list(accumulate(accumulate(chances, mul), initial=1.0))

    def _best(self, num_sequences: int, most: int) -> tuple[int, float]:
        """The depth, at least 1, with the most tokens a second, and that pace."""
        lengths = self._lengths()
        best, best_pace = 1, 0.0
        for depth in self._depths:
            if depth > most and depth > 1:
                break
            tokens = lengths[depth]
            seconds = self._policy.verify_s(num_sequences, num_sequences * (1 + depth))
            pace = num_sequences * tokens / (seconds + self.times.seconds(num_sequences, depth))
            pace *= _STAYS if depth == self._last else 1.0
            if pace > best_pace:
                best, best_pace = depth, pace
        return best, best_pace / (_STAYS if best == self._last else 1.0)
