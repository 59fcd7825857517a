"""Kimi K3: `<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="x"
type="string"<|sep|>value<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>`.

The type beside a key says whether its value is text or JSON. All arguments may be one JSON object
instead, in `<|open|>json type="object"<|sep|>`.
"""

import re
from typing import Final

from gateway.output.tools.arguments_writer import ArgumentsWriter
from gateway.output.tools.call_object import read_any_arguments
from gateway.output.tools.grammar import (
    MAX_NAME,
    CallSink,
    NotACall,
    Read,
    is_name,
    literal,
    one_of,
    skip_space,
)
from gateway.output.tools.value_end import Path

OPEN: Final = "<|open|>"
CLOSE: Final = "<|close|>"
SEP: Final = "<|sep|>"
END_MESSAGE: Final = f"{CLOSE}message{SEP}"
CALLS: Final = f"{OPEN}tools{SEP}"
END_CALLS: Final = f"{CLOSE}tools{SEP}"
CALL: Final = f"{OPEN}call "
_END_CALL: Final = f"{CLOSE}call{SEP}"
_ARGUMENT: Final = f"{OPEN}argument "
END_ARGUMENT: Final = f"{CLOSE}argument{SEP}"
_OBJECT: Final = f"{OPEN}json"
_END_OBJECT: Final = f"{CLOSE}json{SEP}"
_VALUE_ENDS: Final[tuple[Path, ...]] = ((END_ARGUMENT, _ARGUMENT), (END_ARGUMENT, _END_CALL))
_ATTRIBUTE: Final = re.compile(r'(?<!\w)(\w++)="([^"]*)"')


def read(calls: CallSink, _marker: str) -> Read[None]:
    """The section behind its opening tag."""
    tags = CALL, END_CALLS
    tag = yield from one_of(tags, (yield from skip_space()))
    while tag == CALL:
        yield from _call(calls)
        tag = yield from one_of(tags, (yield from skip_space()))
        calls.drop()
    yield from literal(END_MESSAGE, (yield from skip_space()))


def _call(calls: CallSink) -> Read[None]:
    """One call, from after the beginning of its tag."""
    name = (yield from _attributes()).get("tool", "")
    if not is_name(name) and not calls.is_tool(name):
        raise NotACall
    tag = yield from one_of((_ARGUMENT, _OBJECT, _END_CALL), (yield from skip_space()))
    if tag == _OBJECT:
        yield from _attributes()
        left = yield from read_any_arguments(calls, name, (yield from skip_space()), CLOSE[0])
        yield from literal(_END_OBJECT, left or (yield from skip_space()))
        yield from literal(_END_CALL, (yield from skip_space()))
        calls.drop()
        return
    arguments = ArgumentsWriter(calls, name)
    while tag == _ARGUMENT:
        with arguments.half():
            said = yield from _attributes()
        types = frozenset({"string"}) if said.get("type") == "string" else None
        *_, tag = yield from arguments.read_value(said.get("key", ""), types, _VALUE_ENDS)
    arguments.end()


def _attributes() -> Read[dict[str, str]]:
    """The attributes of a tag, up to its end."""
    text = ""
    while not text.endswith(SEP):
        text += yield
        if len(text) > 2 * MAX_NAME:
            raise NotACall
    found = _ATTRIBUTE.findall(text)
    return {key: value.replace("&quot;", '"').replace("&amp;", "&") for key, value in found}


def escaped(value: str) -> str:
    """The value of an attribute as it is written."""
    return value.replace("&", "&amp;").replace('"', "&quot;")
