"""Chains of block digests.

Owns the comparison of two chains. A digest covers all blocks before it, so two chains that agree
at a position agree everywhere before it: bisection is exact and costs 12 comparisons for 100k
tokens. Must not know who holds the blocks.
"""

from collections.abc import Sequence

from protocol.ids import BlockDigest


def common_prefix(
    left: Sequence[BlockDigest],
    right: Sequence[BlockDigest],
    least: int = 0,
    most: int | None = None,
) -> int:
    """How many leading blocks the two chains share, `most` at most (by default, as many as both
    have), if it is known that they share `least`.
    """
    low, high = least, min(len(left), len(right)) if most is None else most
    while low < high:
        middle = (low + high + 1) // 2
        if left[middle - 1] == right[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
