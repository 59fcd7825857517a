"""GLM 4.5 to 4.7: `<tool_call>name<arg_key>x</arg_key><arg_value>value</arg_value></tool_call>`,
with line breaks between the parts in 4.5.

Values have the types of the tool's schema. A block is a call once its name is followed by a key or
by the end tag. Text between the parts is left out.
"""

from typing import Final

from gateway.output.tags import TagScan
from gateway.output.tools.arguments_writer import ArgumentsWriter
from gateway.output.tools.grammar import (
    MAX_NAME,
    CallSink,
    NotACall,
    Read,
    name_until,
    one_of,
    skip_space,
)
from gateway.output.tools.schema import types_of

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
KEY: Final = "<arg_key>"
END_KEY: Final = "</arg_key>"
VALUE: Final = "<arg_value>"
END_VALUE: Final = "</arg_value>"


def read(calls: CallSink, _marker: str) -> Read[None]:
    """The block behind its opening tag."""
    name, char = yield from name_until("\n<", (yield from skip_space()))
    if char == "\n" and (yield from skip_space()) != "<":
        raise NotACall
    tag = yield from one_of((KEY, CLOSE), "<")
    arguments = ArgumentsWriter(calls, name)
    while tag == KEY:
        key, tag = yield from _until(END_KEY, CLOSE)
        if tag == CLOSE:
            break
        _, tag = yield from _until(VALUE, KEY, CLOSE)
        if tag == VALUE:
            types = types_of(calls.schema(name, key.strip()))
            yield from arguments.read_value(key.strip(), types, (END_VALUE,))
            _, tag = yield from _until(KEY, CLOSE)
    arguments.end()


def _until(*tags: str) -> Read[tuple[str, str]]:
    """The text up to one of the tags, and which one."""
    scan = TagScan(tags)
    text = ""
    while not scan.found:
        more = scan.feed((yield))
        text += more if len(text) < MAX_NAME else ""
    return text, scan.found
