"""Thoughts and answer apart: `<think>…</think>` at the start of an answer.

Owns the incremental split, equal at every split of the stream. Only a block that opens the answer
is a thought: later tags are text. White space around the block belongs to it. Must not know
tokens or events.
"""

from typing import Final, Literal, NamedTuple

from gateway.core.tags import tag_overlap

OPEN: Final = "<think>"
CLOSE: Final = "</think>"


_State = Literal["before", "start", "inside", "gap", "answer"]


class Split(NamedTuple):
    """What is certain now: more of the thoughts, more of the answer."""

    thoughts: str
    answer: str


class ReasoningSplitter:
    """The thoughts of one choice. `is_open`: the prompt itself ended in an opening tag."""

    def __init__(self, *, is_open: bool = False) -> None:
        self._state: _State = "start" if is_open else "before"
        self._pending = ""

    @property
    def is_thinking(self) -> bool:
        """Whether the text so far ends in thoughts."""
        return self._state in {"start", "inside"}

    def push(self, text: str) -> Split:
        """Take more text in."""
        if self._state == "answer":
            return Split("", text)
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

    def _look_for_opening(self) -> None:
        if self._state != "before":
            return
        start = self._pending.lstrip()
        if start.startswith(OPEN):
            self._pending = start[len(OPEN) :]
            self._state = "start"
        elif not OPEN.startswith(start):
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
        end = self._pending.find(CLOSE)
        if end >= 0:
            thoughts = self._pending[:end].rstrip()
            self._pending = self._pending[end + len(CLOSE) :]
            self._state = "gap"
            return thoughts
        certain = self._pending[: len(self._pending) - tag_overlap(self._pending, CLOSE)].rstrip()
        self._pending = self._pending[len(certain) :]
        return certain
