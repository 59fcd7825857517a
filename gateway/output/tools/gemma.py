"""FunctionGemma: `<start_function_call>call:name{x:<escape>text<escape>,n:3}<end_function_call>`.

Text stands between two `<escape>`; numbers, constants, `{key:value}` and `[value]` stand as they
are. What is not closed when the answer ends is a call with the parameters that were read.
"""

from typing import Final

from gateway.output.tags import TagScan
from gateway.output.tools.grammar import (
    MAX_NAME,
    CallSink,
    NotACall,
    Read,
    literal,
    name_until,
    skip_space,
)
from gateway.output.tools.schema import any_json, quote

OPEN: Final = "<start_function_call>"
CLOSE: Final = "<end_function_call>"
ESCAPE: Final = "<escape>"
PREFIX: Final = "call:"


def read(calls: CallSink, _marker: str) -> Read[None]:
    """The call behind its tag."""
    yield from literal(PREFIX, len((yield from _first())))
    name, _ = yield from name_until("{")
    is_half = False

    def close() -> str | None:
        return None if is_half else "}"

    calls.start(name, close)
    calls.write("{")
    comma = ""
    char = yield from skip_space()
    while char != "}":
        is_half = True
        key, char = yield from _key(char)
        value, char = yield from _value(char)
        calls.write(f"{comma}{quote(key)}: {value}")
        comma, is_half = ", ", False
        char = (yield from skip_space()) if char == "," else char
    calls.write("}")
    calls.end()
    if (yield from skip_space()) != "<":
        raise NotACall
    yield from literal(CLOSE, 1)


def _first() -> Read[str]:
    char = yield from skip_space()
    if char != PREFIX[0]:
        raise NotACall
    return char


def _key(first: str) -> Read[tuple[str, str]]:
    """A key, quoted or not, and the first character of its value."""
    key = first
    while (char := (yield)) != ":":
        key += char
        if char in ",{}[]" or len(key) > MAX_NAME:
            raise NotACall
    return key.strip().removeprefix(ESCAPE).removesuffix(ESCAPE).strip('"'), (
        yield from skip_space()
    )


def _value(first: str) -> Read[tuple[str, str]]:
    """JSON of a value, and the character behind it that is not white space."""
    if first == "<":
        yield from literal(ESCAPE, 1)
        text = yield from _text()
        return quote(text), (yield from skip_space())
    if first in "{[":
        return (yield from _nested(first))
    text, char = first, (yield)
    while char not in ",}]":
        text += char
        char = yield
    return any_json(text.strip()), char


def _nested(first: str) -> Read[tuple[str, str]]:
    parts: list[str] = []
    end = {"{": "}", "[": "]"}[first]
    char = yield from skip_space()
    while char != end:
        key = ""
        if first == "{":
            key, char = yield from _key(char)
        value, char = yield from _value(char)
        parts.append(f"{quote(key)}: {value}" if first == "{" else value)
        if char not in (",", end):
            raise NotACall
        char = (yield from skip_space()) if char == "," else char
    return f"{first}{', '.join(parts)}{end}", (yield from skip_space())


def _text() -> Read[str]:
    """The text up to the second `<escape>`."""
    scan, parts = TagScan((ESCAPE,)), []
    while not scan.found:
        parts.append(scan.feed((yield)))
    return "".join(parts)
