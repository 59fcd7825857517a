"""Compaction of a conversation: the demand for a summary, and how a summary is taken back.

Owns the words around summaries. A summary travels sealed, as reasoning does. Must not know items or
who writes the summary.
"""

from typing import Final

import msgspec

from gateway.api.request import ChatRequest
from gateway.api.signatures import Signer

SUMMARISE: Final = """\
This conversation has grown long and is about to be replaced by a summary. Write the summary now, \
for an assistant that goes on with the work and will see nothing else of what was said above. Do \
not call tools, and answer with the summary only. It must hold:

1. what the user wants, with all requirements and preferences, in the user's own words where the \
words matter;
2. what was done and decided, and why;
3. files, names, commands, numbers and pieces of code that are still needed, exactly as they are;
4. errors that came up, and how they were solved;
5. what is still to be done, and the next step."""

_SUMMARY: Final = (
    "The conversation before this was replaced by this summary of it. Go on from there.\n\n{}"
)
_FOREIGN: Final = (
    "[A part of the conversation was replaced by a summary of another server, which cannot be read "
    "here.]"
)
_PURPOSE: Final = b"compaction"
_OF_ANSWERS: Final = frozenset({"response_format", "stop"})
"""Fields of a chat that a summary does not have."""


def sealed_summary(text: str, signer: Signer) -> str:
    """The summary as a blob for the client."""
    return signer.sealed(text, _PURPOSE)


def summary_text(blob: object, signer: Signer) -> str | None:
    """What the model reads in place of the blob; None if there is none."""
    if not isinstance(blob, str) or not blob:
        return None
    text = signer.unsealed(blob, _PURPOSE)
    return _FOREIGN if text is None else _SUMMARY.format(text)


def compacting(request: ChatRequest) -> ChatRequest:
    """`request` for a summary: its prompt begins as before, with the tools, but none may be called,
    and the answer has no form and no stops.
    """
    raw = {name: value for name, value in request.raw.items() if name not in _OF_ANSWERS}
    if "tools" in raw:
        raw["tool_choice"] = "none"
    return msgspec.structs.replace(
        request,
        raw=raw,
        tools=(),
        tool_choice="none",
        shown_tools=request.prompt_tools,
        grammar=None,
        stop=(),
    )
