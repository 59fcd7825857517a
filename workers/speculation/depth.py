"""How many drafts a step verifies, and of which sequences.

Owns the choice by expected gain: it ranks all offered drafts by the chance that they are reached
and right, and takes as many as make the most tokens a second. A later draft of a sequence is never
likelier than an earlier one, so each sequence keeps its first ones. (Budgeted prefix selection, as
in DSpark, 2026.) Must not know where chances and times come from.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

LEAST_CHANCE: Final = 0.02
"""A draft with a lesser chance of being reached and right is not worth a row, however cheap."""


_FEW: Final = 16


class DepthChoice(NamedTuple):
    """The number of drafts for each offer (`depths`); `gain` is the expected number of accepted
    drafts, and `pace` the expected tokens a second.
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
) -> DepthChoice:
    """The best choice of at most `room` drafts, possibly none, in a step of `num_sequences`.

    `chances`: for each offer the chance of each draft, given that those before it are right. The
    step takes `bare_s` without drafts, and `seconds(rows)` with some; the time hardly grows up to
    the next of `sizes`.
    """
    ranked: list[tuple[float, int]] = []
    for offer, own in enumerate(chances):
        reached = 1.0
        for chance in own:
            reached *= chance
            if not reached >= LEAST_CHANCE:  # also for NaN
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
    return DepthChoice(depths, best, gains[best], best_pace)


def _counts(base: int, most: int, sizes: Sequence[int]) -> list[int]:
    """The numbers of drafts worth comparing: all small ones, then those that fill one of `sizes`,
    because more drafts up to a size cost little.
    """
    few = range(1, min(most, _FEW) + 1)
    ends = [size - base for size in sizes[bisect_right(sizes, base + _FEW) :]]
    return [*few, *[count for count in ends if count < most], *([most] if most > _FEW else [])]
