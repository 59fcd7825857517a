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
"""The rate of a place that was learned before a change of texts counts as this many drafts."""

_CHANGE: Final = 4.0
"""Texts have changed if the number of accepted drafts differs from the expected number by this many
standard deviations.
"""

_LATE: Final = 60.0
"""The variance after which that comparison begins again: some hundred drafts."""

_OWN_TRIES: Final = 8.0
_LEAST_FACTOR: Final = 0.2
_MOST_FACTOR: Final = 1.2


@final
class PlaceOdds:
    """The chance of the draft at each of `depth` places, if all before it are right. Each sequence
    has a factor of its own. `rates` are the rates of an earlier engine, as `export` returned them.
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
        """The odds by place."""
        return list(self._rates)

    def fade(self, tries: float) -> None:
        """Let what was learned of a place count as `tries` drafts at most."""
        self._rates = [
            Rate(one.right * tries / one.tried, tries) if one.tried > tries else one
            for one in self._rates
        ]

    def end(self, seq: int) -> None:
        """The sequence is over."""
        self._luck.pop(seq, None)
        self._sum_of_factors -= self._factors.pop(seq, 0.0)

    def chances(self, seq: int | None, depth: int) -> list[float]:
        """The chances of the first `depth` drafts of a sequence, by its factor relative to others;
        None: of any sequence.
        """
        factor = 1.0
        if seq is not None and (own := self._factors.get(seq)) is not None:
            factor = own * len(self._factors) / self._sum_of_factors
        return [min(MOST_CHANCE, factor * one.right / one.tried) for one in self._rates[:depth]]

    def learn(self, seq: int, num_drafts: int, num_right: int) -> None:
        """The first `num_right` of `num_drafts` drafts were accepted."""
        expected = variance = 0.0
        for place in range(min(num_drafts, num_right + 1)):
            old = self._rates[place]
            rate = old.right / old.tried
            expected += rate
            variance += rate * (1.0 - rate)
            self._rates[place] = old.with_more(place < num_right, 1.0, _MEMORY)
        self._notice(num_right - expected, variance)
        luck = self._luck.get(seq, Rate(0.0, 0.0))
        luck = luck.with_more(num_right, expected, 4 * _OWN_TRIES)
        factor = (luck.right + _OWN_TRIES) / (luck.tried + _OWN_TRIES)
        factor = min(_MOST_FACTOR, max(_LEAST_FACTOR, factor))
        self._luck[seq] = luck
        self._sum_of_factors += factor - self._factors.get(seq, 0.0)
        self._factors[seq] = factor

    def _notice(self, surprise: float, variance: float) -> None:
        """Forget faster where drafts have become better or worse than expected."""
        self._surprise += surprise
        self._variance += variance
        if self._surprise**2 > _CHANGE**2 * (1.0 + self._variance):
            self.fade(FADED_TRIES)
        elif self._variance <= _LATE:
            return
        self._surprise = self._variance = 0.0
