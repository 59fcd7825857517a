"""How one model writes its answers: the format of its tool calls and of its reasoning.

Chooses by the configuration, or by the chat template where that says "auto". Must not know tokens,
requests or how a format is read.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import msgspec

from gateway.output.harmony_splitter import HARMONY_TAGS, MUSE_TAGS, HarmonySplitter
from gateway.output.passed_tags import PassedTags
from gateway.output.reasoning import (
    REASONING_FORMATS,
    ReasoningFormat,
    ReasoningSplitter,
    detect_reasoning_format,
)
from gateway.output.tools import TOOL_FORMATS, ToolFormat, begins_call, detect_tool_format

AUTO: Final = "auto"
NONE: Final = "none"
HARMONY: Final = "harmony"
_MUSE: Final = "muse_glimmer"

Splitter = ReasoningSplitter | HarmonySplitter | PassedTags


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
            reasoning = self.reasoning
            tags += (reasoning.open, reasoning.close, *reasoning.more, *reasoning.passed)
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
        reasoning = self.reasoning
        if self.is_opened_by(prompt_end):
            return reasoning.end_of_open
        end = prompt_end.rstrip()
        past = (reasoning.close, reasoning.none.rstrip(), reasoning.answer or reasoning.close)
        is_past = end.endswith(past)
        return reasoning.none if self.is_reasoning_model and not is_past else ""

    def before_call(self, prompt_end: str) -> str:
        """The text to append to a prompt with this end before a call: as `past_reasoning`, but for
        a format whose calls are messages of their own, like its text.
        """
        if self.reasoning is None or self.reasoning.to_call is None:
            return self.past_reasoning(prompt_end)
        is_begun = prompt_end.rstrip().endswith(self.reasoning.answer or "\n")
        said = self.reasoning.said if is_begun else ""
        return self.reasoning.to_call if self.is_opened_by(prompt_end) else said

    def splitter(
        self, tools: tuple[dict[str, Any], ...], *, is_open: bool, is_past: bool
    ) -> Splitter:
        """What takes reasoning and answer apart, for a request with these tools. `is_open`: the
        prompt ends in reasoning; `is_past`: it ends in the answer.
        """
        reasoning = None if is_past else self.reasoning
        if self.reasoning is not None and self.reasoning.name == _MUSE:
            return HarmonySplitter(MUSE_TAGS, is_open=is_open, is_past=is_past)
        if reasoning is not None and reasoning.name == HARMONY:
            return HarmonySplitter(HARMONY_TAGS, is_open=is_open)
        tools_format = self.tools
        if tools_format is None:
            splitter = ReasoningSplitter(reasoning, is_open=is_open)
        else:
            is_call = partial(begins_call, tools_format, tools)
            splitter = ReasoningSplitter(
                reasoning, is_open=is_open, enders=tools_format.markers, is_call=is_call
            )
        if self.reasoning is not None and self.reasoning.passed:
            return PassedTags(splitter, self.reasoning.passed, self.enders)
        return splitter

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
        is_named = bool(reasoning.sign) or reasoning.name == HARMONY
        is_reasoning_model = is_named or reasoning.close in text
    return AnswerFormat(tools, reasoning, is_reasoning_model)
