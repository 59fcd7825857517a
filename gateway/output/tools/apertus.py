"""Apertus: `<|tools_prefix|>[{"f": {...}}, {"g": {...}}]<|tools_suffix|>`: each object has the name
of a function as its only key. A missing end tag is forgiven.
"""

from typing import Final

from gateway.output.tools.call_object import read_any_arguments, read_word
from gateway.output.tools.grammar import (
    CallSink,
    NotACall,
    Read,
    literal,
    skip_space,
)

OPEN: Final = "<|tools_prefix|>"
CLOSE: Final = "<|tools_suffix|>"


def read(calls: CallSink, _marker: str) -> Read[None]:
    """The calls behind the tag, and the end tag if the model writes it."""
    yield from literal("[", (yield from skip_space()))
    char = yield from skip_space()
    while char != "]":
        yield from _call(calls, char)
        char = yield from skip_space()
        if char == ",":
            char = yield from skip_space()
    calls.drop()
    yield from literal(CLOSE, (yield from skip_space()))


def _call(calls: CallSink, first: str) -> Read[None]:
    if first != "{" or (yield from skip_space()) != '"':
        raise NotACall
    name = yield from read_word(calls)
    if not name or (yield from skip_space()) != ":":
        raise NotACall
    first = yield from skip_space()
    yield from read_any_arguments(calls, name, first, "")
    yield from literal("}", (yield from skip_space()))
