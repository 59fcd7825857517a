"""Every mistake of a file in one run, each with its line.

Owns what is left out of a file so that the rest can be checked: a mistake is recorded, its place is
removed, and the rules look at what remains. Must not know what a key does. `load.py` stops at the
first mistake, because only that one is certain; here a mistake that follows from an earlier one is
left out.
"""

import re
import tomllib
from collections.abc import Callable
from itertools import zip_longest
from typing import Any, Final

import msgspec

from config.builtin_models import BUILTIN_MODEL, BUILTIN_PREFIX
from config.checks import mistakes
from config.key_mistakes import type_mistakes
from config.mistakes import Mistake, Place, line_of
from config.tables import Config

MAX_MISTAKES: Final = 50
"""A file with more is another kind of file."""


def all_mistakes(
    text: str, fill: Callable[[dict[str, Any]], None], toml_error: Callable[[str], tuple[str, str]]
) -> list[tuple[int | None, str]]:
    """The mistakes of a file as (line, text), in the order of lines. `fill` fills the keys that a
    file may leave out; `toml_error` splits tomllib's message into its words and `:LINE`.
    """
    found: list[tuple[int | None, str]] = []
    given, text = text, _without_syntax_errors(text, toml_error, found)
    pairs = zip_longest(lines_of(given), lines_of(text), fillvalue="")
    unread = [line for line, kept in pairs if not kept]
    raw = tomllib.loads(text)
    fill(raw)
    numbers = _numbers(raw)
    seen: set[str] = set()
    removed: set[Place] = set()

    def record(mistake: Mistake) -> None:
        words = " ".join(mistake.text.splitlines())
        if found and _may_stand_in(unread, mistake):
            return
        if words not in seen:
            seen.add(words)
            found.append((line_of(_original(raw, mistake.place, numbers), text), words))

    for _ in range(MAX_MISTAKES):
        now = _certain(list(type_mistakes(raw, Config)))
        # A table whose key was removed may need that key.
        follow = [one for one in now if _needed(one) in removed or _rests_on(one, removed)]
        if not now:
            break
        for mistake in now:
            if mistake not in follow:
                record(mistake)
        for mistake in sorted(now, key=lambda one: _last_first(one.place)):
            removed.add(mistake.place)
            _remove(raw, mistake.place)
    else:
        return sorted(found, key=_by_line)
    for mistake in mistakes(msgspec.convert(raw, Config)):
        record(mistake)
    return sorted(found[:MAX_MISTAKES], key=_by_line)


def _may_stand_in(unread: list[str], mistake: Mistake) -> bool:
    """Whether a mistake may be none, because of lines that are no TOML: the key that a table needs
    may stand in one, and the head of a table with keys that are unknown above it.
    """
    if mistake.text.startswith("unknown key "):
        return any(line.lstrip().startswith("[") for line in unread)
    if " needs `" not in mistake.text:
        return False
    key = str(_needed(mistake)[-1])
    return any(line.lstrip().startswith(key) for line in unread)


def lines_of(text: str) -> list[str]:
    """The lines of a file of any system."""
    return text.replace("\r\n", "\n").split("\n")


def _without_syntax_errors(
    text: str,
    toml_error: Callable[[str], tuple[str, str]],
    found: list[tuple[int | None, str]],
) -> str:
    """`text` without the lines that are not TOML; each is a mistake."""
    lines = lines_of(text)
    while True:
        try:
            tomllib.loads("\n".join(lines))
        except tomllib.TOMLDecodeError as error:
            why, place = toml_error(str(error))
            line = int(place[1:]) if place else len(lines)
            at = min(line, len(lines)) - 1
            if not lines[at] or len(found) >= MAX_MISTAKES:
                # An error at the end of a text that a line above it opened: the rest is unreadable.
                found.append((line, f"not valid TOML: {why}"))
                return "\n".join(lines[: _first_bad(lines)])
            found.append((line, f"not valid TOML: {why}"))
            lines[at] = ""
        else:
            return "\n".join(lines)


def _first_bad(lines: list[str]) -> int:
    """The number of lines from the top that are valid TOML."""
    for count in range(len(lines), 0, -1):
        try:
            tomllib.loads("\n".join(lines[:count]))
        except tomllib.TOMLDecodeError:
            continue
        return count
    return 0


def _certain(found: list[Mistake]) -> list[Mistake]:
    """The mistakes without those about a whole table that has a mistake at one of its keys,
    because both are the same mistake.
    """
    places = {mistake.place for mistake in found}
    return [
        one
        for index, one in enumerate(found)
        if not any(place[: len(one.place)] == one.place and place != one.place for place in places)
        and one.place not in {earlier.place for earlier in found[:index]}
    ]


def _remove(raw: dict[str, Any], place: Place) -> None:
    """Take what is at `place` out of the tables. A table of `[[models]]` and of `[providers]` that
    has to go leaves its name, because other tables refer to it.
    """
    if not place:
        return
    value: Any = raw
    for part in place[:-1]:
        if not _has(value, part):
            return
        value = value[part]
    last = place[-1]
    if not _has(value, last):
        return
    match place:
        case ("models", int()) if isinstance(value[last], dict) and set(value[last]) > {"name"}:
            _keep_only(value[last], {"name": value[last].get("name", "")})
        case ("workers", int()) if _is_whole_worker(value[last]):
            kept = {key: value[last][key] for key in _KEPT_OF_WORKERS if key in value[last]}
            _keep_only(value[last], {**kept, "model": _STUB_MODEL})
        case ("providers", str()) if value[last] != _STUB_PROVIDER:
            value[last] = dict(_STUB_PROVIDER)  # replaces a table, or another value in its place
        case _:
            del value[last]


def _needed(mistake: Mistake) -> Place:
    """The place of the key that a table lacks, if the mistake is that."""
    return (*mistake.place, mistake.text.rpartition(" needs `")[2].partition("`")[0])


def _rests_on(mistake: Mistake, removed: set[Place]) -> bool:
    """Whether a rule over several keys of a table names a key that was removed: with the intended
    value the rule may be kept.
    """
    words = set(_WORDS.findall(mistake.text))
    return any(key[:-1] == mistake.place and key[-1] in words for key in removed if key)


def _is_whole_worker(value: object) -> bool:
    """Whether a worker's table has more keys than those that remain of a table with a mistake."""
    return isinstance(value, dict) and bool(set(value) - {*_KEPT_OF_WORKERS, "model"})


def _keep_only(table: dict[str, Any], kept: dict[str, Any]) -> None:
    """Change the table in place to `kept`: `_numbers` knows a table by its identity."""
    table.clear()
    table.update(kept)


_WORDS: Final = re.compile(r"\w+")
_KEPT_OF_WORKERS: Final = ("name", "serves", "gateways", "token_budget")
_STUB_MODEL: Final = f"{BUILTIN_PREFIX}{BUILTIN_MODEL}"
_STUB_PROVIDER: Final = {"base_url": "http://provider.invalid/v1"}


def _has(value: Any, part: str | int) -> bool:  # noqa: ANN401 -- any value of TOML
    if isinstance(part, int):
        return isinstance(value, list) and 0 <= part < len(value)
    return isinstance(value, dict) and part in value


def _last_first(place: Place) -> tuple[tuple[int, str], ...]:
    """Sorts later items of a list before earlier ones, so that removing one moves none of them."""
    return tuple([(-part, "") if isinstance(part, int) else (0, part) for part in place])


def _numbers(raw: dict[str, Any]) -> dict[int, int]:
    """The number of each table in its list, by the identity of the table."""
    return {
        id(item): index
        for tables in raw.values()
        if isinstance(tables, list)
        for index, item in enumerate(tables)
        if isinstance(item, dict)
    }


def _original(raw: dict[str, Any], place: Place, numbers: dict[int, int]) -> Place:
    """`place` with the number that its table had before others were removed."""
    if len(place) > 1 and isinstance(place[1], int) and _has(raw.get(str(place[0])), place[1]):
        item = raw[str(place[0])][place[1]]
        return (place[0], numbers.get(id(item), place[1]), *place[2:])
    return place


def _by_line(mistake: tuple[int | None, str]) -> int:
    return 0 if mistake[0] is None else mistake[0]
