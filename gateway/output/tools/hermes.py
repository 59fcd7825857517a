"""Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

A block that is not a call becomes text at the first character that shows it. Several objects in one
block are several calls. A missing end tag is forgiven, and a fence of Markdown around the objects.
"""

from typing import Final

from gateway.output.tools.call_object import read_objects
from gateway.output.tools.grammar import CallSink, Read, literal, skip_space

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
FENCE: Final = "```"
LANGUAGE: Final = "json"


def read(calls: CallSink, _marker: str) -> Read[None]:
    """The block behind its opening tag."""
    char = yield from skip_space()
    if char == FENCE[0]:
        yield from literal(FENCE, char)
        char = yield from skip_space()
        if char == LANGUAGE[0]:
            yield from literal(LANGUAGE, char)
            char = yield from skip_space()
    yield from objects(calls, char)


def objects(calls: CallSink, first: str) -> Read[None]:
    """Call objects up to the closing tag; `first` is the first character of the block."""
    yield from read_objects(calls, first, CLOSE)
