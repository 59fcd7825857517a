"""How often the drafts of a network are right, by their place.

Owns the rates and what is assumed of places that were not verified yet. Must not know the network.
"""

from __future__ import annotations

from typing import Final, final

from workers.speculation.offers import MOST_CHANCE, Rate

_FIRST_RATE: Final = 0.7
_FIRST_TRIES: Final = 8.0
_MEMORY: Final = 200.0
FADED_TRIES: Final = 24.0
"""As so many drafts of a place counts what was learned before a change."""

_CHANGE: Final = 4.0
"""Standard deviations by which the accepted drafts of late differ from those expected, if texts
have changed."""

_LATE: Final = 60.0
"""Variance of what is looked at for that: some hundred drafts."""

_OWN_TRIES: Final = 8.0
_LEAST_FACTOR: Final = 0.2
_MOST_FACTOR: Final = 1.2


@final
class PlaceOdds:
    """The chance of the draft at each of `depth` places, if all before it are right; sequences have
    luck of their own. `rates` are those of an earlier engine, as `export` returned them.
    """

    def __init__(self, depth: int, rates: list[Rate] | None = None) -> None:
        self.depth = depth
        first = [Rate(_FIRST_TRIES * _FIRST_RATE, _FIRST_TRIES)] * depth
        self._rates = list(rates) if rates and len(rates) == depth else first
        self._luck: dict[int, Rate] = {}
        self._factors: dict[int, float] = {}
        self._sum_of_factors = 0.0
        self._surprise = 0.0
        self._variance = 0.0

    def export(self) -> list[Rate]:
        """By place."""
        return list(self._rates)

    def fade(self, tries: float) -> None:
        """Let what was learned count as so many tries of each place at the most."""
        self._rates = [
            Rate(one.right * tries / one.tried, tries) if one.tried > tries else one
            for one in self._rates
        ]

    def end(self, seq: int) -> None:
        """The sequence is over."""
        self._luck.pop(seq, None)
        self._sum_of_factors -= self._factors.pop(seq, 0.0)

    def chances(self, seq: int | None, depth: int) -> list[float]:
        """Of the first `depth` drafts of a sequence, by its luck beside others'; None: of any."""
        factor = 1.0
        if seq is not None and (own := self._factors.get(seq)) is not None:
            factor = own * len(self._factors) / self._sum_of_factors
        return [min(MOST_CHANCE, factor * one.right / one.tried) for one in self._rates[:depth]]

    def learn(self, seq: int, num_drafts: int, num_right: int) -> None:
        """Of so many drafts the first so many were accepted."""
        expected = variance = 0.0
        for place in range(min(num_drafts, num_right + 1)):
            old = self._rates[place]
            kept = 0.5 if old.tried > 2 * _MEMORY else 1.0
            rate = old.right / old.tried
            expected += rate
            variance += rate * (1.0 - rate)
            self._rates[place] = Rate(kept * old.right + (place < num_right), kept * old.tried + 1)
        self._notice(num_right - expected, variance)
        luck = self._luck.get(seq, Rate(0.0, 0.0))
        kept = 0.5 if luck.tried > 8 * _OWN_TRIES else 1.0
        luck = Rate(kept * luck.right + num_right, kept * luck.tried + expected)
        factor = (luck.right + _OWN_TRIES) / (luck.tried + _OWN_TRIES)
        factor = min(_MOST_FACTOR, max(_LEAST_FACTOR, factor))
        self._luck[seq] = luck
        self._sum_of_factors += factor - self._factors.get(seq, 0.0)
        self._factors[seq] = factor

    def _notice(self, surprise: float, variance: float) -> None:
        """Forget faster if drafts are not any more as good as they were."""
        self._surprise += surprise
        self._variance += variance
        if self._surprise**2 > _CHANGE**2 * (1.0 + self._variance):
            self.fade(FADED_TRIES)
        elif self._variance <= _LATE:
            return
        self._surprise = self._variance = 0.0
