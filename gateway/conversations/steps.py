"""Steps of an agent: calls of tools with their results, compared without values that never mean
anything.

Owns the canonical form of arguments and results: the order of keys, white space, random ids, time
stamps, durations and pages do not count. Must not know what a loop is.
"""

import re
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from gateway.api import Message
from protocol.reading import FAULTS

MAX_RESULT_CHARS: Final = 16_384
"""A longer result is compared by its two ends and its length."""
MAX_KNOWN: Final = 8192
MAX_LOOKED_AT: Final = 1024
"""Messages from the end of a prompt, and calls of one message, that are read: an admitted body may
have 50,000 of each.
"""

_ID_KEYS: Final = re.compile(
    r"(?i)(request|call|trace|span|correlation|idempotency|message|msg|session|run|client|event|tx|"
    r"transaction)[_-]?(id|key|uuid|token)|nonce|uuid|guid|salt|seed|timestamp|ts|now|time|date|"
    r"created[_-]?at|sent[_-]?at|requested[_-]?at|attempt|attempts|try|tries|retry|retries|"
    r"retry[_-]?count|iteration|description|explanation|reason|reasoning|thought|comment|purpose"
)
"""Keys whose values tell calls apart without changing what they do."""
_PAGE_KEYS: Final = re.compile(
    r"(?i)(page|offset|cursor|skip|limit|start|end|from|to|first|last|count|size|per_page|"
    r"page_?(size|token|number|num|index)|start_?(line|index|at)?|end_?(line|index)?|line|lines|"
    r"line_?(start|end|number|offset)|num_?(lines|results)|max_?(results|lines|items|count)|top_?k|"
    r"next|next_?(page|token|cursor)?|after|before|head_?limit|timeout|timeout_?ms|wait|wait_?ms|"
    r"delay|seconds|yield_time_ms|max_output_tokens)"
)
"""Keys by which a call asks for another part of the same thing, or waits differently for it."""
_SPACES: Final = re.compile(r"\s+")
_TIMES: Final = re.compile(
    r"(?ix)"
    r"\d{4}-\d\d-\d\d(?:[T\s]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?(?:\s?(?:Z|UTC|[+-]\d\d:?\d\d))?"
    r"| \b\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?(?:\s?[ap]m)?\b"
    r"| \b(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*,?\s+\d{1,2}\s+[a-z]{3,9}\s+\d{4}\b"
    r"| \b1[5-9]\d{8}(?:\d{3}|\.\d+)?\b"
    r"| \b\d+(?:\.\d+)?\s?(?:ms|µs|us|ns|s|sec|secs|seconds?|minutes?)\b"
)
"""Dates, times, Unix times and durations."""
_IDS: Final = re.compile(
    r"(?ix)"
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"| \b(?:[a-z]{2,12}[_-])?(?=[0-9a-z]*\d)(?=[0-9a-z]*[a-z])[0-9a-z]{12,}\b"
    r"| \b(?:pid|port|request\s?\#|attempt\s?\#?)[\s:=]*\d+\b"
)
"""UUIDs, long random words, process ids."""
_ERROR: Final = re.compile(
    r"(?i)\berror\b|\b[1-9]\d* errors\b|\bexception\b|traceback|\bfailed\b|\bfailure\b|"
    r"not found|no such|denied|\binvalid\b|refused|timed out|timeout|unauthori[sz]ed|forbidden|"
    r"\bfatal\b|cannot |can't |could not|unable to|\"success\":\s*false|\"ok\":\s*false|"
    r"(?:exit(?:ed)?[\s_]?(?:code|status)|return_?code)[\"\s:=]*-?[1-9]"
)
_NO_ERROR: Final = re.compile(
    r"(?i)\b\w*(?:error|exception|fail(?:ed|ure)|time(?:d_?)?out|traceback|fatal)s?[\"']?\s*[:=]\s*"
    r"(?:null|none|false|0(?![\d.])|\"\"|''|\[\]|\{\})"
    r"|[\"']timeout\w*[\"']\s*:\s*\d+"
    r"|\b(?:no|0|zero|without(?: any)?) (?:errors?|exceptions?|fail(?:ed|ures?))\b"
)
"""Words about errors in a result that went well: Hermes Agent ends each with `"error": null`."""
_PENDING: Final = re.compile(
    r"(?i)\b(?:pending|running|in[ _-]progress|queued|waiting|not (?:yet )?(?:ready|done|finished)|"
    r"still|starting|building|scheduled|processing|provisioning|deploying|initiali[sz]ing|"
    r"in_queue|unfinished|no (?:new )?output(?: yet)?|syncing|installing|downloading|"
    r"compiling|busy|not started)\b"
)
_UNSEEN: Final = re.compile(r"(?i)\[[^\]]*\b(?:image|picture|screenshot|audio|file)\b[^\]]*\]")
"""A result that is not text, which cannot be compared with another one."""
_ACK: Final = re.compile(
    r"(?i)\b(?:ok|okay|done|success\w*|true|complete[d]?|finished|accepted|(?:creat|delet|remov|updat|"
    r"sav|mov|add|appli|archiv|clos|mark|click|press|typ|post|insert|renam|copi|upload|stor|edit|chang|"
    r"replac|execut|schedul|submitt|enabl|disabl|clear|fill|navigat|scroll|modifi)ed|set|sent|wrote|"
    r"written)\b"
)
"""A result in few characters that says only that the call was carried out."""
_ACK_CHARS: Final = 160
_HEAD_CHARS: Final = 400

_REPLACED: Final = bytes(
    code for code in range(256) if code >= 0x80 or chr(code).isalnum() or chr(code) in "#+,-.:=_"
) + bytes(range(0x21))
"""What `_TIMES`, `_IDS` and `_SPACES` may replace, and what they put there; bytes of UTF-8."""
_LEFT_IN: Final = ((False, False), (False, True), (True, True))
"""Whether pages and ids are compared, by `Strictness`."""

_Found = TypeVar("_Found")

_decode: Final = msgspec.json.Decoder().decode


class Strictness(IntEnum):
    """How calls are compared: without pages and ids, without pages, or with both."""

    LOOSE = 0
    PAGED = 1
    EXACT = 2


class ResultFacts(NamedTuple):
    """What the text of a result says. `is_ack`: only that the call was carried out; `is_blank`:
    nothing at all. `is_pending`: the agent waits for something. `is_unseen`: it cannot be compared.
    """

    is_error: bool = False
    is_ack: bool = False
    is_blank: bool = False
    is_pending: bool = False
    is_unseen: bool = False


_NO_FACTS: Final = ResultFacts()


class AgentStep:
    """One call and its result, as they were written. A pattern takes 0.1 us for each character, so
    patterns are asked last, about steps that differ in nothing else.
    """

    __slots__ = ("_marks", "_reader", "arguments", "result", "tool")

    def __init__(self, reader: "StepReader", tool: str, arguments: str, result: str) -> None:
        self._reader = reader
        self._marks: bytes | None = None
        self.tool = tool
        self.arguments = arguments
        self.result = result

    @property
    def facts(self) -> ResultFacts:
        """The facts of the result; empty if there is no call."""
        return self._reader.facts(self.result) if self.tool else _NO_FACTS

    def has_call_of(self, other: "AgentStep", strictness: Strictness) -> bool:
        """Whether both calls are the same by `strictness`."""
        return self.arguments == other.arguments or self.call(strictness) == other.call(strictness)

    def has_result_of(self, other: "AgentStep") -> bool:
        """Whether both results are the same."""
        if self.result == other.result:
            return True
        return self.marks == other.marks and self.plain == other.plain

    @property
    def marks(self) -> bytes:
        """See `marks_of`."""
        if self._marks is None:
            self._marks = marks_of(self.result)
        return self._marks

    @property
    def plain(self) -> int:
        """A hash of the result without what never means anything."""
        return self._reader.plain(self.result)

    def call(self, strictness: Strictness) -> int:
        """A hash of the call by `strictness`."""
        return self._reader.call(self.tool, self.arguments, strictness)

    def __lt__(self, other: "AgentStep") -> bool:
        """An order that does not depend on what never means anything."""
        if self.tool != other.tool:
            return self.tool < other.tool
        for strictness in Strictness:
            one, another = self.call(strictness), other.call(strictness)
            if one != another:
                return one < another
        return self.plain < other.plain


class StepReader:
    """Reads the latest steps of a conversation's messages. What patterns have found is known again
    by the hash of the text, in bounded tables.
    """

    def __init__(self) -> None:
        self._calls: dict[int, int] = {}
        self._plain: dict[int, int] = {}
        self._facts: dict[int, ResultFacts] = {}

    def latest(self, messages: Sequence[Message], most: int) -> list[AgentStep]:
        """The latest `most` steps at least, in their order; those of one message are sorted, since
        parallel calls have no order. A call without a result is left out.
        """
        groups: list[list[AgentStep]] = []
        results: dict[str, str] = {}
        num = 0
        for message in reversed(messages[-MAX_LOOKED_AT:]):
            if message.role == "tool":
                results[message.tool_call_id or ""] = message.content or ""
            elif message.tool_calls:
                found = [
                    AgentStep(self, call.name, call.arguments, result)
                    for call in message.tool_calls[-MAX_LOOKED_AT:]
                    if (result := results.get(call.id)) is not None
                ]
                results = {}
                num += len(found)
                groups.append(sorted(found))
                if num >= most:
                    break
        return [step for group in reversed(groups) for step in group]

    def answers(self, messages: Sequence[Message], most: int) -> list[AgentStep]:
        """Like `latest`, for a conversation without tools: each step is what the model said and the
        reply to it.
        """
        steps: list[AgentStep] = []
        back = ""
        for message in reversed(messages[-MAX_LOOKED_AT:]):
            if message.role == "user":
                back = message.content or ""
            elif message.role == "assistant":
                steps.append(AgentStep(self, "", message.content or "", back))
                if len(steps) >= most:
                    break
        steps.reverse()
        return steps

    def call(self, tool: str, arguments: str, strictness: Strictness) -> int:
        """A hash of a call by `strictness`."""
        entry = hash((tool, arguments, strictness))
        return _known(self._calls, entry, lambda: call_hash(tool, arguments, strictness))

    def plain(self, text: str) -> int:
        """A hash of a result without what never means anything."""
        return _known(self._plain, hash(text), lambda: hash(plain_of(text)))

    def facts(self, text: str) -> ResultFacts:
        """See `ResultFacts`."""
        return _known(self._facts, hash(text), lambda: result_facts(text))


def _known(table: dict[int, _Found], entry: int, find: Callable[[], _Found]) -> _Found:
    found = table.get(entry)
    if found is None:
        if len(table) >= MAX_KNOWN:
            table.clear()
        found = table[entry] = find()
    return found


def call_hash(tool: str, arguments: str, strictness: Strictness) -> int:
    """A hash of a call. A call whose only arguments are pages and ids is compared by these, however
    strict.
    """
    try:
        value = _decode(arguments)
    except FAULTS:
        value = arguments
    for has_pages, has_ids in _LEFT_IN[strictness:]:
        compared = _canonical(value, has_pages=has_pages, has_ids=has_ids)
        if _has_content(compared):
            break
    return hash((tool, repr(compared)))


def result_facts(text: str) -> ResultFacts:
    """The facts in `text`, which is a result."""
    head, plain = text[:_HEAD_CHARS], plain_of(text)
    is_error = _ERROR.search(_NO_ERROR.sub("", head)) is not None
    return ResultFacts(
        is_error,
        not is_error and len(plain) <= _ACK_CHARS and _ACK.search(plain) is not None,
        not plain,
        not is_error and _PENDING.search(head) is not None,
        _UNSEEN.search(head) is not None,
    )


def _shortened(text: str) -> str:
    """`text`, or its two ends and its length."""
    if len(text) <= MAX_RESULT_CHARS:
        return text
    half = MAX_RESULT_CHARS // 2
    return f"{text[:half]}{len(text)}{text[-half:]}"


def marks_of(text: str) -> bytes:
    """The characters of a result that no pattern replaces: the same results have the same."""
    return _shortened(text).encode("utf-8", "surrogatepass").translate(None, _REPLACED)


def plain_of(text: str) -> str:
    """A result without what never means anything."""
    return _SPACES.sub(" ", _IDS.sub("#", _TIMES.sub("#", _shortened(text)))).strip()


def _canonical(value: Any, *, has_pages: bool, has_ids: bool) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(value, dict):
        return tuple(
            (key, _canonical(value[key], has_pages=has_pages, has_ids=has_ids))
            for key in sorted(value)
            if not (_ID_KEYS.fullmatch(key) or (not has_pages and _PAGE_KEYS.fullmatch(key)))
        )
    if isinstance(value, list):
        return tuple(_canonical(one, has_pages=has_pages, has_ids=has_ids) for one in value)
    if isinstance(value, str):
        value = _TIMES.sub("#", value)
        return _SPACES.sub(" ", value if has_ids else _IDS.sub("#", value)).strip()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "#" if 1_500_000_000 < value < 2_000_000_000_000 else value
    return value


def _has_content(value: Any) -> bool:  # noqa: ANN401 - a canonical form
    if isinstance(value, tuple):
        return any(_has_content(one[1] if _is_pair(one) else one) for one in value)
    return bool(value.strip("# ")) if isinstance(value, str) else value is not None


def _is_pair(value: Any) -> bool:  # noqa: ANN401 - a canonical form
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)
