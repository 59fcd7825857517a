"""A figure of a part, and the statistics that all parts share.

CPU time, not elapsed time, and low quantiles: other programs on a shared machine can only add.
"""

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class MicroFigure(NamedTuple):
    """One line of the table. `bar` is the most that is accepted, None without a limit."""

    case: str
    what: str
    value: float
    unit: str = "us"
    bar: float | None = None

    @property
    def is_missed(self) -> bool:
        return self.bar is not None and self.value > self.bar


def lower_quartile_us(times_s: Sequence[float]) -> float:
    """Microseconds; of a single time, that time."""
    return 1e6 * (statistics.quantiles(times_s, n=4)[0] if len(times_s) > 1 else times_s[0])
