"""Where in a TOML text each table, key and item stands.

Owns the line numbers, which tomllib does not tell. Must not judge the text: it is one that tomllib
has read, and whatever else it meets it stops at, so that it never names a wrong line.
"""

import bisect
import itertools
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

Place = tuple[str | int, ...]
"""The way to a value: keys of tables and numbers of items, as ("workers", 0, "engine")."""

_GAP: Final = r"(?:[ \t\n]|#[^\n]*)*"
_BLANK: Final = re.compile(_GAP)
_BETWEEN: Final = re.compile(rf"{_GAP},?{_GAP}")
_SPACE: Final = re.compile(r"[ \t]*")
_HEADER: Final = re.compile(r"\[\[?")
_HEADER_END: Final = re.compile(r"[ \t]*\]\]?")
_EQUALS: Final = re.compile(r"[ \t]*=[ \t]*")
_BARE: Final = re.compile(r"[^,\]}#\n]+")
_PART: Final = r"""(?:"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[A-Za-z0-9_-]+)"""
_KEY: Final = re.compile(rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*")
_STRING: Final = re.compile(
    # A text of several lines may end with quotes of its own before the three that close it.
    r'"""(?:[^\\]|\\.)*?"""(?:"{0,2})'
    r"|'''.*?'''(?:'{0,2})"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)


class _Lost(Exception):
    """Something else stands here than in any TOML that we know."""


def lines_of(text: str) -> Mapping[Place, int]:
    """The line of every table, key and item in `text`, which is valid TOML, by its place."""
    scan = _Scan(text)
    with suppress(_Lost, tomllib.TOMLDecodeError):
        scan.run()
    return scan.lines


def line_of(place: Place, lines: Mapping[Place, int]) -> int | None:
    """The line of what stands at `place`, or of the nearest table around it that has one."""
    while place:
        if (line := lines.get(place)) is not None:
            return line
        place = place[:-1]
    return None


class _Scan:
    """One way through a text, from the first character to the last."""

    def __init__(self, text: str) -> None:
        self.lines: dict[Place, int] = {}
        self._text = text.replace("\r\n", "\n")
        self._ends = [match.start() for match in re.finditer("\n", self._text)]
        self._at = 0
        self._num_tables: dict[Place, int] = {}  # of arrays that are written as [[...]]

    def run(self) -> None:
        """Fill `lines`. Raises `_Lost`."""
        table: Place = ()
        self._take(_BLANK)
        while self._at < len(self._text):
            if self._next() == "[":
                table = self._header()
            else:
                self._pair(table)
            self._take(_BLANK)

    def _header(self) -> Place:
        """`[a.b]` or `[[a.b]]`: the place of the table that begins."""
        line, is_item = self._line(), self._take(_HEADER) == "[["
        self._take(_SPACE)
        *outer, last = self._key()
        self._take(_HEADER_END)
        place: Place = ()
        for part in outer:
            place = (*place, part)
            self.lines.setdefault(place, line)
            if place in self._num_tables:
                place = (*place, self._num_tables[place] - 1)
        place = (*place, last)
        if is_item:
            self.lines.setdefault(place, line)
            index = self._num_tables.get(place, 0)
            self._num_tables[place] = index + 1
            place = (*place, index)
        self.lines[place] = line
        return place

    def _pair(self, table: Place) -> None:
        line, place = self._line(), table
        for part in self._key():
            place = (*place, part)
            self.lines.setdefault(place, line)
        self._take(_EQUALS)
        self._value(place)

    def _value(self, place: Place) -> None:
        match self._next():
            case "[":
                self._items(place)
            case "{":
                self._inline_table(place)
            case '"' | "'":
                self._take(_STRING)
            case _:
                self._take(_BARE)

    def _items(self, place: Place) -> None:
        self._at += 1
        for index in itertools.count():
            if self._is_over("]"):
                return
            self.lines[*place, index] = self._line()
            self._value((*place, index))

    def _inline_table(self, place: Place) -> None:
        self._at += 1
        while not self._is_over("}"):
            self._pair(place)

    def _is_over(self, end: str) -> bool:
        """Go to the next item: False; or past the `end` of them."""
        self._take(_BETWEEN)
        if self._next() != end:
            return False
        self._at += 1
        return True

    def _key(self) -> list[str]:
        """The parts of a dotted key, as tomllib unquotes them."""
        table: object = tomllib.loads(f"{self._take(_KEY)} = 0")
        parts = []
        while isinstance(table, dict):
            ((part, table),) = table.items()
            parts.append(part)
        return parts

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, pattern: re.Pattern[str]) -> str:
        if (match := pattern.match(self._text, self._at)) is None:
            raise _Lost
        self._at = match.end()
        return match[0]

    def _line(self) -> int:
        return bisect.bisect_left(self._ends, self._at) + 1
