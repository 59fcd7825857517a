"""Chains of block digests.

Owns the comparison of two chains. A digest covers all blocks before it, so two chains that agree
at a position agree everywhere before it: bisection is exact and costs 12 comparisons for 100k
tokens. Must not know who holds the blocks.
"""

from collections.abc import Sequence

from protocol.ids import BlockDigest


def common_prefix(left: Sequence[BlockDigest], right: Sequence[BlockDigest]) -> int:
    """How many leading blocks the two chains share."""
    low, high = 0, min(len(left), len(right))
    if not high or left[0] != right[0]:
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        if left[middle - 1] == right[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
