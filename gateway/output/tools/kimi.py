"""Kimi K2: `<|tool_calls_section_begin|><|tool_call_begin|>functions.name:0
<|tool_call_argument_begin|>{...}<|tool_call_end|><|tool_calls_section_end|>`.

The model is to number its calls throughout the conversation, and its template shows their ids
again, so the ids are kept unless an earlier turn has the same. The outer tags may be missing.
"""

from typing import Final

from gateway.output.tools.call_object import read_any_arguments, write_whole
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

SECTION: Final = "<|tool_calls_section_begin|>"
END_SECTION: Final = "<|tool_calls_section_end|>"
CALL: Final = "<|tool_call_begin|>"
ARGUMENTS: Final = "<|tool_call_argument_begin|>"
END_CALL: Final = "<|tool_call_end|>"
PREFIX: Final = "functions."


def call_id(name: str, number: int) -> str:
    """The id of the conversation's call of that number, from 0."""
    return f"{PREFIX}{name}:{number}"


def read(calls: CallSink, marker: str) -> Read[None]:
    """The section behind its opening tag, or behind that of its first call."""
    tag = (yield from _tag(calls)) if marker == SECTION else marker
    while tag != END_SECTION:
        left = (yield from _call(calls)) if tag == CALL else ""
        tag = yield from _tag(calls, left)


def _tag(calls: CallSink, first: str = "") -> Read[str]:
    tags = CALL, END_CALL, END_SECTION
    tag = yield from one_of(tags, first or (yield from skip_space()))
    if tag != CALL:
        calls.drop()
    return tag


def _call(calls: CallSink) -> Read[str]:
    """One call behind its tag; the first character of the next tag if its end is missing."""
    written = ""
    while (char := (yield)) != "<" or calls.begins_tool(_bare(written) + char):
        written += char
        if len(written) > 2 * MAX_NAME:
            raise NotACall
    name, is_kept = _name(calls, written.strip())
    yield from literal(ARGUMENTS, char)
    call_id = written.strip() if is_kept else ""
    char = yield from skip_space()
    if char == "<":  # models leave out the `{}` of a call without arguments
        yield from literal(END_CALL, char)
        write_whole(calls, name, "{}", call_id)
        return ""
    return (yield from read_any_arguments(calls, name, char, "<", call_id))


def _name(calls: CallSink, written: str) -> tuple[str, bool]:
    """The function in an id, and whether the id has the form that the model was trained on. Models
    forget the dot or the colon, so that `functionsexec5` is a call of `exec` (sglang#21377).
    """
    name, colon, number = written.removeprefix(PREFIX).rpartition(":")
    is_whole = colon != "" and number.isdecimal()
    if not is_whole:
        name = written.removeprefix(PREFIX)
    if not calls.is_tool(name):
        bare = _bare(name)
        names = (bare, bare.rstrip("0123456789"), bare.rstrip("0123456789").rstrip(":._- "))
        known = next((one for one in names if calls.is_tool(one)), None)
        if known is not None:
            return known, False
    if not is_name(name) and not calls.is_tool(name):
        raise NotACall
    return name, is_whole


def _bare(text: str) -> str:
    return text.strip().removeprefix(PREFIX[:-1]).lstrip(".:")
