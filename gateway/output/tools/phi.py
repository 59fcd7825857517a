"""Phi-4-mini: `<|tool_call|>[{"name": ..., "arguments": {...}}, ...]<|/tool_call|>`.

One object without brackets is read too, and a missing end tag is forgiven.
"""

from typing import Final

from gateway.output.tools.call_object import read_array
from gateway.output.tools.grammar import CallSink, NotACall, Read, literal, skip_space

OPEN: Final = "<|tool_call|>"
CLOSE: Final = "<|/tool_call|>"


def read(calls: CallSink, _marker: str) -> Read[None]:
    """The calls behind the tag, and the end tag if the model writes it."""
    char = yield from skip_space()
    if char not in "[{":
        raise NotACall
    yield from read_array(calls, char)
    calls.drop()
    if (yield from skip_space()) != "<":
        raise NotACall
    yield from literal(CLOSE, 1)
