"""What followed the end of a text before is found, in its own past and in others' texts."""

import random
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.speculation.texts import (
    KEY_TOKENS,
    LONGEST_MATCH,
    MOST_PLACES,
    FleetText,
    OwnText,
    TextMatch,
)


def _longest(tokens: list[int]) -> tuple[int, set[int]]:
    """The length of the longest match of the end, and what stands behind it, found by trying
    everything.
    """
    best, places, last = 0, set(), len(tokens) - 1
    for end in range(last):
        length = 0
        while (
            length < min(LONGEST_MATCH, end + 1) and tokens[end - length] == tokens[last - length]
        ):
            length += 1
        if length > best:
            best, places = length, set()
        if length == best > 0:
            places.add(end + 1)
    return best, places


def _behind(match: TextMatch, count: int) -> list[int]:
    return [match.text[(match.places[0] + index) & match.mask] for index in range(count)]


@given(
    first=st.lists(st.integers(0, 3), min_size=1, max_size=80),
    more=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=20),
)
def test_a_fresh_search_finds_the_longest_match(first: list[int], more: list[list[int]]) -> None:
    """A fresh search finds the longest match, and a match that goes on stays a match, if perhaps
    not the longest.
    """
    tokens = array("I", first)
    text = OwnText(tokens)
    for came in [[], *more]:
        tokens.extend(came)
        text.catch_up()
        was_followed = text.follows
        match, (best, places) = text.match(), _longest(list(tokens))
        if best == 0:
            assert match is None
            continue
        assert match is not None
        assert max(match.places) < len(tokens)
        if was_followed:
            end = len(tokens)
            for place in match.places:
                size = min(place, match.length, LONGEST_MATCH)
                assert tokens[place - size : place] == tokens[end - size : end]
        else:
            assert match.length == best
            assert set(match.places) <= places
            assert len(match.places) == min(len(places), MOST_PLACES)


def test_a_text_of_many_tokens_is_copied_as_it_grows() -> None:
    """The array itself is never held: it must be able to grow."""
    tokens = array("I", [5])
    text = OwnText(tokens)
    for token_id in range(2000):
        tokens.append(token_id)
        if token_id % 97 == 0:
            text.catch_up()
    text.catch_up()
    assert text.between(0, 2001).tolist() == list(tokens)
    assert text.tail() == list(tokens[-LONGEST_MATCH:])


def test_texts_of_others_are_found_while_they_are_kept() -> None:
    """Texts of others are found while they are kept, in pieces of any size; the oldest make
    room.
    """
    rng, fleet = random.Random(3), FleetText(2**12)
    texts = [[rng.randrange(1000) for _ in range(200)] for _ in range(60)]
    for text in texts:
        begin = 0
        while begin < len(text):
            size = rng.randrange(1, 120)
            fleet.add(np.array(text[begin : begin + size], np.uint32), goes_on=begin > 0)
            begin += size
    for text in texts[-15:]:
        at = rng.randrange(LONGEST_MATCH, 190)
        match = fleet.match(text[at - LONGEST_MATCH : at])
        assert match is not None
        assert match.length == LONGEST_MATCH
        assert _behind(match, 5) == text[at : at + 5]
    for text in texts[:20]:
        assert fleet.match(text[100 - LONGEST_MATCH : 100]) is None


def test_a_match_does_not_reach_over_the_border_of_two_texts() -> None:
    """What ends one and begins the next never stood together."""
    fleet = FleetText(2**12)
    fleet.add(np.array([1, 2, 3, 4, 5, 6], np.uint32))
    fleet.add(np.array([7, 8, 9, 10, 11, 12], np.uint32))
    assert fleet.match([5, 6, 7, 8]) is None
    assert fleet.match([4, 5, 6]) is None
    match = fleet.match([9, 2, 3, 4, 5])
    assert match is not None
    assert match.length == KEY_TOKENS
    assert match.read(match.places[0], 9) == [6]


def test_its_memory_is_bounded_and_so_is_what_comes_at_once() -> None:
    """Whatever is added, the memory and the tokens that are added at once are bounded; a size that
    is no power of two would not be a ring.
    """
    fleet = FleetText(2**12)
    size = fleet.num_bytes
    for start in range(0, 100_000, 500):
        fleet.add(np.arange(start, start + 500, dtype=np.uint32))
    assert fleet.num_bytes == size
    with pytest.raises(ValueError, match="at once"):
        fleet.add(np.zeros(600, np.uint32))
    with pytest.raises(ValueError, match="power of two"):
        FleetText(1000)
