"""Takes the messages of gpt-oss (Harmony) and of Muse Glimmer apart: thoughts, text and calls.

An answer is several messages: `<|channel|>analysis<|message|>thoughts<|end|>`, then
`<|start|>assistant<|channel|>final<|message|>text<|return|>`; a call is a message with a recipient,
and `commentary` without one is text for the user. Thoughts may come again behind text. Muse's have
no channels: its thoughts are messages to itself, `<|start|>assistant to=self<|message|>thoughts
<|eom|>`. Owns the heads of messages; calls go on as text, those of gpt-oss in one form, which
`tools/harmony.py` reads. Must not know tokens or events.
"""

from typing import Final, NamedTuple

from gateway.output.reasoning import Split, State
from gateway.output.tags import find_first, tag_overlap
from gateway.output.tools.harmony import (
    CALL,
    CHANNEL,
    END,
    MESSAGE,
    RECIPIENT,
    RETURN,
    START,
    TO_NO_TOOL,
)
from gateway.output.tools.muse import END_MESSAGE, END_TURN

ANALYSIS: Final = "analysis"
_TO_SELF: Final = "self"
_HEADS: Final = (START, CHANNEL, MESSAGE, " to=", "to=", "assistant")
_MAX_HEAD: Final = 512
_BETWEEN: Final = "\n\n"
"""The text between two messages of the same kind."""
_MARKS: Final = frozenset("<")


class MessageTags(NamedTuple):
    """The tags that end a message, of which `begins` belong to the next one. With `has_channels`
    the channel tells thoughts, else the recipient.
    """

    ends: tuple[str, ...]
    begins: frozenset[str]
    has_channels: bool


HARMONY_TAGS: Final = MessageTags(
    (END, CALL, RETURN, START, CHANNEL), frozenset({START, CHANNEL}), has_channels=True
)
MUSE_TAGS: Final = MessageTags(
    (END_MESSAGE, END_TURN, START), frozenset({START}), has_channels=False
)


class HarmonySplitter:
    """The messages of one choice; it has the methods of a `ReasoningSplitter`.

    `is_open`: the prompt itself ended in the head of thoughts; `is_past`: it ended in a text or a
    call. The state is never "answer", because thoughts may always follow.
    """

    __slots__ = ("_had_answer", "_had_thoughts", "_is_call", "_pending", "_tags", "marks", "state")

    def __init__(
        self, tags: MessageTags = HARMONY_TAGS, *, is_open: bool = False, is_past: bool = False
    ) -> None:
        self._tags = tags
        self.state: State = "inside" if is_open else "final" if is_past else "before"
        self.marks = _MARKS
        self._pending = ""
        self._is_call = False
        self._had_thoughts = is_open
        self._had_answer = False

    @property
    def is_quiet(self) -> bool:
        return self.state == "inside" and not self._pending

    def push(self, text: str) -> Split:
        """Take more text; return what is certain now."""
        self._pending += text
        reasoning = answer = ""
        while True:
            size = len(self._pending)
            was = self.state
            if was in {"before", "gap"}:
                answer += self._read_head()
            else:
                body = self._read_body()
                if was == "inside":
                    reasoning += body
                else:
                    answer += body
            if self.state == was and len(self._pending) in {size, 0}:
                return Split(reasoning, answer)
            if was == "gap" and self.state == "inside" and self._had_thoughts:
                reasoning += _BETWEEN
            self._had_thoughts = self._had_thoughts or self.state == "inside"

    def flush(self) -> Split:
        """The end of the text."""
        rest, self._pending = self._pending, ""
        if self.state == "inside":
            return Split(rest, "")
        return Split("", rest if self.state in {"before", "final"} else "")

    def _read_head(self) -> str:
        """Read the head of a message; returns text that goes on as an answer."""
        text = self._pending
        at = text.find(MESSAGE)
        start = text.lstrip("\n\r\t")
        is_head = any(one.startswith(start) or start.startswith(one) for one in _HEADS)
        if not is_head or (at < 0 and len(text) > _MAX_HEAD):
            self._pending = text
            self.state = "final"
            self._is_call = False
            return ""
        if at < 0:
            return ""
        head, self._pending = text[:at], text[at + len(MESSAGE) :]
        found = RECIPIENT.search(head)
        recipient = "" if found is None else found[1]
        has_channels = self._tags.has_channels
        self._is_call = False
        is_thought = head.partition(CHANNEL)[2].strip().startswith(ANALYSIS)
        if not has_channels:
            is_thought = recipient == _TO_SELF
        elif recipient and recipient not in TO_NO_TOOL:
            self.state, self._is_call = "final", True
            return f"{CHANNEL}commentary to={recipient}{MESSAGE}"
        if is_thought:
            self.state = "inside"
            return ""
        self.state = "final"
        if recipient and recipient not in TO_NO_TOOL:
            return ""
        between = _BETWEEN if self._had_answer else ""
        self._had_answer = True
        return between

    def _read_body(self) -> str:
        """Read a message up to its end; returns its text."""
        ends = self._tags.ends
        at, tag = find_first(self._pending, ends)
        if at < 0:
            held = max(tag_overlap(self._pending, one) for one in ends)
            cut = len(self._pending) - held
            body, self._pending = self._pending[:cut], self._pending[cut:]
            return body
        body = self._pending[:at]
        # A head whose message was not ended is the next one's.
        begins = tag in self._tags.begins
        self._pending = self._pending[at if begins else at + len(tag) :]
        self.state = "gap"
        return body + (CALL if self._is_call else "")
