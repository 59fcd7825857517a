"""The formats of texts that are enforced, as patterns of the whole text.

Owns a pattern for each: what it allows is of the format, though not all of the format is allowed
(no quoted names in addresses, no 29 February of 2000). Values that are written without quotes need
them; for others engines have grammars of formats. Must not know grammars.
"""

from collections.abc import Mapping
from typing import Final

_DATE: Final = (
    r"([1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
    r"|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
    r"|[1-9][0-9](0[48]|[2468][048]|[13579][26])-02-29)"
)
_TIME: Final = (
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
    r"(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
_LABEL: Final = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_BYTE: Final = r"(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_HEX: Final = r"[0-9A-Fa-f]"
_WORD: Final = r"[A-Za-z0-9_+-]+"
_OF_URI: Final = r"([A-Za-z0-9._~:/?#@!$&()*+,;=-]|%[0-9A-Fa-f]{2})"
_DAYS: Final = r"([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)"
_HOURS: Final = r"T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S)"

FORMAT_PATTERNS: Final[Mapping[str, str]] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P([0-9]+W|{_DAYS}({_HOURS})?|{_HOURS})",
    "email": rf"{_WORD}(\.{_WORD}){{0,4}}@{_LABEL}(\.{_LABEL}){{1,4}}",
    "hostname": rf"{_LABEL}(\.{_LABEL}){{0,3}}",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "ipv6": rf"({_HEX}{{1,4}}(:{_HEX}{{1,4}}){{7}}|({_HEX}{{1,4}}(:{_HEX}{{1,4}}){{0,2}})?"
    rf"::({_HEX}{{1,4}}(:{_HEX}{{1,4}}){{0,2}})?)",
    "uuid": f"{_HEX}{{8}}(-{_HEX}{{4}}){{3}}-{_HEX}{{12}}",
    "uri": f"[A-Za-z][A-Za-z0-9+.-]*:{_OF_URI}+",
}
