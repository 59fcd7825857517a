"""gpt-oss: `<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>`, a call
in the format that its makers name Harmony. A recipient that is no function (`browser.search`,
`python`) is a call too, which no grammar allows: clients answer with the tools that exist.

The recipient may stand before the channel instead; `harmony_splitter.py`, which takes the channels
apart, puts it behind. Must not know the other channels.
"""

import re
from typing import Final

from gateway.output.tags import TagScan
from gateway.output.tools.call_object import read_any_arguments, write_whole
from gateway.output.tools.grammar import (
    MAX_NAME,
    CallSink,
    NotACall,
    Read,
    is_name,
    one_of,
    skip_space,
)
from gateway.output.tools.schema import quote

START: Final = "<|start|>"
CHANNEL: Final = "<|channel|>"
MESSAGE: Final = "<|message|>"
CONSTRAIN: Final = "<|constrain|>"
END: Final = "<|end|>"
CALL: Final = "<|call|>"
RETURN: Final = "<|return|>"
PREFIX: Final = "functions."
RECIPIENT: Final = re.compile(
    r"\bto=((?:[^\s<]|<(?!\|)|[^\S\n]++(?!\n|<\||(?:json|code)\b|\Z))++)"
    r"(?=\s*(?:<\||\Z)|\s+(?:json|code)\b)"
)
"""A recipient ends at a tag, at the name of a notation, or with the head. White space within it is
passed once: a head in one piece may be long.
"""
TO_NO_TOOL: Final = frozenset({"assistant", "user", "all"})
"""Recipients of messages that are no calls."""
_CODE: Final = "code"
_MAX_HEAD: Final = MAX_NAME + 128


def read(calls: CallSink, _marker: str) -> Read[None]:
    """The message behind `<|channel|>`, if it is a call."""
    head = ""
    while not head.endswith(MESSAGE):
        head += yield
        if len(head) > _MAX_HEAD:
            raise NotACall
    found = RECIPIENT.search(head.removesuffix(MESSAGE))
    recipient = found[1] if found is not None else ""
    name = recipient.removeprefix(PREFIX)
    if not calls.is_tool(name) and not is_name(name):
        raise NotACall
    char = yield from skip_space()
    if char == "<":  # models leave out the `{}` of a call without arguments
        write_whole(calls, name, "{}", "")
    elif char != "{" and not recipient.startswith(PREFIX):
        yield from _code(calls, name, char)
        return
    else:
        left = yield from read_any_arguments(calls, name, char, "<")
        char = left or (yield from skip_space())
    yield from one_of((CALL, END, RETURN), char)


def _code(calls: CallSink, name: str, first: str) -> Read[None]:
    """A call whose arguments are code, such as a call of the model's own tool `python`: the
    arguments are one text.
    """
    parameter = next(iter(calls.parameters(name)), _CODE)
    scan = TagScan((CALL, END, RETURN))
    calls.start(name, lambda: quote(scan.rest)[1:] + "}")
    calls.write(f"{{{quote(parameter)}: {quote(first)[:-1]}")
    while not scan.found:
        calls.write(quote(scan.feed((yield)))[1:-1])
    calls.write('"}')
    calls.end()
