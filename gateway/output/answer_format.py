"""How one model writes its answers: the format of its tool calls and of its reasoning.

Chooses by the configuration, or by the chat template where that says "auto". Must not know tokens,
requests or how a format is read.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from gateway.output.reasoning import REASONING_FORMATS, ReasoningFormat, detect_reasoning_format
from gateway.output.tools import TOOL_FORMATS, ToolFormat, detect_tool_format

AUTO: Final = "auto"
NONE: Final = "none"


class AnswerFormat(msgspec.Struct, frozen=True):
    """The formats of tool calls and reasoning; with None these are not looked for.
    `is_reasoning_model`: the model is known to reason; other models may reason too.
    """

    tools: ToolFormat | None
    reasoning: ReasoningFormat | None
    is_reasoning_model: bool = False

    @property
    def enders(self) -> tuple[str, ...]:
        """The beginnings of a call, which end reasoning that was not closed."""
        return self.tools.markers if self.tools is not None else ()

    @property
    def tags(self) -> tuple[str, ...]:
        """All markup of calls and reasoning."""
        tags = self.tools.tags if self.tools is not None else ()
        if self.reasoning is not None:
            tags += (self.reasoning.open, self.reasoning.close)
        return tags

    def is_opened_by(self, prompt_end: str) -> bool:
        """Whether a prompt with this end has opened the reasoning."""
        return self.reasoning is not None and prompt_end.rstrip().endswith(self.reasoning.open)

    def past_reasoning(self, prompt_end: str) -> str:
        """The text to append to a prompt with this end so that the answer begins at once. A
        reasoning model gets an empty block of reasoning, because it has not learned to answer
        without one.
        """
        if self.reasoning is None:
            return ""
        closed = f"\n{self.reasoning.close}\n\n"
        if self.is_opened_by(prompt_end):
            return closed
        is_past = prompt_end.rstrip().endswith(self.reasoning.close)
        return f"{self.reasoning.open}\n{closed}" if self.is_reasoning_model and not is_past else ""

    def shown(self, special: Iterable[str]) -> frozenset[str]:
        """The special tokens of a tokenizer that are markup of this format, and so have to be part
        of the text.
        """
        tags = self.tags
        return frozenset(token for token in special if any(token in tag for tag in tags))


def answer_format(
    template: str | None, tool_parser: str = AUTO, reasoning_parser: str = AUTO
) -> AnswerFormat:
    """The format of a model with this chat template. A parser is a name, "auto" or "none"."""
    text = template or ""
    tools = detect_tool_format(text) if tool_parser == AUTO else TOOL_FORMATS.get(tool_parser)
    reasoning = REASONING_FORMATS.get(reasoning_parser)
    is_reasoning_model = reasoning is not None
    if reasoning_parser == AUTO:
        reasoning = detect_reasoning_format(text)
        is_reasoning_model = reasoning.close in text
    return AnswerFormat(tools, reasoning, is_reasoning_model)
