"""Mistakes in a configuration, and where they are.

Owns the names of places in the file and their line numbers. Must not know any rule.
"""

import bisect
import json
import re
import tomllib
from contextlib import suppress
from typing import Any, Final, NamedTuple

Place = tuple[str | int, ...]
"""The way to a value: keys of tables and numbers of items, as ("workers", 0, "engine")."""

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


class Mistake(NamedTuple):
    """A broken rule at `place`; `text` names the remedy, and not the file."""

    place: Place
    text: str


def title(place: Place) -> str:
    """The name of the table at `place`: [providers.cloud], [workers[0]]."""
    return f"[{dotted(place)}]" if place else "the top level"


def name_of(place: Place) -> str:
    """The name of the key or item at `place`, with its table: [workers[0]] gateways[1]."""
    at = max((i for i, part in enumerate(place) if isinstance(part, str)), default=0)
    name = dotted(place[at:])
    return f"{title(place[:at])} {name}" if at else f"`{name}`"


def dotted(place: Place) -> str:
    """`place` as TOML writes it, with the numbers of items."""
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            key = part if _BARE_KEY.fullmatch(part) else json.dumps(part, ensure_ascii=False)
            text += f".{key}" if text else key
    return text


def line_of(place: Place, text: str) -> int | None:
    """The line in the TOML `text` on which the key, table or item at `place` begins, or else the
    nearest table around it; None if the text has neither.

    In TOML no line depends on a later one. So the line is found by bisection, as the first one with
    which the text up to it contains `place`: about twenty partial reads for a thousand lines.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    whole = tomllib.loads(text)
    while place and not _has(whole, place):
        place = place[:-1]
    if not place:
        return None
    numbers = range(len(lines) + 1)
    last = bisect.bisect_left(numbers, True, key=lambda num: _has(_read(lines, num)[0], place))
    return _read(lines, last - 1)[1] + 1


def _read(lines: list[str], num: int) -> tuple[dict[str, Any], int]:
    """The tables in the first `num` lines, without lines at the end that break off within a value,
    and the number of lines that were read. A list that is still open is closed.
    """
    for cut in range(num, 0, -1):
        for closing in ("", "\n]"):
            with suppress(tomllib.TOMLDecodeError):
                return tomllib.loads("\n".join(lines[:cut]) + closing), cut
    return {}, 0


def _has(table: dict[str, Any], place: Place) -> bool:
    value: Any = table
    try:
        for part in place:
            value = value[part]
    except (KeyError, IndexError, TypeError):
        return False
    return True
