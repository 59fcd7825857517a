"""Redaction: the secrets by which the gateway and workers ask servers are kept out of what clients
read.

Owns how a secret is found in a text. A short key, such as `EMPTY` or `sk`, is a part of many words,
so it counts only where it stands alone. Must not know where the secrets come from.
"""

import re
from collections.abc import Sequence
from typing import Final, final

ALONE_CHARS: Final = 12
"""A secret of fewer bytes counts only where no letter, digit, `_` or `-` is beside it."""

_SHOWN: Final = b"[redacted]"
_ESCAPED: Final = re.compile(rb"\\u00([2-7][0-9A-Fa-f])|\\/")
_STAY_ESCAPED: Final = frozenset({0x22, 0x5C, 0x7F})
_ALONE: Final = rb"(?<![A-Za-z0-9_-])%b(?![A-Za-z0-9_-])"


@final
class Redaction:
    """Finds `secrets`."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        patterns = [
            re.escape(secret) if len(secret) >= ALONE_CHARS else _ALONE % re.escape(secret)
            for secret in sorted(filter(None, secrets), key=len, reverse=True)
        ]
        self._pattern = re.compile(b"|".join(patterns)) if patterns else None

    def is_in(self, data: bytes) -> bool:
        """Whether `data` contains a secret."""
        return self._pattern is not None and self._pattern.search(data) is not None

    def of(self, data: bytes) -> bytes:
        """`data` with each secret replaced, also where JSON writes its characters in another way.
        The data may become longer or shorter.
        """
        if self._pattern is None:
            return data
        data = self._pattern.sub(_SHOWN, data)
        if data.find(b"\\u00") < 0 and data.find(b"\\/") < 0:
            return data
        plain = _ESCAPED.sub(_unescaped, data)
        return data if self._pattern.search(plain) is None else self._pattern.sub(_SHOWN, plain)


def _unescaped(match: "re.Match[bytes]") -> bytes:
    """The character of an escape that JSON does not need."""
    code = int(match[1], 16) if match[1] else ord("/")
    return match[0] if code in _STAY_ESCAPED else bytes([code])
