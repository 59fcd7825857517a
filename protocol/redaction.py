"""Redaction: the secrets by which the gateway and workers ask servers are kept out of what clients
read.

Owns how a secret is found in a text. A short key, such as `EMPTY` or `sk`, is a part of many words,
so it counts only where it stands alone. Whoever cuts a text before it is redacted ends it with
`CUT`, before which the beginning of a secret counts too. Must not know where the secrets come from.
"""

import json
import re
from collections.abc import Sequence
from typing import Final, final

ALONE_CHARS: Final = 12
"""A secret of fewer bytes counts only where no letter, digit, `_` or `-` is beside it."""

CUT: Final = "..."
"""The end of a text that was cut."""
MIN_CUT_BYTES: Final = 4
"""Fewer bytes of a secret before `CUT` are no secret: `sk-...` stands in many texts."""

_SHOWN: Final = b"[redacted]"
_CUT: Final = CUT.encode()
_ESCAPED: Final = re.compile(rb"\\\\|\\u00([2-7][0-9A-Fa-f])|\\/")
"""A backslash for itself comes first: the `u0041` behind one is text."""
_STAY_ESCAPED: Final = frozenset({0x22, 0x5C, 0x7F})
_IN_WORD: Final = re.compile(rb"[A-Za-z0-9_-]")
_ALONE: Final = rb"(?<![A-Za-z0-9_-])%b(?![A-Za-z0-9_-])"


@final
class Redaction:
    """Finds `secrets`."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        forms = {form for secret in filter(None, secrets) for form in _forms(secret)}
        self._forms = sorted(forms, key=len, reverse=True)
        patterns = [
            re.escape(form) if len(form) >= ALONE_CHARS else _ALONE % re.escape(form)
            for form in self._forms
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
        data = self._without_cut(self._pattern.sub(_SHOWN, data))
        if data.find(b"\\u00") < 0 and data.find(b"\\/") < 0:
            return data
        plain = _ESCAPED.sub(_unescaped, data)
        return data if self._pattern.search(plain) is None else self._pattern.sub(_SHOWN, plain)

    def _without_cut(self, data: bytes) -> bytes:
        """`data` without the beginning of a secret before each `CUT`."""
        *texts, rest = data.split(_CUT)
        return b"".join(self._without_end(text) + _CUT for text in texts) + rest

    def _without_end(self, text: bytes) -> bytes:
        """`text` without the beginning of a secret at its end."""
        for form in self._forms:
            head = form[:MIN_CUT_BYTES]
            at = text.find(head, max(0, len(text) - len(form)))
            while at >= 0 and len(head) == MIN_CUT_BYTES:
                is_part = len(form) < ALONE_CHARS and _IN_WORD.match(text, max(0, at - 1), at)
                if form.startswith(text[at:]) and not is_part:
                    return text[:at] + _SHOWN
                at = text.find(head, at + 1)
        return text


def _forms(secret: bytes) -> set[bytes]:
    """`secret` as it is, and as JSON writes it."""
    text = secret.decode(errors="replace")
    found = [json.dumps(text, ensure_ascii=is_ascii)[1:-1].encode() for is_ascii in (True, False)]
    return {secret, *found}


def _unescaped(match: "re.Match[bytes]") -> bytes:
    """The character of an escape that JSON does not need."""
    if match[0] == rb"\\":
        return match[0]
    code = int(match[1], 16) if match[1] else ord("/")
    return match[0] if code in _STAY_ESCAPED else bytes([code])
