"""The arguments of a tool call as they arrive, in JSON that every client reads.

Owns where a text of the JSON begins and ends: a line break that a model wrote into one as it is
becomes an escape, and half of a character U+FFFD. Must not know calls, or whether the JSON is right
otherwise.
"""

import re
from typing import Final, final

_HIGH: Final = r"\\u[dD][89abAB][0-9a-fA-F]{2}"
_LOW: Final = r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_MARK: Final = re.compile(rf'({_HIGH}{_LOW})|({_HIGH}|{_LOW})|\\.|["\x00-\x1f]', re.DOTALL)
_OPEN: Final = re.compile(
    rf"(?<!\\)(?:\\\\)*({_HIGH})?(\\(?:u[0-9a-fA-F]{{0,3}})?)?\Z",
)
"""The beginning of an escape at the end of a piece, which the next piece completes."""
_LONGEST: Final = len(r"\ud83d\ude0")
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


@final
class CallText:
    """The arguments of one call."""

    __slots__ = ("_held", "_is_within")

    def __init__(self) -> None:
        self._is_within = False
        self._held = ""

    def read(self, text: str) -> str:
        """The next piece of the arguments. An escape that is not whole waits for the next one."""
        text = self._held + text
        self._held = ""
        found = _OPEN.search(text) if "\\" in text[-_LONGEST:] else None
        if found is not None and (found[1] or found[2]):
            at = found.start(1) if found[1] else found.start(2)
            text, self._held = text[:at], text[at:]
        return _MARK.sub(self._mark, text)

    def _mark(self, found: re.Match[str]) -> str:
        mark = found[0]
        if mark == '"':
            self._is_within = not self._is_within
        elif found[2]:
            return "\\ufffd"
        elif self._is_within and mark < " ":
            return _SHORT.get(mark) or f"\\u{ord(mark):04x}"
        return mark
