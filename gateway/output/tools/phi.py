"""Calls as a JSON array between two tags: `[{"name": ..., "arguments": {...}}, ...]`.

Phi-4-mini writes it between `<|tool_call|>` and `<|/tool_call|>`, Granite 3 behind the first of
them alone, Nemotron Nano v2 between `<TOOLCALL>` and `</TOOLCALL>`, Cohere's Command between
`<|START_ACTION|>` and `<|END_ACTION|>`, GigaChat 3.1 one object behind `<|function_call|>`. One
object without brackets is read too, and a missing end tag is forgiven.
"""

from typing import Final

from gateway.output.tools.call_object import read_list
from gateway.output.tools.grammar import CallSink, Read, skip_space

OPEN: Final = "<|tool_call|>"
CLOSE: Final = "<|/tool_call|>"
NEMOTRON_OPEN: Final = "<TOOLCALL>"
NEMOTRON_CLOSE: Final = "</TOOLCALL>"
COHERE_OPEN: Final = "<|START_ACTION|>"
COHERE_CLOSE: Final = "<|END_ACTION|>"
GIGACHAT_OPEN: Final = "<|function_call|>"
GIGACHAT_CLOSE: Final = "<|message_sep|>"
_CLOSES: Final = {
    OPEN: CLOSE,
    NEMOTRON_OPEN: NEMOTRON_CLOSE,
    COHERE_OPEN: COHERE_CLOSE,
    GIGACHAT_OPEN: GIGACHAT_CLOSE,
}


def read(calls: CallSink, marker: str) -> Read[None]:
    """The calls behind the tag, and the end tag if the model writes it."""
    yield from read_list(calls, (yield from skip_space()), _CLOSES[marker])
