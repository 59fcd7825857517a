"""How long a pass takes by its number of rows, learned from measured passes.

Owns the tables of measured times, and the estimates between and beyond them. Must not read a clock,
nor know drafts.

The median of a size's last few passes counts, so that a pass that waited for a compiler does not. A
step whose tokens are awaited before the next one is planned is slower than one that the card
computes while the host plans, so the two kinds have tables of their own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final, final

FINE_SIZES: Final = (
    *range(1, 33),
    *range(36, 129, 4),
    *range(136, 257, 8),
    *range(272, 513, 16),
    *range(544, 1025, 32),
    *range(1152, 4097, 128),
)
"""The sizes of a table where no graph is captured: all passes between two sizes count as the larger
one.
"""

_KEPT: Final = 7
_HOPED_SLOPE: Final = 0.002
"""The assumed time of a row beyond the largest known size, as a share of that size's time; for an
8B on an H200 it is 0.001 from 2 to 128 rows. It is optimistic, so that a size is tried and then
known."""


@final
class TimeTable:
    """Seconds by rows. A pass takes as long for any number of rows up to one of `sizes`, as a
    captured one does, or nearly.
    """

    def __init__(
        self,
        sizes: Sequence[int] = FINE_SIZES,
        known: Mapping[int, float] | None = None,
        *,
        takes_least: bool = False,
    ) -> None:
        """`known` seconds by place in `sizes`, of an earlier engine: they count once. With
        `takes_least` the least of the last few decides, not the median.
        """
        self._decide = min if takes_least else median
        self.sizes = tuple(sizes)
        self._seen: dict[int, deque[float]] = {
            at: deque([seconds], maxlen=_KEPT) for at, seconds in (known or {}).items()
        }
        self._known: dict[int, float] = dict(known or {})
        self._places: list[int] = sorted(self._known)

    @property
    def largest(self) -> int:
        """The most rows that were measured, or a few more."""
        return self.sizes[self._places[-1]] if self._places else 0

    def export(self) -> dict[int, float]:
        """The known times, in the form that `__init__` takes."""
        return dict(self._known)

    def add(self, rows: int, seconds: float) -> None:
        """Record that a pass of `rows` rows took `seconds`."""
        at = self._index(rows)
        seen = self._seen.setdefault(at, deque(maxlen=_KEPT))
        seen.append(seconds)
        if at not in self._known:
            self._places = sorted([*self._places, at])
        self._known[at] = self._decide(seen)

    def seconds(self, rows: int) -> float | None:
        """The expected time of a pass of `rows` rows. For a measured size it is the measured time.
        Between two measured sizes it is on a parabola below the straight line, and beyond the
        largest it is a little more than the largest, because a size that seems fast is tried and
        then measured. None before the first measurement.
        """
        places = self._places
        if not places:
            return None
        at = self._index(rows)
        if (exact := self._known.get(at)) is not None:
            return exact
        right = bisect_left(places, at)
        if right == 0:
            return self._known[places[0]]
        low = places[right - 1]
        if right == len(places):
            beyond = max(0, self.sizes[at] - self.sizes[low])
            return self._known[low] * (1 + _HOPED_SLOPE * beyond)
        high = places[right]
        share = (self.sizes[at] - self.sizes[low]) / (self.sizes[high] - self.sizes[low])
        return self._known[low] + share * share * (self._known[high] - self._known[low])

    def least_seconds(self, rows: int) -> float | None:
        """The least time of a pass of `rows` rows: the time of the next smaller measured size."""
        at, places = self._index(rows), self._places
        right = bisect_left(places, at + 1)
        return self._known[places[max(0, right - 1)]] if places else None

    def num_seen(self, rows: int) -> int:
        """How many of the last passes of `rows` rows are kept, the earlier engine's included."""
        return len(self._seen.get(self._index(rows), ()))

    def spans(self, rows: int) -> bool:
        """Whether the time of `rows` rows was measured, or both a smaller and a larger size."""
        at, places = self._index(rows), self._places
        return bool(places) and places[0] <= at <= places[-1]

    def _index(self, rows: int) -> int:
        return min(bisect_left(self.sizes, rows), len(self.sizes) - 1)
