"""MiniMax M2: `<minimax:tool_call><invoke name="f"><parameter name="x">value</parameter></invoke>
</minimax:tool_call>`.

M3: the same with `]<]minimax[>[` before each tag, a tag per parameter, `<x>value</x>`, and nested
values as tags within: `<key>` of an object, `<item>` of a list. M1: `<tool_calls>` around JSON
objects, a line each.
"""

from typing import Final

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
from gateway.output.tools.schema import quote, to_json, types_of
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
                value = yield from _nested(schema, key)
                yield from literal(PREFIX, (yield from skip_space()))
            arguments.write_value(key, value)
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


def _nested(schema: object, parent: str, depth: int = 0) -> Read[str]:
    """JSON of a value whose first prefix was read, through the end tag of its parent."""
    if depth > MAX_DEPTH:
        raise NotACall
    parts: list[str] = []
    is_list = False
    while (key := (yield from _key())) != f"/{parent}":
        is_list = key == _ITEM
        inner = _schema_in(schema, key)
        begun = yield from _text_before_prefix()
        if begun:
            value = yield from _leaf(inner, key, begun)
        else:
            value = yield from _nested(inner, key, depth + 1)
        parts.append(value if is_list else f"{quote(key)}: {value}")
        yield from literal(PREFIX, (yield from skip_space()))
    if not parts:
        return quote("") if "string" in types_of(schema) or not types_of(schema) else "{}"
    return f"[{', '.join(parts)}]" if is_list else f"{{{', '.join(parts)}}}"


def _leaf(schema: object, key: str, begun: str) -> Read[str]:
    end = ValueEnd(((f"{PREFIX}</{key}>",),))
    text = "".join(map(end.feed, begun))
    while not end.found:
        text += end.feed((yield))
    return to_json(text, types_of(schema))


def _schema_in(schema: object, key: str) -> object:
    if not isinstance(schema, dict):
        return None
    if key == _ITEM:
        return schema.get("items")
    properties = schema.get("properties")
    return properties.get(key) if isinstance(properties, dict) else None
