"""DeepSeek V3.2 and V4: `<｜DSML｜tool_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="x"
string="true">value</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>`.

V3.2 says function_calls instead of tool_calls. `string` says whether a value is text or JSON;
without it the tool's schema does. A JSON object in place of the parameters is read as well, and so
is the form that `deepseek.py` reads. Text between the parts is left out.
"""

import re
from typing import Final

from gateway.output.tags import TagScan
from gateway.output.tools import deepseek
from gateway.output.tools.arguments_writer import ArgumentsWriter
from gateway.output.tools.grammar import (
    MAX_NAME,
    CallSink,
    NotACall,
    Read,
    name_until,
    one_of,
    read_arguments,
    skip_space,
)
from gateway.output.tools.schema import types_of

SECTIONS: Final = ("<｜DSML｜tool_calls>", "<｜DSML｜function_calls>")
END_SECTIONS: Final = ("</｜DSML｜tool_calls>", "</｜DSML｜function_calls>")
INVOKE: Final = '<｜DSML｜invoke name="'
END_INVOKE: Final = "</｜DSML｜invoke>"
PARAMETER: Final = '<｜DSML｜parameter name="'
END_PARAMETER: Final = "</｜DSML｜parameter>"
_IN_CALL: Final = (PARAMETER, END_INVOKE, *END_SECTIONS)
_IS_STRING: Final = re.compile(r'string\s*=\s*"(true|false)"')


def read(calls: CallSink, marker: str) -> Read[None]:
    """The section behind its opening tag."""
    if marker not in SECTIONS:
        yield from deepseek.read(calls, marker, deepseek.DSML)
        return
    while True:
        if (yield from skip_space()) != "<":
            raise NotACall
        if (yield from one_of((INVOKE, *END_SECTIONS), "<")) != INVOKE:
            return
        if (yield from _call(calls)) in END_SECTIONS:
            return


def _call(calls: CallSink) -> Read[str]:
    """One call behind `name="`; the tag that ended it."""
    name, _ = yield from name_until('"')
    if (yield from skip_space()) != ">":
        raise NotACall
    char = yield from skip_space()
    if char == "{":
        yield from read_arguments(calls, name, "<")
        return (yield from _next_tag(END_INVOKE, *END_SECTIONS))
    if char != "<":
        raise NotACall
    tag = yield from one_of(_IN_CALL, char)
    arguments = ArgumentsWriter(calls, name)
    while tag == PARAMETER:
        parameter, attributes = yield from _parameter()
        said = _IS_STRING.search(attributes)
        types: frozenset[str] | None = types_of(calls.schema(name, parameter))
        if said is not None:
            types = frozenset({"string"}) if said[1] == "true" else None
        yield from arguments.read_value(parameter, types, (END_PARAMETER,))
        tag = yield from _next_tag(*_IN_CALL)
    arguments.end()
    return tag


def _parameter() -> Read[tuple[str, str]]:
    """The name and the other attributes of a parameter's tag."""
    text = ""
    while (char := (yield)) != ">":
        text += char if len(text) < 2 * MAX_NAME else ""
    name, _, attributes = text.partition('"')
    return name, attributes


def _next_tag(*tags: str) -> Read[str]:
    scan = TagScan(tags)
    while not scan.found:
        scan.feed((yield))
    return scan.found
