"""Redaction: the secrets of a provider are kept out of what clients read.

Owns how a secret is found in a text. A short key, such as `EMPTY` or `sk`, is a part of many words,
so it counts only where it stands alone. Must not know where the secrets come from.
"""

import re
from collections.abc import Sequence
from typing import Final, final

ALONE_CHARS: Final = 12
"""A secret of fewer bytes counts only where no letter, digit, `_` or `-` is beside it."""

_INNER: Final = re.compile(
    r"(?i)\b[a-z][a-z0-9+.-]{0,31}+://\S+"
    r"|(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?(?![\d.])"
    r"|\b(?:sk|pk|rk|key|token|bearer|secret)[-_ :=]{1,8}"
    r"(?=[A-Za-z._-]*\d|[A-Za-z._-]{16})[A-Za-z0-9._-]{8,}"
)
"""Addresses, and what looks like a key: it has a digit or is long, unlike the words of a sentence,
as of "Incorrect API key provided".
"""

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
        """`data` with each secret replaced."""
        return data if self._pattern is None else self._pattern.sub(b"[redacted]", data)


def without_inner_words(text: str) -> str:
    """`text`, by which a server says why it failed, without the addresses and keys of its own house
    that such texts often quote.
    """
    return _INNER.sub("[redacted]", text)
