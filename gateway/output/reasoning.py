"""Separates reasoning from the answer: `<think>…</think>` and similar tags at the answer's start.

Owns the formats by name, their detection, and the incremental split, which is the same wherever the
stream is cut. Only a block that opens the answer is reasoning: later tags are text. White space
around the block belongs to it. Must not know tokens or events.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple

import msgspec

from gateway.output.tags import MAX_SPACE, find_first, tag_overlap, without_end_space


class ReasoningFormat(NamedTuple):
    """The tags around reasoning. `closing` closes reasoning that a prompt has opened, `empty` is
    what a model writes that does not reason; `more` are other tags of the format. `opener` is the
    tag with which `open` begins, if it is longer than one token. `sign` is what templates contain
    that build the tags. `answer` is the tag with which an answer begins, `passed` are all that
    stand around its text. `to_call`, where calls are messages of their own, goes from open
    reasoning to one, `said` from a begun answer.
    """

    name: str
    open: str
    close: str
    closing: str = ""
    empty: str = ""
    more: tuple[str, ...] = ()
    opener: str = ""
    sign: str = ""
    answer: str = ""
    passed: tuple[str, ...] = ()
    to_call: str | None = None
    said: str = ""

    @property
    def first(self) -> str:
        """The tag that an answer with reasoning begins with."""
        return self.opener or self.open

    @property
    def end_of_open(self) -> str:
        """What to append to a prompt that has opened the reasoning."""
        return self.closing or f"\n{self.close}\n\n"

    @property
    def none(self) -> str:
        """What to append to a prompt so that the model does not reason."""
        return self.empty or f"{self.open}\n{self.end_of_open}"


_ALL: Final = (
    ReasoningFormat("think", "<think>", "</think>"),
    ReasoningFormat("seed", "<seed:think>", "</seed:think>"),
    ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
    ReasoningFormat("cohere", "<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningFormat("kimi_vl", "◁think▷", "◁/think▷"),
    ReasoningFormat(
        "gemma4",
        "<|channel>thought",
        "<channel|>",
        closing="\n<channel|>",
        empty="<|channel>thought\n<channel|>",
        opener="<|channel>",
    ),
    ReasoningFormat(
        "minimax_m3",
        "<mm:think>",
        "</mm:think>",
        closing="</mm:think>",
        empty="</mm:think>",
    ),
    ReasoningFormat(
        "apertus",
        "<|inner_prefix|>",
        "<|inner_suffix|>",
        closing="<|inner_suffix|>",
        empty="<|inner_prefix|><|inner_suffix|>",
    ),
    ReasoningFormat(
        "harmony",
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
        empty="<|channel|>final<|message|>",
        more=("<|start|>", "<|call|>", "<|return|>", "<|constrain|>"),
        to_call="<|end|><|start|>assistant",
    ),
    ReasoningFormat(
        "hy3",
        "<think:opensource>",
        "</think:opensource>",
        closing="</think:opensource>",
        empty="<think:opensource></think:opensource>",
        sign="'<think{}>'",
    ),
    ReasoningFormat(
        "kimi_k3",
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|><|open|>response<|sep|>",
        closing="<|close|>think<|sep|><|open|>response<|sep|>",
        sign="'<|open|>'",
        answer="<|open|>response<|sep|>",
        passed=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
        to_call="<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|>",
        said="<|close|>response<|sep|>",
    ),
    ReasoningFormat(
        "solar_open",
        "<|think|>",
        "<|end|>",
        closing="<|end|><|begin|>assistant<|content|>",
        empty="<|content|>",
        sign="<|begin|>assistant<|think|>",
        answer="<|content|>",
        passed=("<|end|>", "<|begin|>assistant", "<|content|>"),
        to_call="<|end|><|begin|>assistant",
    ),
    ReasoningFormat(
        "muse_glimmer",
        "to=self<|message|>",
        "<|eom|><|start|>assistant to=user<|message|>",
        closing="<|eom|><|start|>assistant to=user<|message|>",
        empty=" to=user<|message|>",
        more=("<|start|>", "<|eot|>"),
        sign="to=self<|message|>",
        to_call="<|eom|><|start|>assistant",
    ),
    ReasoningFormat(
        "apriel",
        "Here are my reasoning steps:",
        "[BEGIN FINAL RESPONSE]",
        closing="\n[BEGIN FINAL RESPONSE]\n",
        passed=("[END FINAL RESPONSE]",),
    ),
)
REASONING_FORMATS: Final[Mapping[str, ReasoningFormat]] = {one.name: one for one in _ALL}


def detect_reasoning_format(template: str) -> ReasoningFormat:
    """The format of the model with this chat template; `<think>` if it names none, since many
    templates do not name what their models write.
    """
    return next((one for one in reversed(_ALL) if _is_named(one, template)), _ALL[0])


def _is_named(one: ReasoningFormat, template: str) -> bool:
    if one.sign:
        return one.sign in template
    return one.close in template or one.open in template


State = Literal["before", "start", "inside", "gap", "answer", "final"]
REASONING: Final[frozenset[State]] = frozenset({"start", "inside"})
"""The states in which the text so far ends in reasoning."""
ANSWER: Final[frozenset[State]] = frozenset({"answer", "final"})
"""The states in which the text so far ends in the answer. In the state "final" further tags may
follow.
"""


IsCall = Callable[[str, str], bool | None]
_MAX_CALL_HEAD: Final = 4096
"""A longer beginning of what may become a call is a mention of one."""


class Split(msgspec.Struct, frozen=True, gc=False):
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
    `is_call` takes one of them and the text behind it, and says whether they do begin a call; None
    for not yet. Without it each of them does. Reasoning that only mentions a tag goes on.
    Text without any of `marks` does not end reasoning. In the `state` "answer" all further text is
    answer.
    """

    __slots__ = (
        "_close",
        "_empty",
        "_ends",
        "_is_call",
        "_num_mentioned",
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
        is_call: IsCall | None = None,
    ) -> None:
        if reasoning is None:
            self.state: State = "answer"
        else:
            self.state = "start" if is_open else "before"
        self._open, self._close, self._ends, self.marks = _tags(reasoning, enders)
        self._empty = reasoning.empty if reasoning is not None else ""
        self._is_call = is_call
        self._num_mentioned = 0
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
        elif is_near and self._empty == self._close and start.startswith(self._close):
            self._pending = start[len(self._close) :]
            self.state = "gap"
        elif not is_near or not self._may_open(start):
            self.state = "answer"

    def _may_open(self, start: str) -> bool:
        may_be_empty = self._empty == self._close and self._close.startswith(start)
        return may_be_empty or self._open.startswith(start)

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
        at, tag = self._find_end()
        if at >= 0 and tag:
            reasoning = without_end_space(self._pending[:at])
            self._pending = self._pending[at + (len(tag) if tag == self._close else 0) :]
            self._num_mentioned = 0
            self.state = "gap"
            return reasoning
        held = len(self._pending) - at
        if at < 0:
            held = max(tag_overlap(self._pending, tag) for tag in self._ends)
        certain = without_end_space(self._pending[: len(self._pending) - held])
        self._pending = self._pending[len(certain) :]
        self._num_mentioned = max(0, self._num_mentioned - len(certain))
        return certain

    def _find_end(self) -> tuple[int, str]:
        """Where the reasoning ends, and the tag that ends it: (-1, "") for nowhere, an empty tag
        where a call may begin.
        """
        while True:
            at, tag = find_first(self._pending, self._ends, self._num_mentioned)
            if at < 0 or tag == self._close or self._is_call is None:
                return at, tag
            head, close, _ = self._pending[at + len(tag) :].partition(self._close)
            is_call = self._is_call(tag, head) if len(head) < _MAX_CALL_HEAD else False
            if is_call is None and close:
                is_call = False
            if is_call is not False:
                return at, tag if is_call else ""
            self._num_mentioned = at + len(tag)
