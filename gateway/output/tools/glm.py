"""GLM 4.5 to 4.7: `<tool_call>name<arg_key>x</arg_key><arg_value>value</arg_value></tool_call>`,
with line breaks between the parts in 4.5.

Values have the types of the tool's schema. A block is a call once its name is followed by a key or
by the end tag. The tag before a value may be missing (vllm#49248), and so may the end of a key.
"""

from typing import Final

from gateway.output.tags import TagScan
from gateway.output.tools.arguments_writer import ArgumentsWriter
from gateway.output.tools.grammar import (
    MAX_NAME,
    CallSink,
    Read,
    name_until,
    one_of,
    skip_space,
)
from gateway.output.tools.schema import types_of
from gateway.output.tools.value_end import NAME, ExampleCall, Path

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
KEY: Final = "<arg_key>"
END_KEY: Final = "</arg_key>"
VALUE: Final = "<arg_value>"
END_VALUE: Final = "</arg_value>"
_EXAMPLE: Final = ExampleCall((OPEN, NAME, KEY), CLOSE)
_VALUE_ENDS: Final[tuple[Path, ...]] = ((END_VALUE, KEY), (END_VALUE, CLOSE))


def read(calls: CallSink, _marker: str) -> Read[None]:
    """The block behind its opening tag."""
    name, char = yield from name_until(calls, "\n<", (yield from skip_space()))
    char = (yield from skip_space()) if char == "\n" else char
    tag = yield from one_of((KEY, CLOSE), char)
    arguments = ArgumentsWriter(calls, name)
    while tag == KEY:
        begun = ""
        with arguments.half():
            key, tag = yield from _key()
            if tag == END_KEY:
                tag, begun = yield from _before_value()
        if tag == VALUE:
            types = types_of(calls.schema(name, key))
            *_, tag = yield from arguments.read_value(
                key, types, _VALUE_ENDS, begun=begun, example=_EXAMPLE
            )
    arguments.end()


def _key() -> Read[tuple[str, str]]:
    """The key, and the tag behind it."""
    scan = TagScan((END_KEY, VALUE, CLOSE))
    text = ""
    while not scan.found:
        more = scan.feed((yield))
        text += more if len(text) < MAX_NAME else ""
    return text.strip(), scan.found


def _before_value() -> Read[tuple[str, str]]:
    """The tag behind a key, and what was read of a value whose tag is missing."""
    text = yield from skip_space()
    tags = (VALUE, KEY, CLOSE)
    while any(tag.startswith(text) for tag in tags):
        if text in tags:
            return text, ""
        text += yield
    return VALUE, text
