"""The pause that a provider asks for by `Retry-After`.

Owns both forms of the header, seconds and a date, and Azure's `retry-after-ms`. Must not know
providers.
"""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

MAX_RETRY_AFTER_S: Final = 600


def retry_after_s(headers: Mapping[bytes, bytes]) -> int | None:
    """The pause in whole seconds, at most 600; None if the headers name none. Milliseconds count
    before seconds, as in the official clients.
    """
    precise, value = headers.get(b"retry-after-ms"), headers.get(b"retry-after")
    seconds = math.nan if precise is None else _number(precise) / 1000
    if not math.isfinite(seconds) and value is not None:
        seconds = _number(value)
        if math.isnan(seconds):
            seconds = _seconds_until(value.decode("latin-1"))
    return min(MAX_RETRY_AFTER_S, max(1, math.ceil(seconds))) if math.isfinite(seconds) else None


def _number(value: bytes) -> float:
    """The number in a header; NaN if it is none."""
    try:
        return float(value)
    except ValueError:
        return math.nan


def _seconds_until(date: str) -> float:
    """Seconds until an HTTP date; NaN if it is not one."""
    try:
        at = parsedate_to_datetime(date)
    except (ValueError, OverflowError):
        return math.nan
    return (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
