"""Offers: drafts for a step, with the chance that each is right.

Owns the way from a match in earlier text to drafts, and the learning of chances. Must not know
where matches are found, nor what drafts cost.

A draft is the token that followed most of the matching places. Its chance is the share of these
places, times the recent rate of right drafts behind matches of that length: a long match in code is
right more often than a short one in a chat. Each sequence also has a factor of its own: drafts that
were right in a copied text will probably be right again.
"""

from __future__ import annotations

from typing import Final, NamedTuple, final

from workers.speculation.texts import TextMatch

LENGTHS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""The bounds of the classes of matches by length; each class has its own rate."""

_INDEX: Final = tuple(
    [
        next((at for at, most in enumerate(LENGTHS) if length <= most), len(LENGTHS) - 1)
        for length in range(10_000)
    ]
)
"""Which of `LENGTHS` counts for a match."""

_FIRST_RATES: Final = (0.2, 0.4, 0.55, 0.65, 0.75, 0.82, 0.88, 0.92, 0.95, 0.97)
"""The assumed rates by length before anything was verified; they count as `_FIRST_TRIES` drafts."""

_FIRST_TRIES: Final = 8.0
_MEMORY: Final = 1000.0
"""Drafts after which older ones count half."""

_OWN_TRIES: Final = 4.0
"""After this many drafts of a sequence, its own rate counts as much as the common rate."""

_LEAST_FACTOR: Final = 0.05
_MOST_FACTOR: Final = 1.25
MOST_CHANCE: Final = 0.995


class Offer(NamedTuple):
    """Drafts for a sequence. `chances`: the chance of each draft, if all before it are right. For
    drafts from a match, `shares` are the shares of its places with that token, and `lengths` are
    indices into `LENGTHS`.
    """

    seq: int
    ids: tuple[int, ...]
    chances: tuple[float, ...]
    shares: tuple[float, ...] = ()
    lengths: tuple[int, ...] = ()
    source: int = 0

    @property
    def gain(self) -> float:
        """How many drafts should be accepted, if all were verified."""
        total, chance = 0.0, 1.0
        for one in self.chances:
            chance *= one
            total += chance
        return total

    def cut(self, num_drafts: int) -> Offer:
        """The first drafts only."""
        return self._replace(
            ids=self.ids[:num_drafts],
            chances=self.chances[:num_drafts],
            shares=self.shares[:num_drafts],
            lengths=self.lengths[:num_drafts],
        )


def behind(match: TextMatch, most: int) -> tuple[list[int], list[float]]:
    """Up to `most` tokens behind a match, each the one of most places, and its share of these."""
    texts = [match.read(place, most) for place in match.places]
    longest = max(texts, key=len, default=[])
    if all(text == longest[: len(text)] for text in texts):  # the usual case
        return longest, [1.0] * len(longest)
    ids: list[int] = []
    shares: list[float] = []
    for place in range(most):
        texts = [text for text in texts if len(text) > place]
        if not texts:
            break
        column = [text[place] for text in texts]
        best = max(column, key=column.count)
        ids.append(best)
        shares.append(column.count(best) / len(column))
        texts = [text for text in texts if text[place] == best]
    return ids, shares


class Rate(NamedTuple):
    """`right` of `tried` drafts. Both are sums whose older parts count less."""

    right: float
    tried: float

    def with_more(self, right: float, tried: float, memory: float) -> Rate:
        """With more drafts; the old ones are halved beyond twice `memory` of them."""
        kept = 0.5 if self.tried > 2 * memory else 1.0
        return Rate(kept * self.right + right, kept * self.tried + tried)


@final
class MatchOdds:
    """How often drafts behind matches are right, by source and length; `sequences` have luck of
    their own. `rates` of an earlier engine may be given, as `export` returned them.
    """

    def __init__(self, num_sources: int, rates: list[list[Rate]] | None = None) -> None:
        first = [Rate(_FIRST_TRIES * rate, _FIRST_TRIES) for rate in _FIRST_RATES]
        fits = rates is not None and [len(row) for row in rates] == [len(first)] * num_sources
        self._rates = (
            [list(row) for row in rates]
            if fits and rates
            else [list(first) for _ in range(num_sources)]
        )
        self._luck: dict[int, Rate] = {}

    def export(self) -> list[list[Rate]]:
        """The odds by source and length."""
        return [list(row) for row in self._rates]

    def end(self, seq: int) -> None:
        """The sequence is over."""
        self._luck.pop(seq, None)

    def offer(self, seq: int, source: int, match: TextMatch, most: int) -> Offer | None:
        """Drafts behind a match, if it has any."""
        ids, shares = behind(match, most)
        if not ids:
            return None
        factor = self._factor(seq)
        lengths = _INDEX[match.length : match.length + len(ids)]
        rates = [factor * right / tried for right, tried in self._rates[source]]
        chances = [
            min(MOST_CHANCE, share * rates[length])
            for share, length in zip(shares, lengths, strict=True)
        ]
        return Offer(seq, tuple(ids), tuple(chances), tuple(shares), lengths, source)

    def learn(self, offer: Offer, num_right: int) -> None:
        """The first `num_right` drafts of the offer were accepted. Drafts behind the first wrong
        one are ignored.
        """
        rates, expected = self._rates[offer.source], 0.0
        for place, length in enumerate(offer.lengths[: num_right + 1]):
            is_right, share = place < num_right, offer.shares[place]
            rates[length] = rates[length].with_more(is_right, share, _MEMORY)
            expected += offer.chances[place]
        luck = self._luck.get(offer.seq, Rate(0.0, 0.0))
        expected /= self._factor(offer.seq)
        self._luck[offer.seq] = luck.with_more(num_right, expected, 4 * _OWN_TRIES)

    def _factor(self, seq: int) -> float:
        luck = self._luck.get(seq)
        if luck is None:
            return 1.0
        found = (luck.right + _OWN_TRIES) / (luck.tried + _OWN_TRIES)
        return min(_MOST_FACTOR, max(_LEAST_FACTOR, found))
