"""Which numbers of a schema an engine's grammar has as they are.

Owns what llguidance 1.9.1 does to numbers: integers become doubles, and the last digits of a long
fraction change. A grammar with another number than the schema's would forbid the right answer and
force a wrong one. Must not know keywords.
"""

import decimal
import math
from typing import Final

LARGEST: Final = 9 * 10**18
"""Bounds of numbers are at most this; llguidance computes ranges in 64 bits."""
_SMALLEST: Final = 1e-15
_DIGITS: Final = 15
"""Fractions with at most this many digits keep their value."""
_MOST_EXPONENT: Final = 22
_MOST: Final = 2**63 - 1024
"""The largest integer that a double and 64 bits both hold."""


def is_kept(value: object) -> bool:
    """Whether llguidance keeps every number in `value` unchanged."""
    if isinstance(value, dict):
        return all(map(is_kept, value.values()))
    if isinstance(value, list):
        return all(map(is_kept, value))
    if isinstance(value, bool):
        return True
    if isinstance(value, int):
        return abs(value) <= _MOST and int(float(value)) == value
    return not isinstance(value, float) or _is_short(value)


def at_least(bound: float) -> float:
    """The least number from `bound` on that llguidance keeps unchanged."""
    if isinstance(bound, int):
        kept = float(bound)
        return int(math.nextafter(kept, math.inf) if kept < bound else kept)
    if _is_short(bound):
        return bound
    rounded = decimal.Context(prec=_DIGITS, rounding=decimal.ROUND_CEILING)
    return float(rounded.create_decimal(repr(bound)))


def finite(value: object) -> int | float | None:
    """The value if it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isinstance(value, int) or math.isfinite(value) else None


def lower_bound(value: float) -> float | None:
    """A lower bound that engines can follow and that allows no more."""
    if value > LARGEST:
        return None
    if 0 < value < _SMALLEST:
        return _SMALLEST
    return 0 if -_SMALLEST < value < 0 else at_least(max(value, -LARGEST))


def upper_bound(value: float) -> float | None:
    """An upper bound that engines can follow and that allows no more."""
    mirrored = lower_bound(-value)
    return None if mirrored is None else -mirrored


def _is_short(value: float) -> bool:
    if not math.isfinite(value):
        return False
    digits = decimal.Decimal(repr(value)).normalize().as_tuple()
    exponent = digits.exponent
    is_small = isinstance(exponent, int) and abs(exponent) <= _MOST_EXPONENT
    return len(digits.digits) <= _DIGITS and is_small
