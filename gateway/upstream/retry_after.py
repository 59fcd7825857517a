"""The pause that a provider asks for by `Retry-After`.

Owns both forms of the header: seconds, and a date. Must not know providers.
"""

import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

MAX_RETRY_AFTER_S: Final = 600


def retry_after_s(value: bytes | None) -> int | None:
    """The pause in whole seconds, at most 600; None if the header names none."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = _seconds_until(value.decode("latin-1"))
    return min(MAX_RETRY_AFTER_S, max(1, math.ceil(seconds))) if math.isfinite(seconds) else None


def _seconds_until(date: str) -> float:
    """Seconds until an HTTP date; NaN if it is not one."""
    try:
        at = parsedate_to_datetime(date)
    except (ValueError, OverflowError):
        return math.nan
    return (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
