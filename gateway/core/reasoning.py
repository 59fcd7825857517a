"""Thoughts and answer apart: `<think>…</think>` and its siblings at the start of an answer.

Owns the formats by name, their detection, and the incremental split, equal at every split of the
stream. Only a block that opens the answer is a thought: later tags are text. White space around the
block belongs to it. Must not know tokens or events.
"""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from gateway.core.tags import MAX_SPACE, find_first, tag_overlap, without_end_space


class ReasoningFormat(NamedTuple):
    """The tags around thoughts; the first character of each occurs once in it."""

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
    """The format of the model with this chat template; `<think>` where nothing tells, since many
    templates do not name what their models write.
    """
    named = (one for one in reversed(_ALL) if one.close in template or one.open in template)
    return next(named, _ALL[0])


_State = Literal["before", "start", "inside", "gap", "answer"]


class Split(NamedTuple):
    """What is certain now: more of the thoughts, more of the answer."""

    thoughts: str
    answer: str


class ReasoningSplitter:
    """The thoughts of one choice.

    `reasoning` None: there are none to look for. `is_open`: the prompt itself ended in the opening
    tag. `enders` begin a tool call: some models forget to close their thoughts before one. Text
    without any of `marks` ends no thoughts.
    """

    __slots__ = (
        "_close",
        "_ends",
        "_open",
        "_pending",
        "_state",
        "marks",
    )

    def __init__(
        self,
        reasoning: ReasoningFormat | None = _ALL[0],
        *,
        is_open: bool = False,
        enders: tuple[str, ...] = (),
    ) -> None:
        self._open, self._close = (reasoning.open, reasoning.close) if reasoning else ("", "")
        self._state: _State = ("start" if is_open else "before") if reasoning else "answer"
        self._ends = (self._close, *enders)
        self.marks = frozenset(tag[0] for tag in self._ends if tag)
        self._pending = ""

    @property
    def is_over(self) -> bool:
        """Whether all that comes is answer."""
        return self._state == "answer"

    @property
    def is_thinking(self) -> bool:
        """Whether the text so far ends in thoughts."""
        return self._state in {"start", "inside"}

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is pending amid thoughts: text without marks that ends in no white space
        passes as it is.
        """
        return self._state == "inside" and not self._pending

    def push(self, text: str) -> Split:
        """Take more text in."""
        if self._state == "answer":
            return Split("", text)
        if self.is_plain(text):
            return Split(text, "")
        self._pending += text
        self._look_for_opening()
        self._skip_space("start", "inside")
        thoughts = self._read_thoughts()
        self._skip_space("gap", "answer")
        return Split(thoughts, self._take_answer())

    def flush(self) -> Split:
        """No more text comes: a thought that never closed stays a thought."""
        rest, self._pending = self._pending, ""
        if self._state == "inside":
            return Split(rest.rstrip(), "")
        return Split("", rest if self._state == "before" else "")

    def is_plain(self, text: str) -> bool:
        """Whether `text`, if it comes next, is all thoughts for certain, as nearly always."""
        return (
            self._state == "inside"
            and not self._pending
            and self.marks.isdisjoint(text)
            and not text[-1:].isspace()
        )

    def _look_for_opening(self) -> None:
        if self._state != "before":
            return
        start = self._pending.lstrip()
        is_near = len(self._pending) - len(start) < MAX_SPACE
        if is_near and start.startswith(self._open):
            self._pending = start[len(self._open) :]
            self._state = "start"
        elif not is_near or not self._open.startswith(start):
            self._state = "answer"

    def _skip_space(self, state: _State, then: _State) -> None:
        if self._state != state:
            return
        self._pending = self._pending.lstrip()
        if self._pending:
            self._state = then

    def _take_answer(self) -> str:
        if self._state != "answer":
            return ""
        answer, self._pending = self._pending, ""
        return answer

    def _read_thoughts(self) -> str:
        if self._state != "inside":
            return ""
        at, tag = find_first(self._pending, self._ends)
        if at >= 0:
            thoughts = without_end_space(self._pending[:at])
            self._pending = self._pending[at + (len(tag) if tag == self._close else 0) :]
            self._state = "gap"
            return thoughts
        held = max(tag_overlap(self._pending, tag) for tag in self._ends)
        certain = without_end_space(self._pending[: len(self._pending) - held])
        self._pending = self._pending[len(certain) :]
        return certain
