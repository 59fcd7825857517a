"""Solar Open: `<|tool_calls|><|tool_call:begin|>id<|tool_call:name|>f<|tool_call:args|>{...}
<|tool_call:end|><|calls|>`.

Calls are a message of their own, as text is. The template shows the ids again, so they are kept.
"""

from typing import Final

from gateway.output.tools.call_object import read_any_arguments, write_whole
from gateway.output.tools.grammar import (
    MAX_NAME,
    CallSink,
    NotACall,
    Read,
    literal,
    name_until,
    one_of,
    skip_space,
)

CALLS: Final = "<|tool_calls|>"
END_CALLS: Final = "<|calls|>"
CALL: Final = "<|tool_call:begin|>"
NAME: Final = "<|tool_call:name|>"
ARGUMENTS: Final = "<|tool_call:args|>"
END_CALL: Final = "<|tool_call:end|>"

BEGIN: Final = "<|begin|>"
THINK: Final = "<|think|>"
CONTENT: Final = "<|content|>"
END: Final = "<|end|>"
"""The end of messages that are not calls."""


def read(calls: CallSink, _marker: str) -> Read[None]:
    """The message behind its opening tag."""
    tags = CALL, END_CALLS
    tag = yield from one_of(tags, (yield from skip_space()))
    while tag == CALL:
        yield from _call(calls)
        calls.drop()
        tag = yield from one_of(tags, (yield from skip_space()))
        calls.drop()


def _call(calls: CallSink) -> Read[None]:
    """One call behind its opening tag."""
    call_id = ""
    while (char := (yield)) != NAME[0]:
        call_id += char
        if len(call_id) > MAX_NAME:
            raise NotACall
    yield from literal(NAME, char)
    name, char = yield from name_until(calls, ARGUMENTS[0])
    yield from literal(ARGUMENTS, char)
    char = yield from skip_space()
    if char == END_CALL[0]:
        write_whole(calls, name, "{}", call_id.strip())
    else:
        left = yield from read_any_arguments(calls, name, char, END_CALL[0], call_id.strip())
        char = left or (yield from skip_space())
    yield from literal(END_CALL, char)
