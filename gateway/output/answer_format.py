"""How one model writes its answers: the format of its tool calls and of its thoughts.

Owns the choice between what the chat template tells and what the configuration says. Must not know
tokens, requests or how a format is read.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from gateway.output.reasoning import REASONING_FORMATS, ReasoningFormat, detect_reasoning_format
from gateway.output.tools import TOOL_FORMATS, ToolFormat, detect_tool_format

AUTO: Final = "auto"
NONE: Final = "none"


class AnswerFormat(msgspec.Struct, frozen=True):
    """None: calls, or thoughts, are not looked for. `thinks`: the model is known to write thoughts;
    others may all the same.
    """

    tools: ToolFormat | None
    reasoning: ReasoningFormat | None
    thinks: bool = False

    @property
    def enders(self) -> tuple[str, ...]:
        """What ends thoughts that were not closed: the beginning of a call."""
        return self.tools.markers if self.tools is not None else ()

    @property
    def tags(self) -> tuple[str, ...]:
        """All markup."""
        tags = self.tools.tags if self.tools is not None else ()
        if self.reasoning is not None:
            tags += (self.reasoning.open, self.reasoning.close)
        return tags

    def is_opened_by(self, prompt_end: str) -> bool:
        """Whether a prompt that ends so ends within thoughts."""
        return self.reasoning is not None and prompt_end.rstrip().endswith(self.reasoning.open)

    def past_reasoning(self, prompt_end: str) -> str:
        """What leads a prompt that ends so to where the answer begins that follows thoughts. A
        model that thinks is given empty ones: an answer without any is nothing that it has learned.
        """
        if self.reasoning is None:
            return ""
        closed = f"\n{self.reasoning.close}\n\n"
        if self.is_opened_by(prompt_end):
            return closed
        is_past = prompt_end.rstrip().endswith(self.reasoning.close)
        return f"{self.reasoning.open}\n{closed}" if self.thinks and not is_past else ""

    def shown(self, special: Iterable[str]) -> frozenset[str]:
        """Those of a tokenizer's special tokens that are markup here, so that they have to be
        part of the text although special tokens have none.
        """
        tags = self.tags
        return frozenset(token for token in special if any(token in tag for tag in tags))


def answer_format(
    template: str | None, tool_parser: str = AUTO, reasoning_parser: str = AUTO
) -> AnswerFormat:
    """The format of a model with this chat template; the parsers are names, "auto" or "none"."""
    text = template or ""
    tools = detect_tool_format(text) if tool_parser == AUTO else TOOL_FORMATS.get(tool_parser)
    reasoning = REASONING_FORMATS.get(reasoning_parser)
    thinks = reasoning is not None
    if reasoning_parser == AUTO:
        reasoning = detect_reasoning_format(text)
        thinks = reasoning.close in text
    return AnswerFormat(tools, reasoning, thinks)
