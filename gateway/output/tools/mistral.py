"""Mistral: `[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, and since version 11 of its
tokenizer `[TOOL_CALLS]name[ARGS]{...}` (or without `[ARGS]`), with `[CALL_ID]id` in between.

Its templates want ids of nine letters and digits: the model's own are kept, others are drawn in
that form.
"""

from typing import Final

from gateway.output.tools.call_object import read_any_arguments, read_array
from gateway.output.tools.grammar import (
    CallSink,
    NotACall,
    Read,
    literal,
    name_until,
    skip_space,
)

MARKER: Final = "[TOOL_CALLS]"
CALL_ID: Final = "[CALL_ID]"
ARGS: Final = "[ARGS]"
ID_CHARS: Final = 9


def read(calls: CallSink, _marker: str) -> Read[None]:
    """The calls behind the marker."""
    char = yield from skip_space()
    if char in "[{":
        yield from read_array(calls, char)
    else:
        yield from _named(calls, char)


def _named(calls: CallSink, first: str) -> Read[None]:
    name, char = yield from name_until(calls, "[{", first)
    call_id = ""
    if char == "[":
        char = yield
        if char == "C":
            yield from literal(CALL_ID, "[C")
            while (char := (yield)).isalnum() and len(call_id) < ID_CHARS:
                call_id += char
            if char != "[":
                raise NotACall
            char = yield
        yield from literal(ARGS, f"[{char}")
        char = yield from skip_space()
    own_id = call_id if len(call_id) == ID_CHARS else ""
    yield from read_any_arguments(calls, name, char, "", own_id)
