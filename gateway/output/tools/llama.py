"""Llama 3 and 4: `{"name": ..., "parameters": {...}}`, alone or behind `<|python_tag|>`; semicolons
separate several. Llama 4 and small ones of Llama 3.2 write `[f(x='v'), g()]` too, alone or between
`<|python_start|>` and `<|python_end|>`.

An answer may be JSON or a list for other reasons, so without a tag it is a call only if it begins
the answer, names a tool of the request and has parameters. Behind the tag, anything else (code for
the built-in tools) is text.
"""

from typing import Final

from gateway.output.tools.call_object import read_call
from gateway.output.tools.grammar import CallSink, NotACall, Read, literal, skip_space
from gateway.output.tools.pythonic import read_calls

PYTHON_TAG: Final = "<|python_tag|>"
PYTHON_START: Final = "<|python_start|>"
PYTHON_END: Final = "<|python_end|>"
BARE: Final = "{["


def read(calls: CallSink, marker: str) -> Read[None]:
    """The calls behind the tag, or behind the first bracket of the answer."""
    is_bare = marker in BARE
    char = marker if is_bare else (yield from skip_space())
    while char in BARE:
        left = ""
        if char == "[":
            yield from read_calls(calls, (yield from skip_space()), strict=is_bare)
            calls.drop()
        else:
            left = yield from read_call(calls, "", strict=is_bare)
        char = left or (yield from skip_space())
        if char == "<" and not is_bare:
            yield from literal(PYTHON_END, char)
            calls.drop()
            char = yield from skip_space()
        if char in ";,":
            char = yield from skip_space()
    raise NotACall
