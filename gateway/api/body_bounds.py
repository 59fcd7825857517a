"""How many values a body has, before it is decoded.

Owns the caps on values, and which bodies are read at once: decoding holds Python's lock, so a body
of a hundred thousand tools would stop every stream for as long as it takes. Must not know what the
values mean.
"""

import re
from typing import Final

from gateway.api.errors import ApiError

MAX_VALUES: Final = 100_000
"""Texts (names of fields among them), objects and lists in a body. A conversation of 1,000 turns
with 300 tools has 40,000.
"""
MAX_COMMAS: Final = 2_100_000
"""Bounds numbers, for prompts of token ids: the largest windows have two million tokens."""

SMALL_BYTES: Final = 16 * 1024
"""A body up to this size is read in the event loop whatever it has: 700 tools take 5 ms."""
_QUICK_BYTES: Final = 256 * 1024
_QUICK_VALUES: Final = 4_000
_QUICK_LISTS: Final = 1_500
_PIECE_BYTES: Final = 2**18

_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?+', re.DOTALL)
"""A text, to the end of a body that does not close it: a search would begin anew at each quote."""


def is_quickly_read(body: bytes) -> bool:
    """Whether `body` may be read in the event loop, where all other streams run."""
    return len(body) <= SMALL_BYTES or (
        len(body) <= _QUICK_BYTES
        and body.count(b'"') <= 2 * _QUICK_VALUES
        and body.count(b"{") + body.count(b"[") <= _QUICK_LISTS
        # A schema of 29 KB with 40 alternatives, compared in pairs, takes 60 ms.
        and body.find(b'"oneOf"') < 0
    )


def check_counts(body: bytes) -> None:
    """Raise `ApiError` 400 for a JSON body with more values than are read. A form begins with its
    boundary and is not decoded: a sound in it has such bytes by chance.
    """
    if body.startswith(b"--"):
        return
    marks = _count(body, b'"') // 2 + _count(body, b"{") + _count(body, b"[")
    if marks <= MAX_VALUES and _count(body, b",") <= MAX_COMMAS:
        return
    # Texts may contain these characters too, so only those between the texts are counted.
    num_values = num_commas = end = 0
    for match in _STRING.finditer(body):
        between = body[end : match.start()]
        end = match.end()
        num_values += 1 + between.count(b"{") + between.count(b"[")
        num_commas += between.count(b",")
        _check(num_values, num_commas)
    rest = body[end:]
    _check(num_values + rest.count(b"{") + rest.count(b"["), num_commas + rest.count(b","))


def _count(body: bytes, mark: bytes) -> int:
    """How often a byte occurs, in pieces between which other threads get Python's lock."""
    starts = range(0, len(body), _PIECE_BYTES)
    return sum(body.count(mark, start, start + _PIECE_BYTES) for start in starts)


def _check(num_values: int, num_commas: int) -> None:
    if num_values > MAX_VALUES:
        text = f"The body has over {MAX_VALUES} values (texts, names, objects and lists)"
    elif num_commas > MAX_COMMAS:
        text = f"The body has over {MAX_COMMAS} values in its lists"
    else:
        return
    text += ", which is more than are read in one request: send fewer tools, calls or parts."
    raise ApiError(400, text, code="too_many_values")
