"""How many drafts a step verifies, and of which sequences.

Owns the choice by expected gain: of all drafts that are offered, those most likely reached and
right, as many as make the most tokens a second. A sequence's drafts stand in order, and a later one
is never likelier than those before it, so each sequence keeps its first ones. (Budgeted prefix
selection, as in DSpark, 2026.) Must not know where chances and times come from.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

LEAST_CHANCE: Final = 0.02
"""A draft that is reached and right so rarely is not worth a row, however cheap."""


_FEW: Final = 16


class Choice(NamedTuple):
    """`depths` by offer, `gain` tokens more than one of each sequence; `pace` is the tokens a
    second that are expected.
    """

    depths: list[int]
    num_drafts: int
    gain: float
    pace: float


def choose_depths(
    chances: Sequence[Sequence[float]],
    num_sequences: int,
    room: int,
    bare_s: float,
    seconds: Callable[[int], float],
    sizes: Sequence[int],
) -> Choice:
    """The best choice for offers whose drafts have these conditional chances, in a step of
    `num_sequences`. It takes `bare_s` without drafts, with some `seconds` by its rows, hardly more
    up to the next of `sizes`. At most `room` drafts; perhaps none.
    """
    ranked: list[tuple[float, int]] = []
    for offer, own in enumerate(chances):
        reached = 1.0
        for chance in own:
            reached *= chance
            if not reached >= LEAST_CHANCE:  # nor if it is not a number
                break
            ranked.append((-reached, offer))
    ranked.sort()
    del ranked[room:]
    base = num_sequences
    gains = [0.0]
    for negative, _ in ranked:
        gains.append(gains[-1] - negative)
    best, best_pace = 0, num_sequences / bare_s
    for count in _counts(base, len(ranked), sizes):
        pace = (num_sequences + gains[count]) / seconds(base + count)
        if pace > best_pace:
            best, best_pace = count, pace
    depths = [0] * len(chances)
    for _, offer in ranked[:best]:
        depths[offer] += 1
    return Choice(depths, best, gains[best], best_pace)


def _counts(base: int, most: int, sizes: Sequence[int]) -> list[int]:
    """Numbers of drafts worth comparing: all small ones, and then those that fill one of `sizes`,
    within which more drafts cost little.
    """
    few = range(1, min(most, _FEW) + 1)
    ends = [size - base for size in sizes[bisect_right(sizes, base + _FEW) :]]
    return [*few, *[count for count in ends if count < most], *([most] if most > _FEW else [])]
