"""JSON that a server wrote almost right.

Owns five faults of servers: bytes that are no UTF-8, which a token that ends within a character
leaves; half of a surrogate pair, which programs in JavaScript leave where they cut a text; NaN or
an infinity, which Python writes for a missing log-probability; a byte order mark; and tabs or line
breaks within texts, which servers that print their own JSON leave. Must not know what it says.
"""

import codecs
import json
import re
from typing import Any, Final

import msgspec

from gateway.api import without_halves
from protocol.reading import FAULTS

_HIGH_LAST: Final = re.compile(rb'(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})"')
_LOW_FIRST: Final = re.compile(rb'"(\\u[dD][c-fC-F][0-9a-fA-F]{2})')
"""The first and the second half of a character, at an end of a text."""

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


class TextMender:
    """Mends the data of one stream's events. Half a character at the end of a text is the beginning
    of the next one, as JavaScript's programs cut between any two halves.
    """

    def __init__(self) -> None:
        self._half = b""

    def mended(self, data: bytes) -> bytes | None:
        """Like the function `mended`."""
        half, self._half = self._half, b""
        if half:
            data = _LOW_FIRST.sub(lambda found: b'"' + half + found[1], data, count=1)
        if (found := _HIGH_LAST.search(data)) is not None:
            self._half = found[1]
            data = data[: found.start(1)] + data[found.end(1) :]
        return mended(data)


def mended(data: bytes) -> bytes | None:
    """`data` as JSON that any client reads, or None if it is beyond these faults. What is no text
    becomes U+FFFD, as the standard of server-sent events says; what is no number becomes null.
    """
    data = data.removeprefix(codecs.BOM_UTF8)
    text = without_halves(data.decode("utf-8", "replace").encode())
    try:
        _decode(text)
    except FAULTS:
        return _written_anew(text)
    return text


def _written_anew(text: bytes) -> bytes | None:
    """The JSON that Python's reader finds, which takes NaN, huge numbers and unescaped tabs."""
    try:
        value: Any = json.loads(text, strict=False, parse_constant=lambda _: None)
        return _encode(value)
    except (ValueError, RecursionError):
        return None
