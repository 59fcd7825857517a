"""Reasoning efforts for templates that know fewer of them than the APIs.

Owns the order of the efforts and the replacements for each. Must not know templates.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

EFFORT: Final = "reasoning_effort"
_WEAKEST_FIRST: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def other_efforts(given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The variables with other efforts, the nearest first (of two equally near ones the stronger),
    and without an effort. Those without an effort come first if the given effort is unknown or
    "none".
    """
    effort = given.get(EFFORT)
    without = {name: value for name, value in given.items() if name != EFFORT}
    if effort not in _WEAKEST_FIRST[1:]:
        yield without
        return
    at = _WEAKEST_FIRST.index(effort)
    known = range(1, len(_WEAKEST_FIRST))
    for other in sorted(known, key=lambda index: (abs(index - at), -index)):
        if other != at:
            yield {**without, EFFORT: _WEAKEST_FIRST[other]}
    yield without
