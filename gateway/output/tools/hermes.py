"""Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

A block that is not a call becomes text at the first character that shows it. Several objects in one
block are several calls. A missing end tag is forgiven.
"""

from typing import Final

from gateway.output.tools.call_object import read_objects
from gateway.output.tools.grammar import CallSink, Read, skip_space

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"


def read(calls: CallSink, _marker: str) -> Read[None]:
    """The block behind its opening tag."""
    yield from objects(calls, (yield from skip_space()))


def objects(calls: CallSink, first: str) -> Read[None]:
    """Call objects up to the closing tag; `first` is the first character of the block."""
    yield from read_objects(calls, first, CLOSE)
