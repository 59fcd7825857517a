"""Earlier text in which the end of a sequence is looked for: its own, and that of recent sequences.

Owns the copies of tokens, their bounds and the search for the longest match. Must not know how good
a match is, nor sequences' numbers. What follows a match is what a drafter proposes: prompt lookup
(Saxena, 2023) in one's own text, suffix decoding (Oliaro et al., 2024) in that of others.

Own text is searched by a scan: 60,000 tokens take 15 us, and a match that goes on needs none. The
text of others is found by its last tokens, in chains of places with equal hashes (as in zlib).
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple, TypeAlias, final

import numpy as np

LONGEST_MATCH: Final = 32
"""The most tokens back that are compared: what follows 32 equal ones follows 64 no more surely."""

MOST_PLACES: Final = 8
"""The most places with the longest match that count; the latest ones do."""

KEY_TOKENS: Final = 4
"""Equal tokens by which a place in others' text is found."""

FLEET_TOKENS: Final = 2**20
"""How many of the latest tokens of other sequences are kept: 20 MiB with the chains, some thousand
answers.
"""

_BUCKET_BITS: Final = 18
_SEPARATOR: Final = 2**32 - 1
_MULTIPLIER: Final = 0x9E3779B97F4A7C15
_NOWHERE: Final = -1

Words: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint32]]
Places: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]


class TextMatch(NamedTuple):
    """The places behind the longest matches of a text's end, the latest first: indices into `text`,
    of which those below `end` hold tokens; it is a ring where `mask` cuts indices.
    """

    length: int
    places: list[int]
    text: memoryview[int]
    end: int
    mask: int = -1

    def read(self, place: int, count: int) -> list[int]:
        """Up to `count` tokens from a place on, of one text."""
        stop = min(place + count, self.end)
        begin = place & self.mask
        found: list[int] = self.text[begin : begin + stop - place].tolist()
        if len(found) < stop - place:  # behind its end the ring continues at its beginning
            found += self.text[: stop - place - len(found)].tolist()
        return found[: found.index(_SEPARATOR)] if _SEPARATOR in found else found


@final
class OwnText:
    """The tokens of one sequence, which grow."""

    def __init__(self, tokens: array[int]) -> None:
        self._tokens = tokens
        self._words: Words = np.empty(max(256, 2 * len(tokens)), np.uint32)
        self._text = self._words.data
        self._places: list[int] = []
        self._length = 0
        self.size = 0
        self.catch_up()

    def catch_up(self) -> None:
        """Copy the tokens that came; an array that is looked at could not grow."""
        tokens, size = self._tokens, self.size
        end = len(tokens)
        if end == size:
            return
        if end > len(self._words):
            words: Words = np.empty(2 * end, np.uint32)
            words[:size] = self._words[:size]
            self._words, self._text = words, words.data
        self._words[size:end] = tokens[size:]
        self.size = end
        self._follow(size)

    @property
    def follows(self) -> bool:
        """Whether the tokens that came went on as the last match did."""
        return bool(self._places)

    def tail(self) -> list[int]:
        """The last tokens, up to `LONGEST_MATCH`."""
        return self._text[max(0, self.size - LONGEST_MATCH) : self.size].tolist()

    def between(self, begin: int, end: int) -> Words:
        """A copy of some tokens."""
        return self._words[begin:end].copy()

    def match(self) -> TextMatch | None:
        """The longest match of the end, by what the last one has become, or by a scan."""
        if not self._places:
            self._search()
        if not self._places:
            return None
        return TextMatch(self._length, self._places, self._text, self.size)

    def _follow(self, size: int) -> None:
        """Keep the places that the tokens behind the first `size` agree with."""
        came = self._text[size : self.size].tolist()
        kept = []
        for place in self._places:
            end = place + len(came)
            if end < self.size and self._text[place:end].tolist() == came:
                kept.append(end)
        self._places = kept
        self._length += len(came)

    def _search(self) -> None:
        words, last = self._words, self.size - 1
        if last < 1:
            return
        found = np.flatnonzero(words[:last] == words[last])
        length = 1
        while found.size and length < LONGEST_MATCH:
            if found.size <= MOST_PLACES and length >= 2:
                break
            longer = found[found >= length]
            longer = longer[words[longer - length] == words[last - length]]
            if not longer.size:
                break
            found, length = longer, length + 1
        if not found.size:
            return
        ends = found[-MOST_PLACES:][::-1]
        lengths = _common(words, ends, self.tail(), -1)
        self._length = int(lengths.max())
        self._places = (ends[lengths == self._length] + 1).tolist()


def _common(words: Words, ends: Places, tail: list[int], mask: int) -> Places:
    """How many tokens up to each of `words[ends]` equal the end of `tail`."""
    back = np.arange(len(tail))
    places = ends[:, None] - back
    equal = words[places & mask] == np.array(tail[::-1], np.uint32)
    equal &= places >= 0
    return np.where(equal.all(axis=1), len(tail), equal.argmin(axis=1))


@final
class FleetText:
    """The latest `num_tokens` of all sequences' texts, a power of two."""

    def __init__(self, num_tokens: int = FLEET_TOKENS) -> None:
        if num_tokens & (num_tokens - 1):
            raise ValueError(f"{num_tokens} tokens are no power of two")
        self._mask = num_tokens - 1
        self._words: Words = np.full(num_tokens, _SEPARATOR, np.uint32)
        self._before = np.full(num_tokens, _NOWHERE, np.int64)
        self._heads = np.full(1 << _BUCKET_BITS, _NOWHERE, np.int64)
        self._text = self._words.data
        self._chain = self._before.data
        self._first = self._heads.data
        self.size = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that the text takes, however much it holds."""
        return self._words.nbytes + self._before.nbytes + self._heads.nbytes

    def add(self, tokens: Words, *, goes_on: bool = False) -> None:
        """Append a text, or more of the last one if it `goes_on`. Raises `ValueError` for more
        tokens than an eighth of the room.
        """
        if len(tokens) > (self._mask + 1) // 8:
            raise ValueError(f"{len(tokens)} tokens at once")
        gap = [] if goes_on else [_SEPARATOR]
        fresh = np.concatenate((np.array(gap, np.uint32), tokens))
        places = np.arange(self.size, self.size + len(fresh))
        self._words[places & self._mask] = fresh
        self.size += len(fresh)
        self._link(places)

    def match(self, tail: list[int]) -> TextMatch | None:
        """The longest match of the end of a text, at least `KEY_TOKENS`."""
        if len(tail) < KEY_TOKENS:
            return None
        ends: list[int] = []
        end = self._first[_bucket(tail[-KEY_TOKENS:])]
        oldest = self.size - self._mask + LONGEST_MATCH
        while end >= max(0, oldest) and len(ends) < MOST_PLACES:
            ends.append(end)
            end = self._chain[end & self._mask]
        if not ends:
            return None
        lengths = _common(self._words, np.array(ends), tail, self._mask).tolist()
        longest = max(lengths)
        if longest < KEY_TOKENS:
            return None
        places = [end + 1 for end, length in zip(ends, lengths, strict=True) if length == longest]
        places = [place for place in places if place < self.size]
        return TextMatch(longest, places, self._text, self.size, self._mask) if places else None

    def _link(self, places: Places) -> None:
        """Put the places at the heads of their chains, the later before the earlier."""
        keys = np.zeros(len(places), np.uint64)
        is_whole = places >= KEY_TOKENS - 1
        for back in range(KEY_TOKENS - 1, -1, -1):
            tokens = self._words[(places - back) & self._mask]
            is_whole &= tokens != _SEPARATOR
            keys = (keys + tokens.astype(np.uint64) + np.uint64(1)) * np.uint64(_MULTIPLIER)
        places = places[is_whole]
        if not len(places):
            return
        buckets = (keys[is_whole] >> np.uint64(64 - _BUCKET_BITS)).astype(np.int64)
        order = np.argsort(buckets, kind="stable")
        places, buckets = places[order], buckets[order]
        is_first = np.ones(len(places), bool)
        is_first[1:] = buckets[1:] != buckets[:-1]
        earlier = np.empty_like(places)
        earlier[1:] = places[:-1]
        earlier[is_first] = self._heads[buckets[is_first]]
        self._before[places & self._mask] = earlier
        is_last = np.ones(len(places), bool)
        is_last[:-1] = is_first[1:]
        self._heads[buckets[is_last]] = places[is_last]


def _bucket(key: list[int]) -> int:
    """The bucket of a key, as `FleetText._link` calculates it."""
    found = 0
    for token_id in key:
        found = (found + token_id + 1) * _MULTIPLIER & (2**64 - 1)
    return found >> (64 - _BUCKET_BITS)
