"""Kimi K2: `<|tool_calls_section_begin|><|tool_call_begin|>functions.name:0
<|tool_call_argument_begin|>{...}<|tool_call_end|><|tool_calls_section_end|>`.

The model numbers its calls throughout the conversation and its template shows their ids again, so
the ids are kept. The outer tags may be missing.
"""

from typing import Final

from gateway.output.tools.grammar import (
    MAX_NAME,
    CallSink,
    NotACall,
    Read,
    is_name,
    literal,
    one_of,
    read_arguments,
    skip_space,
)

SECTION: Final = "<|tool_calls_section_begin|>"
END_SECTION: Final = "<|tool_calls_section_end|>"
CALL: Final = "<|tool_call_begin|>"
ARGUMENTS: Final = "<|tool_call_argument_begin|>"
END_CALL: Final = "<|tool_call_end|>"
PREFIX: Final = "functions."


def read(calls: CallSink, marker: str) -> Read[None]:
    """The section behind its opening tag, or behind that of its first call."""
    tag = (yield from _tag(calls)) if marker == SECTION else marker
    while tag != END_SECTION:
        left = (yield from _call(calls)) if tag == CALL else ""
        tag = yield from _tag(calls, left)


def _tag(calls: CallSink, first: str = "") -> Read[str]:
    char = first or (yield from skip_space())
    if char != "<":
        raise NotACall
    tag = yield from one_of((CALL, END_CALL, END_SECTION), char)
    if tag != CALL:
        calls.drop()
    return tag


def _call(calls: CallSink) -> Read[str]:
    """One call behind its tag; the first character of the next tag if its end is missing."""
    call_id = ""
    while (char := (yield)) != "<":
        call_id += char
        if len(call_id) > 2 * MAX_NAME:
            raise NotACall
    call_id = call_id.strip()
    name, _, number = call_id.removeprefix(PREFIX).rpartition(":")
    if not number.isdecimal():
        name, number = call_id.removeprefix(PREFIX), ""
    if not is_name(name):
        raise NotACall
    yield from literal(ARGUMENTS, 1)
    if (yield from skip_space()) != "{":
        raise NotACall
    return (yield from read_arguments(calls, name, "<", call_id if number else ""))
