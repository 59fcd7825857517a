"""What a server says of its own house is kept out of what clients read.

Owns what looks like an address or a key. Must not know which secrets the gateway has
(`protocol/redaction.py`).
"""

import re
from typing import Final

_INNER: Final = re.compile(
    r"(?i)\b[a-z][a-z0-9+.-]{0,31}+://\S+"
    r"|(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?(?![\d.])"
    r"|\b(?:sk|pk|rk|key|token|bearer|secret)[-_ :=]{1,8}"
    r"(?=[A-Za-z._-]*\d|[A-Za-z._-]{16})[A-Za-z0-9._-]{8,}"
)
"""Addresses, and what looks like a key: it has a digit or is long, unlike the words of a sentence,
as of "Incorrect API key provided".
"""


def without_inner_words(text: str) -> str:
    """`text`, by which a server says why it failed, without the addresses and keys of its own house
    that such texts often quote.
    """
    return _INNER.sub("[redacted]", text)
