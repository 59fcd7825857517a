"""Days and months, in UTC.

Owns when a limit's window begins and ends. Must not read the clock: time is an argument, in seconds
since 1970.
"""

import functools
import math
from datetime import UTC, datetime, timedelta
from typing import Literal

Period = Literal["daily", "monthly"]

DAY_FORM = "%Y-%m-%d"
_DAY_S = 86_400


def day_of(now: float) -> str:
    """The day of `now`, as 2026-11-21."""
    return _nth_day(int(now // _DAY_S))


def month_of(day: str) -> str:
    """The month of `day`, as 2026-11."""
    return day[:7]


def month_before(month: str) -> str:
    """The month before `month`."""
    first = datetime.strptime(f"{month}-01", DAY_FORM).replace(tzinfo=UTC)
    return month_of((first - timedelta(days=1)).strftime(DAY_FORM))


def window_of(period: Period, day: str) -> str:
    """The window of that period that `day` lies in."""
    return day if period == "daily" else month_of(day)


def end_of(period: Period, now: float) -> datetime:
    """When the window that `now` lies in is over."""
    midnight = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "daily":
        return midnight + timedelta(days=1)
    return (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)


@functools.lru_cache(maxsize=8)
def _nth_day(number: int) -> str:
    """Asked for every request, and for the same one or two days."""
    return datetime.fromtimestamp(number * _DAY_S, UTC).strftime(DAY_FORM)


def seconds_until(end: datetime, now: float) -> int:
    """Whole seconds from `now` to `end`, at least 1."""
    return max(1, math.ceil(end.timestamp() - now))
