"""A user's file and ours, as one text.

Owns the check that nothing of the user's is lost: the merged text is read again and compared with
the expected values, and a file for which they differ is refused. Pure text; must not know any
client or file.
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Final, TypeAlias

from protocol.errors import HermaError

Table: TypeAlias = Mapping[str, str | int | bool]

_HEADER: Final = re.compile(r"\s*\[")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def merge_json(text: str, patch: Mapping[str, Any]) -> str:
    """The JSON object `text` ("" is an empty one) with `patch` applied as RFC 7396 has it: objects
    are merged, other values replaced, null removes. Raises `HermaError` if it is no JSON object.
    """
    try:
        whole = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise HermaError(f"it is not plain JSON ({error}); with comments it has to be") from error
    if not isinstance(whole, dict):
        raise HermaError("it is not a JSON object")
    return json_text(merged(whole, patch))


def json_text(value: Mapping[str, Any]) -> str:
    """`value` as a file for people."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def merged(whole: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """`whole` with `patch` applied, by RFC 7396."""
    result = deepcopy(dict(whole))
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            inner = result.get(key)
            result[key] = merged(inner if isinstance(inner, dict) else {}, value)
        else:
            result[key] = value
    return result


def merge_toml(text: str, keys: Table, path: Sequence[str], table: Table) -> str:
    """The TOML `text` with `keys` at its top level and `table` at `path` in place of what is
    there; comments and all else stay. Raises `HermaError` where that cannot be done by lines.
    """
    old = _read(text)
    lines = text.splitlines()
    first = next((at for at, line in enumerate(lines) if _HEADER.match(line)), len(lines))
    top, rest = lines[:first], lines[first:]
    for key, value in keys.items():
        _set_line(top, key, f"{key} = {toml_value(value)}")
    rest = _without_table(rest, path)
    rest = [*rest, *([""] if rest else []), *table_lines(path, table)]
    if top and top[-1].strip():
        top.append("")
    result = "\n".join([*top, *rest]) + "\n"
    wanted = {**old, **keys}
    inner = wanted
    for part in path[:-1]:
        inner[part] = dict(inner.get(part, {}))
        inner = inner[part]
    inner[path[-1]] = dict(table)
    if _read(result) != wanted:
        raise HermaError("it is written in a way that cannot be changed by lines; do it by hand")
    return result


def table_lines(path: Sequence[str], table: Mapping[str, Any]) -> list[str]:
    """`table` as lines of TOML."""
    title = ".".join(_key(part) for part in path)
    return [f"[{title}]", *(f"{_key(key)} = {toml_value(value)}" for key, value in table.items())]


def toml_value(value: str | int | bool) -> str:
    """A string, number or truth value as TOML writes it."""
    # JSON's strings are TOML's basic strings but for DEL, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else toml_value(name)


def _read(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise HermaError(f"it is not valid TOML: {error}") from error


def _set_line(lines: list[str], key: str, line: str) -> None:
    """Replace the line of `key`, or add one behind the others."""
    is_key = re.compile(rf"\s*{re.escape(key)}\s*=")
    for at, old in enumerate(lines):
        if is_key.match(old):
            lines[at] = line
            return
    at = len(lines)
    while at and not lines[at - 1].strip():
        at -= 1
    lines.insert(at, line)


def _without_table(lines: Sequence[str], path: Sequence[str]) -> list[str]:
    """`lines` without the table at `path`, up to the next one; blank lines at the end go too."""
    title = r"\s*\.\s*".join(rf"(?:{re.escape(part)}|\"{re.escape(part)}\")" for part in path)
    is_table = re.compile(rf"\s*\[\s*{title}\s*\]\s*(#.*)?")
    kept: list[str] = []
    is_inside = False
    for line in lines:
        if _HEADER.match(line):
            is_inside = is_table.fullmatch(line) is not None
        if not is_inside:
            kept.append(line)
    while kept and not kept[-1].strip():
        kept.pop()
    return kept
