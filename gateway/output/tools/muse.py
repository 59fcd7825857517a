"""Muse Glimmer: `<atem:function_calls><atem:invoke name="f"><atem:parameter name="x">value
</atem:parameter></atem:invoke></atem:function_calls>`, each in a message to the function:
`<|start|>assistant to=f<|message|>...<|eom|>`.

Values have the types of the tool's schema. The messages are taken apart before, by
`harmony_splitter.py`.
"""

from typing import Final

from gateway.output.tools.grammar import CallSink, Read
from gateway.output.tools.invoke import InvokeTags, read_section

OPEN: Final = "<atem:function_calls>"
CLOSE: Final = "</atem:function_calls>"
INVOKE: Final = '<atem:invoke name="'
END_INVOKE: Final = "</atem:invoke>"
PARAMETER: Final = '<atem:parameter name="'
END_PARAMETER: Final = "</atem:parameter>"
END_MESSAGE: Final = "<|eom|>"
END_TURN: Final = "<|eot|>"
_TAGS: Final = InvokeTags((OPEN,), (CLOSE,), INVOKE, END_INVOKE, PARAMETER, END_PARAMETER)


def read(calls: CallSink, _marker: str) -> Read[None]:
    """The section behind its opening tag."""
    yield from read_section(calls, _TAGS)
