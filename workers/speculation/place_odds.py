"""How often the drafts of a network are right, by their place.

Owns the rates and what is assumed of places that were not verified yet. Must not know the network.
"""

from __future__ import annotations

from typing import Final, final

from workers.speculation.offers import MOST_CHANCE, Rate

_FIRST_RATE: Final = 0.7
_FIRST_TRIES: Final = 8.0
_MEMORY: Final = 400.0
_OWN_TRIES: Final = 8.0
_LEAST_FACTOR: Final = 0.2
_MOST_FACTOR: Final = 1.2


@final
class PlaceOdds:
    """The chance of the draft at each of `depth` places, if all before it are right; sequences have
    luck of their own. `rates` are those of an earlier engine, as `export` returned them.
    """

    def __init__(self, depth: int, rates: list[Rate] | None = None) -> None:
        first = [Rate(_FIRST_TRIES * _FIRST_RATE, _FIRST_TRIES)] * depth
        self._rates = list(rates) if rates and len(rates) == depth else first
        self._luck: dict[int, Rate] = {}

    def export(self) -> list[Rate]:
        """By place."""
        return list(self._rates)

    def end(self, seq: int) -> None:
        """The sequence is over."""
        self._luck.pop(seq, None)

    def chances(self, seq: int | None, depth: int) -> list[float]:
        """Of the first `depth` drafts of a sequence, None: of any."""
        luck = None if seq is None else self._luck.get(seq)
        factor = 1.0
        if luck is not None:
            factor = (luck.right + _OWN_TRIES) / (luck.tried + _OWN_TRIES)
            factor = min(_MOST_FACTOR, max(_LEAST_FACTOR, factor))
        return [min(MOST_CHANCE, factor * one.right / one.tried) for one in self._rates[:depth]]

    def learn(self, seq: int, num_drafts: int, num_right: int) -> None:
        """Of so many drafts the first so many were accepted."""
        expected = 0.0
        for place in range(min(num_drafts, num_right + 1)):
            old = self._rates[place]
            kept = 0.5 if old.tried > 2 * _MEMORY else 1.0
            expected += old.right / old.tried
            self._rates[place] = Rate(kept * old.right + (place < num_right), kept * old.tried + 1)
        luck = self._luck.get(seq, Rate(0.0, 0.0))
        kept = 0.5 if luck.tried > 8 * _OWN_TRIES else 1.0
        self._luck[seq] = Rate(kept * luck.right + num_right, kept * luck.tried + expected)
