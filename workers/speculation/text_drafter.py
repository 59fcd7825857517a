"""Drafts from earlier text, for all sequences of an engine.

Owns each sequence's text, the fleet's, and how much work of the host a step may take. Must not know
what a step costs, nor how many drafts are verified.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, final

import numpy as np

from workers.speculation.offers import MatchOdds, Offer
from workers.speculation.texts import FleetText, OwnText, TextMatch, Words

MOST_DRAFTS: Final = 15
"""The most drafts of a sequence in a step."""

OWN: Final = 0
FLEET: Final = 1
NUM_TEXT_SOURCES: Final = 2

_SCANNED_TOKENS: Final = 2**18
"""Tokens of own text that a step looks through: 0.1 ms."""

_SEARCHES: Final = 12
"""The most matches that a step searches anew: 12 x 50 us. A match that continues costs nothing."""

_OFFERS: Final = 32
"""Sequences that get drafts in a step: 32 x 20 us."""

_SURE_LENGTH: Final = 12
"""If the match in a sequence's own text has this length, others' text is not searched, because
it hardly has a better one.
"""

_ADDED_TOKENS: Final = 512
"""Tokens of others' text that a step takes in: 0.1 ms."""

_WAITING_TEXTS: Final = 256
"""Texts that wait to be taken in; more are dropped."""

_LEAST_FLEET_TEXT: Final = 8


@final
class TextDrafter:
    """Drafts from a sequence's own text, and, if it `uses_fleet`, from that of all sequences that
    ended: their answers, and what their prompts had that no cached block held.
    """

    def __init__(self, odds: MatchOdds, *, uses_fleet: bool) -> None:
        self._odds = odds
        self._texts: dict[int, OwnText] = {}
        self._shared_from: dict[int, int] = {}
        self._fleet = FleetText() if uses_fleet else None
        self._coming: deque[Words] = deque()
        self._taken = 0
        self._turn = 0
        self._scanned = 0
        self._searches = 0

    def start(self, seq: int, tokens: array[int], shared_from: int | None) -> None:
        """A sequence runs, whose `tokens` grow. At its end its tokens from `shared_from` on enter
        the text that all sequences share; None: no token does.
        """
        self._texts[seq] = OwnText(tokens)
        if shared_from is not None and self._fleet is not None:
            self._shared_from[seq] = shared_from

    def end(self, seq: int) -> None:
        """The sequence is over."""
        text = self._texts.pop(seq, None)
        begin = self._shared_from.pop(seq, None)
        if text is not None and begin is not None:
            text.catch_up()
            has_room = len(self._coming) < _WAITING_TEXTS
            if has_room and text.size - begin >= _LEAST_FLEET_TEXT:
                self._coming.append(text.between(begin, text.size))

    def offers(self, wanted: Iterable[tuple[int, int]]) -> list[Offer]:
        """Drafts for sequences (number, most), as far as the work of a step goes: sequences that
        had to wait come first in the next step.
        """
        self._take_in()
        asked = [(seq, min(most, MOST_DRAFTS)) for seq, most in wanted if most > 0]
        first = self._turn % len(asked) if asked else 0
        self._scanned, self._searches, found = _SCANNED_TOKENS, _SEARCHES, []
        for seq, most in (*asked[first:], *asked[:first]):
            text = self._texts[seq]
            text.catch_up()
            offers = [
                offer
                for source, match in self._matches(text)
                if (offer := self._odds.offer(seq, source, match, most)) is not None
            ]
            if offers:
                found.append(max(offers, key=lambda offer: offer.gain))
            if len(found) == _OFFERS:
                self._turn += _OFFERS
                break
        return found

    def _matches(self, text: OwnText) -> Iterator[tuple[int, TextMatch]]:
        """The matches of the text, as many as this step may still search."""
        own = None
        if text.follows or (self._searches > 0 and self._scanned > 0):
            if not text.follows:
                self._searches -= 1
                self._scanned -= text.size
                self._turn += 1
            own = text.match()
        if own is not None:
            yield OWN, own
        if self._fleet is None or (own is not None and own.length >= _SURE_LENGTH):
            return
        if self._searches > 0 and (other := self._fleet.match(text.tail())) is not None:
            self._searches -= 1
            yield FLEET, other

    def _take_in(self) -> None:
        """Add some of the waiting tokens to the shared text."""
        room = _ADDED_TOKENS
        while self._fleet is not None and self._coming and room > 0:
            text, begin = self._coming[0], self._taken
            end = min(len(text), begin + room)
            self._fleet.add(np.ascontiguousarray(text[begin:end]), goes_on=begin > 0)
            room -= end - begin
            self._taken = end
            if end == len(text):
                self._coming.popleft()
                self._taken = 0
