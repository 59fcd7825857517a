"""Llama 3: `{"name": ..., "parameters": {...}}`, alone or behind `<|python_tag|>`; semicolons
separate several.

An answer may be JSON for other reasons, so without the tag it is a call only if it begins the
answer, names a tool of the request and has parameters. Behind the tag, anything but JSON (code for
the built-in tools) is text.
"""

from typing import Final

from gateway.output.tools.call_object import read_call
from gateway.output.tools.grammar import CallSink, NotACall, Read, skip_space

PYTHON_TAG: Final = "<|python_tag|>"
BARE: Final = "{"


def read(calls: CallSink, marker: str) -> Read[None]:
    """The calls behind the tag, or behind the first brace of the answer."""
    is_bare = marker == BARE
    char = "{" if is_bare else (yield from skip_space())
    while char == "{":
        left = yield from read_call(calls, "", strict=is_bare)
        char = left or (yield from skip_space())
        if char in ";,":
            char = yield from skip_space()
    raise NotACall
