"""Calls as Python: `[f(x='v', n=[1, 2]), g()]`, which LFM2 writes between `<|tool_call_start|>` and
`<|tool_call_end|>`.

Values are literals of Python, with three quotes too, or JSON's words. A quote ends a string only
where the call can go on behind it, because models forget to escape. A list of JSON objects between
the same tags is read as calls too.
"""

import re
from collections.abc import Callable
from typing import Final

from gateway.output.tools.arguments_writer import ArgumentsWriter
from gateway.output.tools.call_object import read_array
from gateway.output.tools.grammar import (
    MAX_DEPTH,
    MAX_NAME,
    CallSink,
    NotACall,
    Read,
    is_name,
    literal,
    skip_space,
)
from gateway.output.tools.schema import any_json, quote
from gateway.output.tools.text_runs import TextRun

OPEN: Final = "<|tool_call_start|>"
CLOSE: Final = "<|tool_call_end|>"

_QUOTES: Final = "\"'"
_FOLLOWS: Final = frozenset(",)]}:")
_CLOSERS: Final = {"[": "]", "{": "}", "(": ")"}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_HEX: Final = {"x": 2, "u": 4, "U": 8}
_SURROGATES: Final = re.compile("[\ud800-\udfff]")


def read(calls: CallSink, _marker: str) -> Read[None]:
    """The calls behind the tag, and the end tag if the model writes it."""
    yield from literal("[", (yield from skip_space()))
    char = yield from skip_space()
    if char == "{":
        yield from read_array(calls, "[", char)
    else:
        yield from read_calls(calls, char)
    calls.drop()
    yield from literal(CLOSE, (yield from skip_space()))


def read_calls(calls: CallSink, first: str, *, strict: bool = False) -> Read[None]:
    """The calls behind `[`, and the bracket that closes it. `strict` is for text that nothing else
    marks as calls: the names must be of tools of the request.
    """
    char = first
    while char != "]":
        name = yield from _name(calls, char)
        if strict and not calls.is_tool(name):
            raise NotACall
        yield from _call(calls, name)
        char = yield from skip_space()
        if char == ",":
            char = yield from skip_space()


def _name(calls: CallSink, first: str) -> Read[str]:
    name = first
    while (char := (yield)) != "(":
        name += char
        if len(name) > MAX_NAME or not (is_name(name) or calls.begins_tool(name)):
            raise NotACall
    if not is_name(name) and not calls.is_tool(name):
        raise NotACall
    return name


def _call(calls: CallSink, name: str) -> Read[None]:
    """The arguments behind `(`, and the bracket that closes it. A call starts with its first whole
    name of an argument, so that prose with brackets is none.
    """
    char = yield from skip_space()
    key = "" if char == ")" else (yield from _key(char))
    arguments = ArgumentsWriter(calls, name)
    while char != ")":
        with arguments.half():
            first = yield from skip_space()
            if first in _QUOTES:  # a text, which goes on as it comes
                arguments.write_value(key, '"')
                calls.runs = run = TextRun(f"{first}\\")
                char = yield from _pieces(first, lambda text: calls.write(quote(text)[1:-1]), run)
                calls.runs = None
                calls.write('"')
            else:
                value, char = yield from _value(first)
                arguments.write_value(key, value)
        with arguments.half():
            if char == ",":
                char = yield from skip_space()
            if char != ")":
                key = yield from _key(char)
    arguments.end()


def _key(first: str) -> Read[str]:
    key = first
    while (char := (yield)) != "=":
        key += char
        if len(key) > MAX_NAME or not (is_name(key) or key.rstrip().isidentifier()):
            raise NotACall
    return key.strip()


def _value(first: str, depth: int = 0) -> Read[tuple[str, str]]:
    """JSON of a value, and the character behind it that is not white space."""
    if first in _QUOTES:
        text, char = yield from _string(first)
        return quote(text), char
    if first in _CLOSERS:
        return (yield from _container(first, depth + 1))
    text, char = first, (yield)
    while char not in _FOLLOWS and not char.isspace():
        text += char
        char = yield
    return any_json(text), (yield from skip_space()) if char.isspace() else char


def _container(opener: str, depth: int) -> Read[tuple[str, str]]:
    if depth > MAX_DEPTH:
        raise NotACall
    parts: list[str] = []
    closer = _CLOSERS[opener]
    char = yield from skip_space()
    while char != closer:
        value, char = yield from _value(char, depth)
        if opener == "{":
            if char != ":":
                raise NotACall
            key = value if value.startswith('"') else quote(value)
            value, char = yield from _value((yield from skip_space()), depth)
            value = f"{key}: {value}"
        parts.append(value)
        if char not in (",", closer):
            raise NotACall
        char = (yield from skip_space()) if char == "," else char
    brackets = "{}" if opener == "{" else "[]"
    return brackets[0] + ", ".join(parts) + brackets[1], (yield from skip_space())


def _string(mark: str) -> Read[tuple[str, str]]:
    """The text behind a quote, and the character behind its end that is not white space."""
    parts: list[str] = []
    char = yield from _pieces(mark, parts.append, TextRun(mark))
    return "".join(parts), char


def _pieces(mark: str, write_any: Callable[[str], object], run: TextRun) -> Read[str]:
    """Like `_string`, but `write_any` gets the text in pieces, without the text that `run` takes. A
    text in three quotes is written at once.
    """

    def write(text: str) -> None:
        write_any(_SURROGATES.sub("\ufffd", text))

    while True:
        run.is_held = False
        char = yield
        run.is_held = True
        if char != mark:
            write((yield from _meaning(char)))
            run.is_empty = False
            continue
        held, char = char, (yield)
        if char == mark and run.is_empty:
            text, char = yield from _long_string(mark)
            write(text)
            return char
        while char.isspace():
            held += char
            char = yield
        while char == mark:  # of several quotes in a row the last one ends the string
            write(held)
            held = char
            while (char := (yield)).isspace():
                held += char
        if char in _FOLLOWS:
            return char
        write(held)
        write((yield from _meaning(char)))
        run.is_empty = False


def _long_string(mark: str) -> Read[tuple[str, str]]:
    """The text behind three quotes, and the character behind its end that is not white space."""
    parts: list[str] = []
    char = yield
    while True:
        if char == "\\":
            parts += ((yield from _escape()), "")  # an escaped quote is none of the three
            char = yield
            continue
        parts.append(char)
        is_end = parts[-3:] == [mark] * 3
        char = yield
        if not is_end or char == mark:
            continue
        space = ""
        while char.isspace():
            space += char
            char = yield
        if char in _FOLLOWS:
            return _SURROGATES.sub("\ufffd", "".join(parts[:-3])), char
        parts.append(space)


def _meaning(char: str) -> Read[str]:
    """The meaning of a character in a text, escapes included."""
    return (yield from _escape()) if char == "\\" else char


def _escape() -> Read[str]:
    """The meaning of an escape; an unknown escape stays as it is."""
    char = yield
    if char in _HEX:
        digits = ""
        while len(digits) < _HEX[char]:
            digits += yield
        try:
            return chr(int(digits, 16))
        except (ValueError, OverflowError):
            return f"\\{char}{digits}"
    if char in "\\'\"":
        return char
    return _ESCAPES.get(char, f"\\{char}")
