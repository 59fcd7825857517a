"""MiniMax M2: `<minimax:tool_call><invoke name="f"><parameter name="x">value</parameter></invoke>
</minimax:tool_call>`.

M3: the same with `]<]minimax[>[` before each tag, a tag per parameter, `<x>value</x>`, and nested
values as tags within: `<key>` of an object, `<item>` of a list. M1: `<tool_calls>` around JSON
objects, a line each.
"""

from collections.abc import Mapping
from typing import Any, Final

from gateway.output.tools.arguments_writer import ArgumentsWriter
from gateway.output.tools.call_object import read_objects
from gateway.output.tools.grammar import (
    MAX_DEPTH,
    MAX_NAME,
    CallSink,
    NotACall,
    Read,
    literal,
    name_until,
    one_of,
    skip_space,
)
from gateway.output.tools.invoke import InvokeTags, read_section
from gateway.output.tools.schema import quote, to_json, types_of, within
from gateway.output.tools.value_end import ValueEnd

OPEN: Final = "<minimax:tool_call>"
CLOSE: Final = "</minimax:tool_call>"
INVOKE: Final = '<invoke name="'
END_INVOKE: Final = "</invoke>"
PARAMETER: Final = '<parameter name="'
END_PARAMETER: Final = "</parameter>"
_TAGS: Final = InvokeTags((OPEN,), (CLOSE,), INVOKE, END_INVOKE, PARAMETER, END_PARAMETER)

PREFIX: Final = "]<]minimax[>["
"""One token of M3's vocabulary, which no text of a value is."""
OPEN_3: Final = f"{PREFIX}<tool_call>"
CLOSE_3: Final = f"{PREFIX}</tool_call>"
_INVOKE_3: Final = PREFIX + INVOKE
_ITEM: Final = "item"
_EMPTY: Final = {"string": quote(""), "object": "{}", "array": "[]", "null": "null"}

OPEN_1: Final = "<tool_calls>"
CLOSE_1: Final = "</tool_calls>"


def read(calls: CallSink, _marker: str) -> Read[None]:
    """M2's section behind its opening tag."""
    yield from read_section(calls, _TAGS)


def read_1(calls: CallSink, _marker: str) -> Read[None]:
    """M1's section behind its opening tag; Apriel writes a list there."""
    yield from read_objects(calls, (yield from skip_space()), CLOSE_1)


def read_3(calls: CallSink, _marker: str) -> Read[None]:
    """M3's section behind its opening tag."""
    tags = _INVOKE_3, CLOSE_3
    while (yield from one_of(tags, (yield from skip_space()))) == _INVOKE_3:
        name, _ = yield from name_until(calls, '"')
        yield from literal(">")
        yield from _parameters(calls, name)


def _parameters(calls: CallSink, name: str) -> Read[None]:
    """The parameters behind a call's opening tag, and the call's end."""
    yield from literal(PREFIX, (yield from skip_space()))
    key = yield from _key()
    arguments = ArgumentsWriter(calls, name)
    while key != "/invoke":
        schema = calls.schema(name, key)
        end = f"{PREFIX}</{key}>"
        with arguments.half():
            begun = yield from _text_before_prefix()
        if begun:
            types = types_of(schema)
            yield from arguments.read_value(key, types, ((end, PREFIX),), begun=begun)
        else:
            with arguments.half():
                value = yield from _nested(calls.whole_schema(name), schema, key)
                yield from literal(PREFIX, (yield from skip_space()))
            if value is not None or calls.requires(name, key):
                arguments.write_value(key, value or quote(""))
        with arguments.half():
            key = yield from _key()
    arguments.end()


def _key() -> Read[str]:
    """The name in a tag whose prefix was read; an end tag's has its slash."""
    yield from literal("<")
    key = ""
    while (char := (yield)) != ">":
        key += char
        if len(key) > MAX_NAME:
            raise NotACall
    return key


def _text_before_prefix() -> Read[str]:
    """The beginning of a value up to where it is certainly text; "" where a prefix is."""
    text = yield
    while PREFIX.startswith(text):
        if text == PREFIX:
            return ""
        text += yield
    return text


def _nested(
    root: Mapping[str, Any], schema: object, parent: str, depth: int = 0
) -> Read[str | None]:
    """JSON of a value whose first prefix was read, through the end tag of its parent; None if an
    empty one says nothing. References lead to parts of `root`.
    """
    if depth > MAX_DEPTH:
        raise NotACall
    parts: list[str] = []
    is_list = False
    while (key := (yield from _key())) != f"/{parent}":
        is_list = key == _ITEM
        inner = within(root, schema, None if is_list else key)
        begun = yield from _text_before_prefix()
        if begun:
            value = yield from _leaf(inner, key, begun)
        else:
            value = (yield from _nested(root, inner, key, depth + 1)) or quote("")
        parts.append(value if is_list else f"{quote(key)}: {value}")
        yield from literal(PREFIX, (yield from skip_space()))
    if not parts:
        return _empty(types_of(schema))
    return f"[{', '.join(parts)}]" if is_list else f"{{{', '.join(parts)}}}"


def _empty(types: frozenset[str]) -> str | None:
    """JSON of an empty value of these types; None if they have none."""
    if not types:
        return _EMPTY["string"]
    return next((text for name, text in _EMPTY.items() if name in types), None)


def _leaf(schema: object, key: str, begun: str) -> Read[str]:
    end = ValueEnd(((f"{PREFIX}</{key}>",),))
    text = "".join(map(end.feed, begun))
    while not end.found:
        text += end.feed((yield))
    return to_json(text, types_of(schema))
