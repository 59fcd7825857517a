"""Qwen3-Coder: `<tool_call><function=name><parameter=x>value</parameter></function></tool_call>`.

Values have the types of the tool's schema; one line break on either side belongs to the tags. The
outer tags may be missing, and the next parameter may end a parameter. Text between parameters is
left out. JSON in the outer tag is read as Hermes' format, which the same models sometimes write.
"""

from typing import Final

from gateway.output.tags import TagScan
from gateway.output.tools import hermes
from gateway.output.tools.arguments_writer import ArgumentsWriter
from gateway.output.tools.grammar import (
    MAX_NAME,
    CallSink,
    NotACall,
    Read,
    literal,
    name_until,
    skip_space,
)
from gateway.output.tools.schema import types_of

FUNCTION: Final = "<function="
PARAMETER: Final = "<parameter="
END_FUNCTION: Final = "</function>"
END_PARAMETER: Final = "</parameter>"
_VALUE_ENDS: Final = (
    END_PARAMETER,
    "\n" + END_PARAMETER,
    "\n" + PARAMETER,
    "\n" + END_FUNCTION,
    "\n" + hermes.CLOSE,
)
_BETWEEN: Final = (PARAMETER, END_FUNCTION, hermes.CLOSE)


def read(calls: CallSink, marker: str) -> Read[None]:
    """The block behind `<tool_call>` or, where that is missing, behind `<function=`."""
    if marker == hermes.OPEN:
        char = yield from skip_space()
        if char == "{":
            yield from hermes.objects(calls, char)
            return
        if char != "<":
            raise NotACall
        yield from literal(FUNCTION, 1)
    while (yield from _function(calls)) == END_FUNCTION:
        if (yield from skip_space()) != "<":
            raise NotACall
        char = yield
        if char == "/":
            yield from literal(hermes.CLOSE, 2)
            return
        if char != "f":
            raise NotACall(2)
        yield from literal(FUNCTION, 2)


def _function(calls: CallSink) -> Read[str]:
    """One function behind `<function=`; the tag that ended it."""
    name, _ = yield from name_until(">")
    arguments = ArgumentsWriter(calls, name)
    tag = yield from _next_tag()
    while tag == PARAMETER:
        parameter = yield from _parameter_name()
        types = types_of(calls.schema(name, parameter))
        tag = (yield from arguments.read_value(parameter, types, _VALUE_ENDS, "\n")).lstrip()
        if tag == END_PARAMETER:
            tag = yield from _next_tag()
    arguments.end()
    return tag


def _parameter_name() -> Read[str]:
    name = ""
    while (char := (yield)) != ">":
        name += char if len(name) < MAX_NAME else ""
    return name.strip()


def _next_tag() -> Read[str]:
    scan = TagScan(_BETWEEN)
    while not scan.found:
        scan.feed((yield))
    return scan.found
