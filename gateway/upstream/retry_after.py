"""The pause that a provider asks for by `Retry-After`, or in the body of a 429 without it.

Owns both forms of the header, seconds and a date, Azure's `retry-after-ms`, and where bodies and
errors in streams say it: Google's `retryDelay`, OpenAI's "Please try again in 1m2.5s." and Azure's
"Please retry after 24 seconds." Must not know providers.
"""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

MAX_RETRY_AFTER_S: Final = 600

_IN_BODY: Final = (
    re.compile(rb'"retryDelay"\s*:\s*"(?P<time>[0-9.]{1,20}m?s)"'),
    re.compile(
        rb"(?i)\b(?:try(?:ing)? again|retry(?:ing)?) (?:in|after) (?:about )?(?P<time>(?:"
        rb"[0-9.]{1,20} ?(?:ms|milliseconds?|h(?:ours?)?|m(?:in(?:ute)?s?)?|s(?:ec(?:ond)?s?)?)"
        rb"(?: ?and ?|,? )?){1,3})(?![a-z0-9])"
    ),
)
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(ms|mil|[hms])")
"""Google writes nanoseconds ("34.074824224s")."""
_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "mil": 0.001}


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
    return _bounded(seconds) if math.isfinite(seconds) else None


def retry_after_in(body: bytes) -> int | None:
    """Like `retry_after_s`, for the body of a refusal."""
    found = next((match for sign in _IN_BODY if (match := sign.search(body)) is not None), None)
    if found is None:
        return None
    parts = _PART.findall(found["time"].decode().lower())
    return _bounded(sum(float(number) * _UNITS[unit] for number, unit in parts)) if parts else None


def _bounded(seconds: float) -> int:
    return min(MAX_RETRY_AFTER_S, max(1, math.ceil(seconds)))


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
