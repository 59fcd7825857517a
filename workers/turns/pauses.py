"""The pauses of a model between its work, and so whether it is in use while it has none.

Owns their counts by length, and the share of them that end soon. Must not know what is decided by
it. Old pauses count less with each new one, so that the counts follow a change of use.
"""

from bisect import bisect_left
from collections.abc import Sequence
from math import inf
from typing import Final

EDGES_S: Final = (*[2.0**power for power in range(-5, 11)], inf)
"""The longest pause of each count: 31 ms, twice as long each, 17 minutes, and all longer ones."""
_KEPT: Final = 0.9
"""What a pause counts less with each one that follows."""

_SAME_S: Final = 1e-6
"""Times that are sums differ by less than this from what they are to be."""

NO_PAUSES: Final = (0.0,) * len(EDGES_S)


def with_pause(counts: Sequence[float], pause_s: float) -> tuple[float, ...]:
    """The counts with one more pause."""
    kept = [_KEPT * count for count in counts or NO_PAUSES]
    kept[bisect_left(EDGES_S, pause_s)] += 1.0
    return tuple(kept)


def share_ending(counts: Sequence[float], after_s: float, within_s: float) -> float:
    """Of the pauses that were as long as `after_s`, the share that ended within `within_s` more; 0
    if there was none. Pauses of one count may have had any length of it.
    """
    longer = soon = shortest_s = 0.0
    for count, longest_s in zip(counts, EDGES_S, strict=False):
        if longest_s > after_s + _SAME_S:
            longer += count
            soon += count if shortest_s < after_s + within_s - _SAME_S else 0.0
        shortest_s = longest_s
    return soon / longer if longer else 0.0


def changes_after(after_s: float, within_s: float) -> list[float]:
    """When, in seconds of a pause, that share may become another one."""
    edges = {at for edge in EDGES_S for at in (edge, edge - within_s)}
    return sorted(at for at in edges if at > after_s + _SAME_S)
