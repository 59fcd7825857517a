"""Calls as JSON objects: `{"name": ..., "arguments": {...}}`, in any order of keys.

Owns what counts as such a call: a name, and arguments that are an object, null, absent, or a string
that holds an object or nothing. Once the name and the `{` of the arguments were read it is a call,
whatever follows; before that, anything else is not a call. Must not know tags.
"""

from typing import Final

from gateway.output.tools.grammar import (
    CallSink,
    NotACall,
    Read,
    is_name,
    literal,
    read_arguments,
    skip_space,
)
from gateway.output.tools.json_repair import JsonRepair

_NAMES: Final = frozenset({"name", "tool_name"})
_ARGUMENTS: Final = frozenset({"arguments", "parameters"})
_HEX_DIGITS: Final = frozenset("0123456789abcdefABCDEF")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def read_call(calls: CallSink, stop: str, *, strict: bool = False) -> Read[str]:
    """One call whose `{` was just read; returns the character behind it if that was read, else "".

    `stop` ends an object whose end the model forgot. `strict` is for text that nothing else marks
    as a call: the name must be of a tool of the request, and there must be arguments.
    """
    name, early, call_id = "", "", ""
    char = yield from skip_space()
    while char == '"':
        key = yield from read_word(calls)
        yield from literal(":", (yield from skip_space()))
        char = yield from skip_space()
        if key in _NAMES and not name:
            name = yield from _name(calls, char, strict=strict)
            if early:
                write_whole(calls, name, early, call_id)
                return (yield from _rest(calls, stop))
        elif key == "id" and char == '"':
            call_id = yield from _string()
        elif key in _ARGUMENTS and name:
            return (yield from _arguments(calls, name, char, stop, call_id))
        else:
            value, char = yield from _value(char)
            early = value if key in _ARGUMENTS else early
            if char in {",", "}"}:
                char = (yield from skip_space()) if char == "," else char
                continue
        char = yield from skip_space()
        if char == ",":
            char = yield from skip_space()
    if char != "}" or not name or strict:
        raise NotACall
    write_whole(calls, name, "{}", call_id)
    return ""


def read_objects(calls: CallSink, first: str, close: str) -> Read[None]:
    """Call objects, or an array of them, up to the closing tag; `first` is the first character of
    the block.
    """
    if first == "[":
        yield from read_list(calls, first, close)
        return
    if first != "{":
        raise NotACall
    char = first
    while char != "<":
        if char == "{":
            char = yield from read_call(calls, "<")
        elif char not in ",}":  # one extra brace is forgiven
            raise NotACall
        else:
            char = ""
        char = char or (yield from skip_space())
    yield from literal(close, char)


def read_array(calls: CallSink, first: str, second: str = "") -> Read[None]:
    """Call objects up to the closing bracket; the opening one, `first`, may be missing. `second` is
    the character behind it, if that was read.
    """
    char = first if first == "{" else second or (yield from skip_space())
    while char == "{":
        left = yield from read_call(calls, "")
        if first == "{":
            return
        char = left or (yield from skip_space())
        if char == ",":
            char = yield from skip_space()
    yield from literal("]", char)


def read_list(calls: CallSink, first: str, close: str) -> Read[None]:
    """An array of call objects, or one object, that begins with `first`; and the end tag `close`,
    which may be missing.
    """
    if first not in "[{":
        raise NotACall
    yield from read_array(calls, first)
    calls.drop()
    yield from literal(close, (yield from skip_space()))


def _name(calls: CallSink, first: str, *, strict: bool) -> Read[str]:
    if first != '"':
        raise NotACall
    name = yield from read_word(calls)
    if (
        not name
        or not (is_name(name) or calls.is_tool(name))
        or (strict and not calls.is_tool(name))
    ):
        raise NotACall
    return name


def _arguments(calls: CallSink, name: str, first: str, stop: str, call_id: str) -> Read[str]:
    left = yield from read_any_arguments(calls, name, first, stop, call_id)
    return left or (yield from _rest(calls, stop))


def read_any_arguments(
    calls: CallSink, name: str, first: str, stop: str, call_id: str = ""
) -> Read[str]:
    """A whole call whose arguments begin with `first`: an object, one in a string, or null; the
    stop if that ended it, else "".
    """
    if first == "{":
        return (yield from read_arguments(calls, name, stop, call_id))
    if first == '"':
        yield from _arguments_in_string(calls, name, call_id)
    elif first == "n":
        yield from literal("null", first)
        write_whole(calls, name, "{}", call_id)
    else:
        raise NotACall
    return ""


def _arguments_in_string(calls: CallSink, name: str, call_id: str) -> Read[None]:
    """An object that was written as a string, up to the string's closing quote."""
    string = _String()
    while (char := (yield from string.next_char())).isspace():
        pass
    if not char:  # the closing quote
        write_whole(calls, name, "{}", call_id)
        return
    if char != "{":
        raise NotACall
    reader = JsonRepair("{")
    calls.start(name, reader.close, call_id)
    calls.write(reader.take())
    while text := (yield from string.next_char()):
        for char in text:
            if not reader.is_done:
                reader.feed(char)
        calls.write(reader.take())
    if not reader.is_done:
        calls.write(reader.close_early())
    calls.end()


def _rest(calls: CallSink, stop: str) -> Read[str]:
    """Skip what follows the arguments in the object; the stop if that ended it."""
    rest = JsonRepair("{", stop, in_object=True)
    while not rest.is_done:
        char = yield
        if not rest.feed(char):
            return char
        rest.take()
        calls.drop()
    return ""


def _value(first: str) -> Read[tuple[str, str]]:
    """A value before the name: its text if it may be arguments, and the character behind it if that
    was read.
    """
    if first in {"{", "["}:
        reader = JsonRepair("{" if first == "{" else "[")
        while not reader.is_done:
            reader.feed((yield))
        text = reader.take()
        return (text if first == "{" else ""), ""
    if first == '"':
        yield from _string()
        return "", ""
    char = first
    while char not in ",}":
        char = yield
    return "", char


def read_word(calls: CallSink) -> Read[str]:
    """The rest of a string that is a key or the name of a function."""
    reader = _String()
    text = ""
    while char := (yield from reader.next_char()):
        text += char
        if not is_name(text) and not calls.begins_tool(text):
            raise NotACall
    return text


def _string() -> Read[str]:
    """The rest of a string, decoded."""
    reader = _String()
    text = ""
    while char := (yield from reader.next_char()):
        text += char
    return text


class _String:
    """The rest of a string, one decoded character at a time."""

    def __init__(self) -> None:
        self._again = ""

    def next_char(self) -> Read[str]:
        """The next character; "" for the closing quote. Broken escapes, and escapes of half a
        surrogate pair, stay as they were written.
        """
        char = self._again or (yield)
        self._again = ""
        if char == '"':
            return ""
        if char != "\\":
            return char
        char = yield
        if char != "u":
            return _ESCAPES.get(char, char)
        digits = ""
        while len(digits) < 4:
            char = yield
            if char not in _HEX_DIGITS:
                self._again = char
                return f"\\u{digits}"
            digits += char
        code = int(digits, 16)
        return f"\\u{digits}" if 0xD800 <= code < 0xE000 else chr(code)


def write_whole(calls: CallSink, name: str, arguments: str, call_id: str) -> None:
    """A call whose arguments are known."""
    calls.start(name, str, call_id)
    calls.write(arguments)
    calls.end()
