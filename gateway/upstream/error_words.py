"""The words of servers that refuse or fail.

Owns where servers put the text of an error, and by which words and codes they say that a prompt is
larger than their window, or that they refuse the operator's account. Clients compress their history
on the first, so it must reach them in the words that they know; the second does not concern
clients, and another server may answer. Must not know requests, or which server said what.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from gateway.api import OVERFLOW, ApiError, overflow_error
from gateway.upstream.mended_json import mended
from gateway.upstream.retry_after import retry_after_in
from gateway.upstream.sse import data_of, split_events
from protocol.reading import FAULTS, read_object
from protocol.redaction import CUT

MAX_WORDS: Final = 2000
MAX_QUOTED: Final = 300
"""Characters of a text that is quoted within another one."""

_REQUEST_STATUSES: Final = frozenset({400, 413, 415, 422})
"""Statuses that are about the request itself, as codes of errors in answers with status 200."""

_OURS_STATUSES: Final = frozenset({401, 402, 403})
_NO_CREDIT: Final = 402
_LIMIT: Final = 429
_BROKEN: Final = 500
_CODES: Final = ("code", "type", "reason")
_LONG_TEXT: Final = "string_above_max_length"
"""OpenAI's code for one message that is too long alone, and for the id of a call."""
_NAMED: Final = re.compile(r"\.(?:id|call_id|tool_call_id|name)\b")
_OVERFLOW_CODES: Final = frozenset(
    {
        OVERFLOW,
        "context_window_exceeded",  # Anthropic's models behind proxies
        "exceed_context_size_error",  # llama.cpp
        "model_max_prompt_tokens_exceeded",  # GitHub's models
        _LONG_TEXT,
        "contextwindowexceedederror",  # LiteLLM
        "context_limit_exceeded",
        "max_context_length_exceeded",
    }
)
_N: Final = r"(\d[\d,_]*+)"
_WINDOW: Final = (
    r"(?:maximum |max |available )?(?:context|model|prompt|sequence)[ -]?"
    r"(?:length|size|window|limit)"
)
_TOKENS: Final = r"(?P<n>\d[\d,_]*+)"
_LONGER: Final = r"(?:long|larg|great)er"
_GAP: Final = r".{0,200}?"
_WORDS: Final = r"[^.]{0,100}?"
"""The text between two numbers is bounded, because a server may send 2,000 characters that match
the beginning.
"""
_ASKED: Final = r"(?:requested|resulted in|contains|has|total of)\D{0,40}?"
_BOTH: Final = tuple(
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        # The window first, then the tokens: OpenAI, vLLM, OpenRouter, DeepSeek, Mistral, xAI.
        rf"max\w* (?:context|prompt|model|sequence) length (?:is|of) {_N}{_GAP}{_ASKED}{_TOKENS}",
        # SGLang with a completion: "... context length of 4096 tokens. You requested a total of".
        rf"(?:context|model) length of {_N} tokens{_GAP}total of {_TOKENS}",
    )
)
_BOTH_TURNED: Final = tuple(
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        # The tokens first, then the window: Anthropic, llama.cpp, SGLang, vLLM, Gemini.
        rf"prompt is too long: {_TOKENS} tokens > {_N}",
        rf"request \({_TOKENS} tokens\) exceeds the available context size \({_N}",
        rf"(?:input|prompt){_WORDS}{_TOKENS}(?: tokens)?\)? is {_LONGER} than {_WORDS}{_N}",
        rf"input length \({_TOKENS} tokens\) exceeds {_WORDS}\({_N}",
        rf"prompt \([^)]{{0,100}}?length:? {_TOKENS}\) is (?:too long|longer than){_WORDS}{_N}",
        rf"token count (?:of )?\(?{_TOKENS}\)? exceeds {_WORDS}{_N}",
        rf"prompt contains {_TOKENS} tokens{_GAP}{_N} maximum context length",
    )
)
_SIGNS: Final = tuple(
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        r"prompt is too long",
        r"prompt too long",
        r"input is too long for requested model",
        r"input length and [`']?max_tokens[`']? exceed context limit",
        rf"(?:exceed\w*|longer than|larger than|greater than|too long|over)\b.{{0,60}}{_WINDOW}",
        rf"{_WINDOW}\b.{{0,40}}exceeded",
        r"(?:maximum|max) (?:context|prompt|model) length (?:is|of) \d",
        r"exceeded model token limit",
        r"context window (?:exceeds|exceeded|is full)",
        r"range of input length should be",
        r"inputs?`? (?:tokens )?.{0,30}must (?:be <=|have less than) \d",
        r"input token count.{0,40}exceeds",
        r"exceeds the maximum allowed length",
        r"\bContextWindowExceededError\b",
        r"too large for model with \d+ maximum context",
    )
)
UNSEEN: Final = "unsupported_content_part"
_UNSEEN: Final = re.compile(
    # llama.cpp; then LM Studio and others.
    r"\b(?:image|audio|video) input is not supported"
    r"|\bdoes(?: not|n't) support (?:image|audio|video|vision|multimodal)",
    re.IGNORECASE,
)
_LIMITS_RATE: Final = re.compile(
    r"rate limit|per (?:minute|min|day|hour)|\b[TR]P[MD]\b", re.IGNORECASE
)

_OURS_CODES: Final = frozenset(
    {
        "account_deactivated",
        "api_key_invalid",  # Google, in the details of an error
        "arrearage",  # Alibaba's
        "billing_hard_limit_reached",
        "billing_not_active",
        "insufficient_balance",
        "insufficient_quota",
        "invalid_api_key",
        "invalid_model",
        "model_decommissioned",  # Groq's
        "model_not_exist",
        "model_not_found",
        "model_not_supported",  # GitHub's
        "rate_limit_exceeded",  # Groq's, with a 413 for more tokens than a minute has
        "tool_use_failed",  # Groq's: its model wrote no call
        "unknown_model",  # GitHub's
    }
)
_NO_JSON: Final = object()

_LIMIT_CODES: Final = frozenset(
    {
        "rate_limit_exceeded",
        "rate_limit_error",  # Anthropic's
        "rate_limit_reached_error",  # Moonshot's
        "rate_limited",
        "resource_exhausted",  # Google's
        "throttlingexception",  # Amazon's
        "too_many_requests",
    }
)
"""Codes of errors in answers with status 200 that mean a 429."""
_THROTTLES: Final = "throttling."
"""Begins Alibaba's codes of the same meaning."""
_OURS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # Google and xAI say 400 to a key that they do not know, Anthropic to an account without
        # credit, DeepSeek and OpenRouter to the name of a model.
        r"\bapi[ _-]?key (?:is )?(?:not valid|invalid|incorrect|expired|not found|missing)",
        r"\b(?:invalid|incorrect|expired|missing) (?:api|access)[ _-]?(?:key|token)",
        r"\bbalance is too low|\bbilling (?:hard limit|is not|must be)|\benable billing",
        r"\b(?:insufficient|out of|not enough) (?:account )?(?:balance|credits?|funds|quota)",
        r"\bexceeded your current quota",
        r"\b(?:account|organi[sz]ation) (?:is|has been) (?:overdue|suspended|deactivated|disabled)",
        r"\borgani[sz]ation must be verified|\baccount is in good standing|\bin arrears\b",
        r"\blocation is not supported|\bnot available in your (?:country|region)",
        r"\bmodel not (?:exist|found)|\bis not a valid model\b|\binvalid model (?:id|name)\b",
        r"\bthe model \S{1,128} (?:does not exist|has been decommissioned|was not found)",
        r"\bno endpoints found\b|\bwith on-demand throughput\b",
    )
)
"""Words about an account or a model's name. No client can help any of them: the name, too, is the
operator's.
"""


def error_of(status: int, body: bytes) -> ApiError | None:
    """The error that `body` tells, with `status`; None if it holds no words. A prompt that is too
    long is a 400 with the code `context_length_exceeded`, whatever the status was, and a picture
    that a model cannot see, where the server calls that a failure of its own, one with `UNSEEN`.
    """
    value = _value_in(body)
    return _of_text(status, body) if value is _NO_JSON else error_in(status, value)


def error_in(status: int, value: object) -> ApiError | None:
    """Like `error_of`, for a decoded body or event."""
    message = _message(value)
    if not message:
        return None
    fields = list(_objects(value))
    codes = [text for one in fields for key in _CODES if (text := _word(one.get(key)))]
    if _is_overflow(message, codes):
        return _overflow(message, fields)
    if status >= _BROKEN and _UNSEEN.search(message):
        return ApiError(400, message, code=UNSEEN)
    own = next((one for one in fields if _word(one.get("code")) or _word(one.get("param"))), {})
    return ApiError(
        status,
        message,
        code=_word(own.get("code")) or None,
        param=_word(own.get("param")) or _param(value),
    )


class ReportedError(NamedTuple):
    """What an error in an answer with status 200 says: its `words`, or as `inner` those about our
    account there, the `status` that it names, the error as `refusal` if it refuses the request, and
    for how long it asks to be left alone if it is a limit. An error that `is_late` follows a part
    of the answer, so the request was not refused.
    """

    words: str = ""
    inner: str = ""
    status: int | None = None
    refusal: ApiError | None = None
    retry_after_s: int | None = None
    is_late: bool = False

    def late(self) -> "ReportedError":
        """The same, of an error behind a part of the answer."""
        return self._replace(refusal=None, is_late=True)


def reported_in(error: object) -> ReportedError:
    """The error that an error object in an answer or event with status 200 reports."""
    found, status = error_in(400, error), _status_in(error)
    if found is None:
        return ReportedError(status=status)
    if status == _LIMIT or _is_limit(error):
        pause_s = retry_after_in(msgspec.json.encode(error))
        if pause_s is None and (inner := without_credit(error)) is not None:
            return ReportedError(inner=inner, status=_NO_CREDIT)
        return ReportedError(quoted(found.message), status=_LIMIT, retry_after_s=pause_s)
    if found.code != OVERFLOW and ((inner := ours_in(error)) or status in _OURS_STATUSES):
        return ReportedError(inner=inner or quoted(found.message), status=status)
    refuses = found.code == OVERFLOW or status in _REQUEST_STATUSES
    return ReportedError(quoted(found.message), "", status, found if refuses else None)


def ours_of(status: int, body: bytes) -> str | None:
    """Like `ours_in`, for the body of a refusal, which may be a text."""
    value = _value_in(body)
    if value is not _NO_JSON:
        return ours_in(value)
    error = _of_text(status, body)
    return None if error is None else ours_in(error.message)


def without_credit_in(body: bytes) -> str | None:
    """Like `without_credit`, for the body of a 429."""
    return without_credit(_value_in(body))


def ours_in(value: object) -> str | None:
    """The words of a refusal, in one line, if it is about the operator's account at the server, or
    about what the operator calls a model there: another server may answer. None for any other.
    """
    message = _message(value)
    codes = [_word(one.get(key)).lower() for one in _objects(value) for key in _CODES]
    is_ours = not _OURS_CODES.isdisjoint(codes) or any(sign.search(message) for sign in _OURS)
    return quoted(message) if is_ours and not _is_overflow(message, codes) else None


def without_credit(value: object) -> str | None:
    """The words of a 429 that waiting does not cure, such as an account without credit; None for
    any other. An error with the code of a rate limit is about that limit, whatever its words say.
    """
    return None if _is_limit(value) else ours_in(value)


def _is_limit(error: object) -> bool:
    names = (*_CODES, "status", "__type")
    codes = [_word(one.get(name)).lower() for one in _objects(error) for name in names]
    return any(code in _LIMIT_CODES or code.startswith(_THROTTLES) for code in codes)


def words_in(error: object) -> str:
    """The words of an error object, in one line for the middle of another text; may be empty."""
    found = error_in(400, error)
    return "" if found is None else quoted(found.message)


def _status_in(error: object) -> int | None:
    """The status that an error object names, as of a response that fails."""
    for one in _objects({"error": error}):
        for key in ("code", "status", "status_code"):
            code = one.get(key)
            if isinstance(code, str) and code.isdecimal():
                code = int(code[:9])
            if isinstance(code, int) and 400 <= code < 600:
                return code
    return None


def has_form(body: bytes) -> bool:
    """Whether `body` has an error object as OpenAI's API has it, with a text."""
    error = (read_object(body) or {}).get("error")
    return isinstance(error, dict) and bool(_word(error.get("message")))


def quoted(message: str) -> str:
    """`message` in one line, for the middle of another text."""
    line = " ".join(message.split())
    return _bounded(line if line.endswith(CUT) else line.rstrip("."), MAX_QUOTED)


def _bounded(text: str, most: int) -> str:
    """`text`, marked where it is cut: its secrets are looked for later."""
    return text if len(text) <= most else f"{text[:most]}{CUT}"


def _is_overflow(message: str, codes: list[str]) -> bool:
    found = _OVERFLOW_CODES.intersection(map(str.lower, codes))
    if found and not (found == {_LONG_TEXT} and _NAMED.search(message)):
        return True
    if _LIMITS_RATE.search(message):
        return False
    return any(sign.search(message) for sign in (*_SIGNS, *_BOTH, *_BOTH_TURNED))


def _overflow(message: str, fields: list[dict[str, Any]]) -> ApiError:
    for one in fields:  # llama.cpp's
        window, tokens = one.get("n_ctx"), one.get("n_prompt_tokens")
        if isinstance(window, int) and isinstance(tokens, int):
            return _known_overflow(message, window, tokens)
    for pattern in (*_BOTH, *_BOTH_TURNED):
        if (match := pattern.search(message)) is not None:
            return _known_overflow(
                message, _number(match[1 if pattern in _BOTH else 2]), _number(match["n"])
            )
    return overflow_error(message)


def _known_overflow(message: str, window: int, tokens: int) -> ApiError:
    """The server's words with both numbers, unless the prompt alone would fit: then the words ask
    for fewer tokens of output.
    """
    return overflow_error(message, overflow=(window, tokens) if tokens > window else None)


def _number(text: str) -> int:
    return int(text.replace(",", "").replace("_", ""))


def _message(value: object, depth: int = 0) -> str:
    """The text of an error. Known places are `error.message`, `error`, `message`, `detail` (a text,
    an object, or FastAPI's list of problems), `errors` and `msg`; MiniMax has `status_msg` beside a
    `status_code` that is not 0.
    """
    if isinstance(value, str):
        return _bounded(value.strip(), MAX_WORDS)
    if isinstance(value, list):
        found = [text for one in value[:8] if (text := _problem(one, depth))]
        return _bounded("; ".join(found), MAX_WORDS)
    if not isinstance(value, dict) or depth > 4:
        return ""
    for key in ("error", "message", "detail", "errors", "msg", "error_message", "error_msg"):
        if text := _message(value.get(key), depth + 1):
            return text
    if value.get("status_code"):
        return _message(value.get("status_msg"), depth + 1)
    if (text := _message(value.get("base_resp"), depth + 1)) or len(value) != 1:
        return text
    named, inner = next(iter(value.items()))
    is_exception = named.endswith("Exception") and isinstance(inner, dict)  # Amazon's
    return _message(inner.get("message"), depth + 1) if is_exception else ""


def _problem(value: object, depth: int) -> str:
    """One problem of a list, with the place that it names."""
    text = _message(value, depth + 1)
    place = _place(value)
    return f"{place}: {text}" if text and place else text


def _place(value: object) -> str:
    loc = value.get("loc") if isinstance(value, dict) else None
    parts = [str(part) for part in loc] if isinstance(loc, list) else []
    return ".".join(parts[1:] if parts[:1] == ["body"] and len(parts) > 1 else parts)


def _param(value: object) -> str | None:
    detail = value.get("detail") if isinstance(value, dict) else None
    first = detail[0] if isinstance(detail, list) and detail else None
    return _place(first) or None


def _objects(value: object, depth: int = 0) -> Iterator[dict[str, Any]]:
    """The objects that may hold a code, the inner ones first."""
    if isinstance(value, list):
        for one in value[:8]:
            yield from _objects(one, depth + 1)
    if not isinstance(value, dict) or depth > 4:
        return
    for key in ("error", "detail", "details", "errors"):
        yield from _objects(value.get(key), depth + 1)
    yield value


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""


def _value_in(body: bytes) -> object:
    """The JSON value of a body, which may be an event if a stream was asked for; else
    `_NO_JSON`.
    """
    is_event = body.startswith((b"data:", b"event:"))
    data = data_of(split_events(body + b"\n\n")[0]) if is_event else body
    try:
        return msgspec.json.decode(data)
    except FAULTS:
        readable = mended(data)
        return _NO_JSON if readable is None else msgspec.json.decode(readable)


def _of_text(status: int, body: bytes) -> ApiError | None:
    """The error in plain text. A web page has no words for clients."""
    try:
        text = body.decode().strip()
    except UnicodeDecodeError:
        return None
    if not text or text.startswith(("<", "{", "[")):
        return None
    return error_in(status, {"message": text})
