"""Separates reasoning from the answer: `<think>…</think>` and similar tags at the answer's start.

Owns the formats by name, their detection, and the incremental split, which is the same wherever the
stream is cut. Only a block that opens the answer is reasoning: later tags are text. White space
around the block belongs to it. Must not know tokens or events.
"""

import functools
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from gateway.output.tags import MAX_SPACE, find_first, tag_overlap, without_end_space


class ReasoningFormat(NamedTuple):
    """The tags around reasoning; the first character of each occurs once in it."""

    name: str
    open: str
    close: str


_ALL: Final = (
    ReasoningFormat("think", "<think>", "</think>"),
    ReasoningFormat("seed", "<seed:think>", "</seed:think>"),
    ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
    ReasoningFormat("cohere", "<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningFormat("kimi_vl", "◁think▷", "◁/think▷"),
)
REASONING_FORMATS: Final[Mapping[str, ReasoningFormat]] = {one.name: one for one in _ALL}


def detect_reasoning_format(template: str) -> ReasoningFormat:
    """The format of the model with this chat template; `<think>` if it names none, since many
    templates do not name what their models write.
    """
    named = (one for one in reversed(_ALL) if one.close in template or one.open in template)
    return next(named, _ALL[0])


State = Literal["before", "start", "inside", "gap", "answer"]
REASONING: Final[frozenset[State]] = frozenset({"start", "inside"})
"""The states in which the text so far ends in reasoning."""


class Split(NamedTuple):
    """What is certain now: more of the reasoning, more of the answer."""

    reasoning: str
    answer: str


@functools.lru_cache(maxsize=64)
def _tags(
    reasoning: ReasoningFormat | None, enders: tuple[str, ...]
) -> tuple[str, str, tuple[str, ...], frozenset[str]]:
    """Opening and closing tag, all tags that end reasoning, and the first characters of those."""
    opening, closing = (reasoning.open, reasoning.close) if reasoning else ("", "")
    ends = (closing, *enders)
    return opening, closing, ends, frozenset(tag[0] for tag in ends if tag)


class ReasoningSplitter:
    """The reasoning of one choice.

    Without a `reasoning` format all text is answer. `is_open`: the prompt itself ended in the
    opening tag. `enders` begin a tool call: some models forget to close their reasoning before one.
    Text without any of `marks` does not end reasoning. In the `state` "answer" all further text is
    answer.
    """

    __slots__ = (
        "_close",
        "_ends",
        "_open",
        "_pending",
        "marks",
        "state",
    )

    def __init__(
        self,
        reasoning: ReasoningFormat | None = _ALL[0],
        *,
        is_open: bool = False,
        enders: tuple[str, ...] = (),
    ) -> None:
        if reasoning is None:
            self.state: State = "answer"
        else:
            self.state = "start" if is_open else "before"
        self._open, self._close, self._ends, self.marks = _tags(reasoning, enders)
        self._pending = ""

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is pending within reasoning: text without marks passes unchanged unless
        it ends in white space.
        """
        return self.state == "inside" and not self._pending

    def push(self, text: str) -> Split:
        """Take more text; return what is certain now."""
        if self.state == "answer":
            return Split("", text)
        if self.state == "before" and not self._pending and self._is_answer(text):
            self.state = "answer"
            return Split("", text)
        if self.is_plain(text):
            return Split(text, "")
        self._pending += text
        self._look_for_opening()
        self._skip_space("start", "inside")
        reasoning = self._read_reasoning()
        self._skip_space("gap", "answer")
        return Split(reasoning, self._take_answer())

    def flush(self) -> Split:
        """The end of the text: reasoning that was never closed stays reasoning."""
        rest, self._pending = self._pending, ""
        if self.state == "inside":
            return Split(rest.rstrip(), "")
        return Split("", rest if self.state == "before" else "")

    def is_plain(self, text: str) -> bool:
        """Whether `text`, if it comes next, is certainly all reasoning, as nearly always."""
        return (
            self.state == "inside"
            and not self._pending
            and self.marks.isdisjoint(text)
            and not text[-1:].isspace()
        )

    def _is_answer(self, text: str) -> bool:
        """Whether an answer that starts with `text` has no reasoning, as most answers."""
        start = text.lstrip()
        return start != "" and start[0] != self._open[0]

    def _look_for_opening(self) -> None:
        if self.state != "before":
            return
        start = self._pending.lstrip()
        is_near = len(self._pending) - len(start) < MAX_SPACE
        if is_near and start.startswith(self._open):
            self._pending = start[len(self._open) :]
            self.state = "start"
        elif not is_near or not self._open.startswith(start):
            self.state = "answer"

    def _skip_space(self, state: State, then: State) -> None:
        if self.state != state:
            return
        self._pending = self._pending.lstrip()
        if self._pending:
            self.state = then

    def _take_answer(self) -> str:
        if self.state != "answer":
            return ""
        answer, self._pending = self._pending, ""
        return answer

    def _read_reasoning(self) -> str:
        if self.state != "inside":
            return ""
        at, tag = find_first(self._pending, self._ends)
        if at >= 0:
            reasoning = without_end_space(self._pending[:at])
            self._pending = self._pending[at + (len(tag) if tag == self._close else 0) :]
            self.state = "gap"
            return reasoning
        held = max(tag_overlap(self._pending, tag) for tag in self._ends)
        certain = without_end_space(self._pending[: len(self._pending) - held])
        self._pending = self._pending[len(certain) :]
        return certain
