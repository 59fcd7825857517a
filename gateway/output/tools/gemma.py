"""FunctionGemma: `<start_function_call>call:name{x:<escape>text<escape>,n:3}<end_function_call>`.
Gemma 4: the same between `<|tool_call>` and `<tool_call|>`, with `<|"|>` around text.

Text stands between two of these. The second ends it only where the call can go on behind it,
because a text may hold such a tag. Numbers, constants, `{key:value}` and `[value]` stand as they
are. FunctionGemma's template shows objects within lists as JSON, so texts of JSON are read too.
What is not closed when the answer ends is a call with the parameters that were read.
"""

import json
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from gateway.output.tags import TagScan
from gateway.output.tools.grammar import (
    MAX_DEPTH,
    MAX_NAME,
    CallSink,
    NotACall,
    Read,
    literal,
    name_until,
    skip_space,
)
from gateway.output.tools.schema import any_json, quote
from gateway.output.tools.text_runs import TextRun


class GemmaTags(NamedTuple):
    """The tags of a version; `escape` stands on either side of a text."""

    open: str
    close: str
    escape: str


V3: Final = GemmaTags("<start_function_call>", "<end_function_call>", "<escape>")
V4: Final = GemmaTags("<|tool_call>", "<tool_call|>", '<|"|>')
OPEN, CLOSE, ESCAPE = V3
PREFIX: Final = "call:"
_FOLLOWS: Final = frozenset(",}]")
"""The characters that may follow a value."""
_LINES: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
"""What JSON has for white space that models leave in its texts."""


def read(calls: CallSink, marker: str) -> Read[None]:
    """The call behind its tag."""
    tags = V3 if marker == V3.open else V4
    yield from literal(PREFIX, (yield from skip_space()))
    name, _ = yield from name_until(calls, "{")
    is_half = True

    def close() -> str | None:
        return None if is_half else "}"

    calls.start(name, close)
    calls.write("{")
    comma = ""
    char = yield from skip_space()
    while char != "}":
        key, char = yield from _key(char, tags)
        if char == "<":  # a text, which goes on as it comes
            yield from literal(tags.escape, char)
            calls.write(f'{comma}{quote(key)}: "')
            calls.runs = run = TextRun(tags.escape[0])
            char = yield from _pieces(
                tags.escape, lambda text: calls.write(quote(text)[1:-1]), run=run
            )
            calls.runs = None
            calls.write('"')
        else:
            value, char = yield from _value(char, tags)
            calls.write(f"{comma}{quote(key)}: {value}")
        comma, is_half = ", ", char == ","
        char = (yield from skip_space()) if char == "," else char
    calls.write("}")
    calls.end()
    yield from literal(tags.close, (yield from skip_space()))


def _key(first: str, tags: GemmaTags) -> Read[tuple[str, str]]:
    """A key, and the first character of its value. In quotes it may hold anything."""
    if first == "<":
        yield from literal(tags.escape, first)
        key, _ = yield from _text(tags.escape, ":")
        if len(key) > MAX_NAME:
            raise NotACall
        return key, (yield from skip_space())
    if first == '"':
        key, char = yield from _quoted()
        while char.isspace():
            char = yield
        if char != ":":
            raise NotACall
        if len(key) > MAX_NAME:
            raise NotACall
        return json.loads(any_json(key)), (yield from skip_space())
    key = first
    while (char := (yield)) != ":":
        key += char
        if char in ",{}[]" or len(key) > MAX_NAME:
            raise NotACall
    return key.strip(), (yield from skip_space())


def _value(first: str, tags: GemmaTags, depth: int = 0) -> Read[tuple[str, str]]:
    """JSON of a value, and the character behind it that is not white space."""
    if first == "<":
        yield from literal(tags.escape, first)
        text, char = yield from _text(tags.escape)
        return quote(text), char
    if first in "{[":
        return (yield from _nested(first, tags, depth + 1))
    if first == '"':  # JSON, in which brackets and commas may stand
        text, char = yield from _quoted()
    else:
        text, char = first, (yield)
    while char not in _FOLLOWS:
        text += char
        char = yield
    return any_json(text.strip()), char


def _quoted() -> Read[tuple[str, str]]:
    """A JSON text with both its quotes, and the character behind."""
    parts, is_escaped = ['"'], False
    while (char := (yield)) != '"' or is_escaped:
        parts.append(_LINES.get(char, char))
        is_escaped = char == "\\" and not is_escaped
    return "".join((*parts, char)), (yield)


def _nested(first: str, tags: GemmaTags, depth: int) -> Read[tuple[str, str]]:
    if depth > MAX_DEPTH:
        raise NotACall
    parts: list[str] = []
    end = {"{": "}", "[": "]"}[first]
    char = yield from skip_space()
    while char != end:
        key = ""
        if first == "{":
            key, char = yield from _key(char, tags)
        value, char = yield from _value(char, tags, depth)
        parts.append(f"{quote(key)}: {value}" if first == "{" else value)
        if char not in (",", end):
            raise NotACall
        char = (yield from skip_space()) if char == "," else char
    return f"{first}{', '.join(parts)}{end}", (yield from skip_space())


def _text(escape: str, follows: Collection[str] = _FOLLOWS) -> Read[tuple[str, str]]:
    """The text up to the second tag around it, and the character behind that tag that is not white
    space.
    """
    parts: list[str] = []
    char = yield from _pieces(escape, parts.append, follows)
    return "".join(parts), char


def _pieces(
    escape: str,
    write: Callable[[str], object],
    follows: Collection[str] = _FOLLOWS,
    run: TextRun | None = None,
) -> Read[str]:
    """Like `_text`, but `write` gets the text in pieces, without the text that `run` takes."""
    scan, run = TagScan((escape,)), run or TextRun(escape[0])
    while True:
        run.is_held = bool(scan.rest)
        write(scan.feed((yield)))
        run.is_empty = False
        while scan.found:
            run.is_held = True
            held = escape
            while (char := (yield)).isspace():
                held += char
            if char in follows:
                return char
            scan = TagScan((escape,))
            write(held + scan.feed(char))
