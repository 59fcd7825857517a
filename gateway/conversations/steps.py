"""Steps of an agent: calls of tools with their results, compared without values that never mean
anything.

Owns the canonical form of arguments and results: the order of keys, white space, random ids, time
stamps, durations and pages do not count. Must not know what a loop is.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

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

_decode: Final = msgspec.json.Decoder().decode


class AgentStep(NamedTuple):
    """One call. `loose`, `paged` and `exact` are hashes of the call without pages and ids, without
    pages, and with both; `result` is that of its result. `is_ack`: the result says only that the
    call was carried out; `is_blank`: it says nothing at all. `is_pending`: the agent waits for
    something. `is_unseen`: the result cannot be compared.
    """

    tool: str
    loose: int
    paged: int
    exact: int
    result: int
    is_error: bool = False
    is_ack: bool = False
    is_blank: bool = False
    is_pending: bool = False
    is_unseen: bool = False


class StepReader:
    """Reads the latest steps of a conversation's messages. What was read once is known again by its
    hash, in a bounded table.
    """

    def __init__(self) -> None:
        self._calls: dict[int, tuple[int, int, int]] = {}
        self._results: dict[int, tuple[int, bool, bool, bool, bool, bool]] = {}

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
                found = list(self._of_message(message, results))
                results = {}
                num += len(found)
                groups.append(sorted(found) if len(found) > 1 else found)
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
                said = message.content or ""
                loose, paged, exact = self._call("", said)
                steps.append(AgentStep("answer", loose, paged, exact, self._result(back)[0]))
                if len(steps) >= most:
                    break
        steps.reverse()
        return steps

    def _of_message(self, message: Message, results: dict[str, str]) -> Iterator[AgentStep]:
        for call in message.tool_calls[-MAX_LOOKED_AT:]:
            text = results.get(call.id)
            if text is None:
                continue
            loose, paged, exact = self._call(call.name, call.arguments)
            yield AgentStep(call.name, loose, paged, exact, *self._result(text))

    def _call(self, name: str, arguments: str) -> tuple[int, int, int]:
        entry = hash((name, arguments))
        known = self._calls.get(entry)
        if known is None:
            if len(self._calls) >= MAX_KNOWN:
                self._calls.clear()
            known = self._calls[entry] = call_hashes(name, arguments)
        return known

    def _result(self, text: str) -> tuple[int, bool, bool, bool, bool, bool]:
        entry = hash(text)
        known = self._results.get(entry)
        if known is None:
            if len(self._results) >= MAX_KNOWN:
                self._results.clear()
            known = self._results[entry] = result_facts(text)
        return known


def call_hashes(name: str, arguments: str) -> tuple[int, int, int]:
    """Three hashes of a call, as in `AgentStep`."""
    try:
        value = _decode(arguments)
    except FAULTS:
        value = arguments
    exact = _canonical(value, has_pages=True, has_ids=True)
    paged = _canonical(value, has_pages=False, has_ids=True)
    loose = _canonical(value, has_pages=False, has_ids=False)
    # A call whose only arguments are pages and ids is compared by these.
    paged = paged if _has_content(paged) else exact
    loose = loose if _has_content(loose) else paged
    return hash((name, repr(loose))), hash((name, repr(paged))), hash((name, repr(exact)))


def result_facts(text: str) -> tuple[int, bool, bool, bool, bool, bool]:
    """The hash of a result, and the facts of a `AgentStep`."""
    head = text[:_HEAD_CHARS]
    if len(text) > MAX_RESULT_CHARS:
        half = MAX_RESULT_CHARS // 2
        text = f"{text[:half]}{len(text)}{text[-half:]}"
    plain = _SPACES.sub(" ", _IDS.sub("#", _TIMES.sub("#", text))).strip()
    is_error = _ERROR.search(_NO_ERROR.sub("", head)) is not None
    return (
        hash(plain),
        is_error,
        not is_error and len(plain) <= _ACK_CHARS and _ACK.search(plain) is not None,
        not plain,
        not is_error and _PENDING.search(head) is not None,
        _UNSEEN.search(head) is not None,
    )


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
