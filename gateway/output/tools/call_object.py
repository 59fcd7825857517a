"""Calls as JSON objects: `{"name": ..., "arguments": {...}}`, in any order of keys.

Owns what counts as such a call: a name, and arguments that are an object, null, absent, or a string
that holds an object or nothing. Models also write both into an object `function`, as the APIs do,
name the tool there, call the arguments otherwise, or write them beside the name. Once the name and
the `{` of the arguments were read it is a call, whatever follows; before that, anything else is not
a call. Must not know tags.
"""

import json
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
from gateway.output.tools.json_repair import HEX_DIGITS, JsonRepair
from gateway.output.tools.schema import any_json, quote

_NAMES: Final = frozenset({"name", "tool_name"})
_ARGUMENTS: Final = frozenset({"arguments", "parameters"})
_NO_ARGUMENTS: Final = frozenset({"id", "index", "type", "name", "tool_name", "function"})
_OBJECTS: Final = frozenset({"args", "input", "params"})
"""Other names of the arguments, if they are an object."""
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def read_call(
    calls: CallSink, stop: str, *, strict: bool = False, outer_id: str | None = None
) -> Read[str]:
    """One call whose `{` was just read; returns the character behind it if that was read, else "".

    `stop` ends an object whose end the model forgot. `strict` is for text that nothing else marks
    as a call: the name must be of a tool of the request, and there must be arguments. `outer_id` is
    the id, or "", in the object around a `function`.
    """
    fields = _Fields(outer_id or "")
    char = yield from skip_space()
    while char == '"':
        key = yield from read_word(calls)
        yield from literal(":", (yield from skip_space()))
        char = yield from skip_space()
        name = fields.name
        if name and _is_arguments(key, char):
            return (yield from _arguments(calls, name, char, stop, fields.call_id))
        if key == "function" and char == "{" and not name and outer_id is None:
            left = yield from read_call(calls, stop, strict=strict, outer_id=fields.call_id)
            return left or (yield from _rest(calls, stop))
        left = yield from _field(calls, fields, key, char, strict=strict)
        if fields.name and fields.early:
            write_whole(calls, fields.name, fields.early, fields.call_id)
            return (yield from _rest(calls, stop))
        char = left or (yield from skip_space())
        if char == ",":
            char = yield from skip_space()
    if char != "}" or not fields.name or strict:
        raise NotACall
    known = calls.parameters(fields.name)
    pairs = [f"{quote(key)}: {value}" for key, value in fields.beside.items() if key in known]
    write_whole(calls, fields.name, f"{{{', '.join(pairs)}}}", fields.call_id)
    return ""


class _Fields:
    """What was read of a call. `early` are arguments that stand before the name, `beside` are JSON
    values of other fields.
    """

    def __init__(self, call_id: str) -> None:
        self.name = ""
        self.call_id = call_id
        self.early = ""
        self.beside: dict[str, str] = {}


def _is_arguments(key: str, char: str) -> bool:
    """Whether a field, whose value begins with `char`, is that of the arguments."""
    return key in _ARGUMENTS or (key in _OBJECTS and char == "{")


def _field(calls: CallSink, fields: _Fields, key: str, char: str, *, strict: bool) -> Read[str]:
    """One field that does not begin the call; the character behind it if that was read."""
    if key in _NAMES and not fields.name:
        fields.name = yield from _name(calls, char, strict=strict)
    elif key == "id" and char == '"':
        fields.call_id = yield from _string()
    elif key == "function" and char == '"' and not fields.name:
        fields.name = yield from _tool(calls)
    else:
        value, left = yield from _value(char)
        if _is_arguments(key, char):
            fields.early = _early(value)
        elif key not in _NO_ARGUMENTS:
            fields.beside[key] = value
        return left
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
        elif char == "`":
            yield from literal("```", char)
            char = ""
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


def _tool(calls: CallSink) -> Read[str]:
    """The rest of a string, if it is the name of a tool of the request; else ""."""
    text = yield from _string()
    return text if calls.is_tool(text) else ""


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


def _early(value: str) -> str:
    """The object of arguments that stand before the name, of which `value` is the JSON."""
    if value.startswith('"'):
        value = json.loads(value).strip() or "null"
        if value.startswith("{"):
            reader = JsonRepair("{")
            for char in value[1:]:
                if not reader.is_done:
                    reader.feed(char)
            return reader.take() if reader.is_done else reader.close_early()
    if value == "null":
        return "{}"
    if not value.startswith("{"):
        raise NotACall
    return value


def _value(first: str) -> Read[tuple[str, str]]:
    """JSON of a value beside the name, and the character behind it if that was read."""
    if first in {"{", "["}:
        reader = JsonRepair("{" if first == "{" else "[")
        while not reader.is_done:
            reader.feed((yield))
        return reader.take(), ""
    if first == '"':
        return quote((yield from _string())), ""
    text, char = "", first
    while char not in ",}":
        text += char
        char = yield
    return any_json(text.strip()), char


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
            if char not in HEX_DIGITS:
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
