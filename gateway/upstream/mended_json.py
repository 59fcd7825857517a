"""JSON that a server wrote almost right.

Owns three faults of servers: bytes that are no UTF-8, which a token that ends within a character
leaves; half of a surrogate pair, which programs in JavaScript leave where they cut a text; and NaN
or an infinity, which Python writes for a missing log-probability. Must not know what the JSON says.
"""

import json
from typing import Any, Final

import msgspec

from gateway.api import without_halves

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


def mended(data: bytes) -> bytes | None:
    """`data` as JSON that any client reads, or None if it is beyond these faults. What is no text
    becomes U+FFFD, as the standard of server-sent events says; what is no number becomes null.
    """
    text = without_halves(data.decode("utf-8", "replace").encode())
    try:
        _decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return _without_nan(text)
    return text


def _without_nan(text: bytes) -> bytes | None:
    if b"NaN" not in text and b"Infinity" not in text:
        return None
    try:
        value: Any = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    return _encode(value)
