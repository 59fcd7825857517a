"""The JSON of one tool call, as models write it: `{"name": ..., "arguments": {...}}`.

Owns what counts as a call. Must not know tags or streams.
"""

import json
import re
from typing import Any, Final, NamedTuple, NoReturn

import msgspec


class ParsedCall(NamedTuple):
    """A call: `arguments` is the text of a JSON object."""

    name: str
    arguments: str


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


_QUOTE_OR_ESCAPE: Final = re.compile(r'["\\]')

_decode: Final = msgspec.json.Decoder(_Call).decode


def parse_call(text: str) -> ParsedCall | None:
    """The call that `text` is, or None. The arguments keep the characters of the model.

    Line breaks inside strings, which JSON forbids and models write, are forgiven.
    """
    try:
        call = _decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return _parse_lenient(text)
    arguments = bytes(call.arguments).decode()
    if not call.name or not arguments.startswith("{"):
        return _parse_lenient(text)
    return ParsedCall(call.name, arguments)


def _parse_lenient(text: str) -> ParsedCall | None:
    try:
        value = json.loads(text, strict=False, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    name = value.get("name")
    arguments = _as_object(value.get("arguments", {}))
    if not isinstance(name, str) or not name or arguments is None:
        return None
    return ParsedCall(name, json.dumps(arguments, ensure_ascii=False))


def _as_object(arguments: object) -> dict[str, Any] | None:
    """Arguments as an object; some models write that object as a string, or null for none."""
    if arguments is None:
        return {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, strict=False, parse_constant=_refuse)
        except (ValueError, RecursionError):
            return None
    return arguments if isinstance(arguments, dict) else None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


class StringScan:
    """Whether growing JSON text breaks off inside a string, where a tag is only text.

    Every character is looked at once: `start` is where the JSON starts.
    """

    def __init__(self, start: int) -> None:
        self._at = start
        self._is_inside = False

    def is_inside(self, text: str, end: int) -> bool:
        """Whether `text` up to `end` ends inside a string; `end` never falls."""
        while match := _QUOTE_OR_ESCAPE.search(text, self._at, end):
            self._at = match.end()
            if match[0] == '"':
                self._is_inside = not self._is_inside
            elif self._is_inside:
                self._at += 1
        self._at = max(self._at, end)
        return self._is_inside
