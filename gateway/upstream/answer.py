"""The outcomes of a request to a provider.

Owns the complete answer, what a body must contain to be one, and the failures. Must not know HTTP
clients.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gateway.api import Usage
from gateway.upstream.answer_end import BROKEN, CALLS, CUT_ENDS, FILTERED, STOPPED, End, end_of
from gateway.upstream.call_parts import NAMELESS, CallIds, CallParts, object_in
from gateway.upstream.choice_forms import give_message, give_text
from gateway.upstream.error_words import ReportedError, error_in, quoted, reported_in, words_in
from gateway.upstream.forwarded_headers import Header
from gateway.upstream.kept_calls import CallsMade, reasoning_in
from gateway.upstream.mended_json import mended
from gateway.upstream.sse import says_end, tells_error
from gateway.upstream.stream_end import ends_by_calls
from gateway.upstream.usage import usage_in
from protocol.errors import HermaError
from protocol.reading import FAULTS, objects_in, read_json


class ProviderUnavailable(HermaError):
    """The provider sent no part of an answer, so another provider can be asked. `status` is that of
    its response, if there was one, or what its words mean. `may_be_charged` is False if the request
    did not reach the provider or was refused. `was_kept`: a kept-alive connection ended before the
    response, so the request may succeed on a new one. `words` are the server's explanation, if it
    gave one; `inner` is its explanation about our account, which no client reads. `filtered` is its
    answer if its own filter ended the answer before the first content: an answer in one piece, or
    whole events. That is for the client if no other provider answers.
    """

    def __init__(
        self,
        text: str,
        *,
        status: int | None = None,
        retry_after_s: int | None = None,
        may_be_charged: bool = True,
        was_kept: bool = False,
        words: str = "",
        inner: str = "",
        filtered: "ProviderAnswer | bytes | None" = None,
    ) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after_s = retry_after_s
        self.may_be_charged = may_be_charged
        self.was_kept = was_kept
        self.words = words
        self.inner = inner
        self.filtered = filtered

    @property
    def with_words(self) -> str:
        """The failure with the server's own words behind it, if it sent any."""
        text, words = str(self), self.words
        return f"{text}: {words}" if words and words not in text else text


class ProviderCut(HermaError):
    """The answer broke off after a part of it was passed on to the client. `words` are the server's
    explanation, if it gave one.
    """

    def __init__(self, text: str, *, words: str = "") -> None:
        super().__init__(text)
        self.words = words


class AnswerFiltered(HermaError):
    """The whole answer was passed on; a filter of the server ended it."""


class ProviderAnswer(msgspec.Struct, frozen=True):
    """A complete answer: a 200, or a 4xx that is about the request itself. `usage` and `made` are
    what a 200 reports and the calls of its first choice.
    """

    status: int
    body: bytes
    headers: tuple[Header, ...] = ()
    usage: Usage | None = None
    made: CallsMade | None = None


_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


class NotAnAnswer(HermaError):
    """A response body is not an answer. The text may be shown to clients. `reported` is the error
    in it.
    """

    def __init__(
        self, text: str, *, words: str = "", reported: ReportedError | None = None
    ) -> None:
        self.reported = reported or ReportedError(words)
        super().__init__(f"{text}: {self.reported.words}" if self.reported.words else text)


class CheckedAnswer(msgspec.Struct, frozen=True):
    """The body of an answer for the client, its usage and the calls of its first choice;
    `is_filtered`: a filter of the server ended it.
    """

    body: bytes
    is_filtered: bool = False
    usage: Usage | None = None
    made: CallsMade | None = None


def check_answer(status: int, body: bytes, raw: Mapping[str, Any] | None = None) -> CheckedAnswer:
    """The answer to the chat `raw`, or with None to a raw prompt. What a client could not read is
    rewritten: calls, contents in parts, and texts in the place of messages.

    Raises `NotAnAnswer` for a web page, whatever its status, and for a 200 that is not an answer or
    not a whole one. Agents read the message of each choice, which may be empty: a model can end at
    once. A choice that does not say why it ended is whole, as its body is.
    """
    try:
        if not body.isascii():
            body.decode()  # the decoder does not check skipped strings
        answer = _decode(body)
    except FAULTS as error:
        if (readable := mended(body)) is None:
            raise NotAnAnswer("sent no JSON") from error
        return check_answer(status, readable, raw)
    if not isinstance(answer, dict):
        raise _no_object(answer)
    if status != 200:
        return CheckedAnswer(body)
    choices = answer.get("choices")
    choices = choices if isinstance(choices, list) else []
    if tells_error(answer.get("error")):
        raise _told(answer["error"], is_late=_says_something(choices))
    is_changed = sum(map(give_text if raw is None else give_message, choices)) > 0
    is_changed |= answer.pop("error", None) is not None
    if not choices or not all(map(_has_content, choices)):
        if not choices and (found := error_in(400, answer)) is not None:
            raise NotAnAnswer(_INSTEAD, words=quoted(found.message))
        raise NotAnAnswer("sent an answer without a message")
    ids, is_filtered = CallIds(raw), False
    for choice in choices:
        end, has_changed = _checked(choice, ids)
        is_filtered |= end is FILTERED
        is_changed |= has_changed
    shown = _encode(answer) if is_changed else body
    return CheckedAnswer(shown, is_filtered, _counted(answer, choices), _calls_made(choices[0]))


_SAID: Final = (
    "content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call", "audio"
)  # fmt: skip
_INSTEAD: Final = "sent an error instead of an answer"
_PAGES: Final = (b"<!doctype html", b"<html")
_EMBEDDINGS: Final = "/embeddings"
_EXCUSES: Final = frozenset(
    {
        "code", "detail", "error", "error_code", "error_message", "errors", "message", "msg",
        "param", "path", "request_id", "status", "status_code", "success", "timestamp", "type",
    }
)  # fmt: skip
"""Fields of bodies that say nothing but what went wrong."""


def check_other_answer(path: str, kind: bytes, body: bytes, *, is_whole: bool) -> None:
    """Look at a body of the media type `kind` with status 200 to a request at `path` that is no
    chat: at its beginning, unless it `is_whole`. Raises `NotAnAnswer` for a web page, for an error,
    for nothing or half of it, and for embeddings that are none.
    """
    if kind.startswith(b"text/html") or body[:64].lstrip().lower().startswith(_PAGES):
        raise NotAnAnswer("sent a web page instead of an answer")
    if is_whole and not body and not kind.startswith(b"text/"):
        raise NotAnAnswer("sent an empty answer")
    if not is_whole or not kind.startswith(b"application/json"):
        return
    try:
        answer = _decode(mended(body) or b"")
    except FAULTS as error:
        raise NotAnAnswer("sent no JSON") from error
    if isinstance(answer, dict) and _says_failure(answer):
        raise _told(answer.get("error") or answer)
    if path == _EMBEDDINGS and isinstance(answer, dict) and not answer.get("data", True):
        raise NotAnAnswer("sent no embeddings")


def _says_failure(answer: dict[str, Any]) -> bool:
    """Whether an object says that the request failed, and nothing else."""
    base = answer.get("base_resp")
    if isinstance(base, dict) and base.get("status_code"):  # the form of MiniMax
        return True
    if tells_error(answer.get("error")) or answer.get("object") == "error":
        return True
    if not answer.keys() <= _EXCUSES:
        return False
    codes = (_status_in(answer.get(name)) for name in ("code", "status", "status_code"))
    return "detail" in answer or "errors" in answer or any(code >= 400 for code in codes)


def _status_in(value: object) -> int:
    """The HTTP status in a field; 0 if it has none."""
    text = str(value)
    return int(text) if text.isascii() and text.isdecimal() and len(text) == 3 else 0


def _calls_made(first: Mapping[str, Any]) -> CallsMade | None:
    """The calls of the first choice in a checked answer; None if it has none."""
    message = first.get("message")
    given = message.get("tool_calls") if isinstance(message, dict) else None
    if not isinstance(given, list) or not given:
        return None
    calls = CallParts()
    calls.take([{**call, "index": at} for at, call in enumerate(given) if isinstance(call, dict)])
    reasoning, field = reasoning_in([message])
    return CallsMade(tuple(calls.begun), reasoning, field)


def _no_object(answer: object) -> NotAnAnswer:
    """The failure for a body that is no object. Google's errors are in a list."""
    error = next((one.get("error") for one in objects_in(answer)), None)
    return _told(error) if tells_error(error) else NotAnAnswer("sent no JSON object")


def _told(value: object, *, is_late: bool = False) -> NotAnAnswer:
    """The failure for an error in an answer with status 200, of which a part was made if it
    `is_late`.
    """
    reported = reported_in(value)
    text = "sent an error behind a part of its answer" if is_late else _INSTEAD
    return NotAnAnswer(text, reported=reported.late() if is_late else reported)


def _says_something(choices: list[Any]) -> bool:
    """Whether a choice says anything, be it a thought or a call."""
    said = [choice.get("message") for choice in objects_in(choices)]
    texts = any(choice.get("text") for choice in objects_in(choices))
    return texts or any(one.get(name) for one in objects_in(said) for name in _SAID)


def _has_content(choice: object) -> bool:
    return isinstance(choice, dict) and (
        isinstance(choice.get("message"), dict) or isinstance(choice.get("text"), str)
    )


def _counted(answer: dict[str, Any], choices: list[dict[str, Any]]) -> Usage | None:
    """The usage of an answer; None if it counts no token of a chat that says something. A raw
    completion may repeat its prompt alone.
    """
    usage = usage_in(answer)
    if usage is None or usage.completion_tokens:
        return usage
    messages = objects_in([choice.get("message") for choice in choices])
    return None if any(one.get(name) for one in messages for name in _SAID) else usage


def _checked(choice: dict[str, Any], ids: CallIds) -> tuple[End, bool]:
    """How a choice has ended, and whether its calls were rewritten. Raises `NotAnAnswer`."""
    reason, is_changed = choice.get("finish_reason"), False
    if not says_end(reason) and reason is not None:
        reason, is_changed = None, True
        choice["finish_reason"] = None
    end = end_of(reason) if isinstance(reason, str) else STOPPED
    if end is BROKEN:
        text = f"ended its answer with finish_reason {str(reason)[:64]!r}"
        raise NotAnAnswer(text, words=words_in(choice.get("error")))
    message = choice.get("message")
    sent = message.get("tool_calls") if isinstance(message, dict) else None
    given = [sent] if isinstance(sent, dict) else sent
    if isinstance(sent, str):
        given = read_json(sent)
    if not isinstance(message, dict) or not isinstance(given, list) or not given:
        if end is CALLS and isinstance(message, dict) and not message.get("function_call"):
            if not (message.get("content") or message.get("refusal")):
                raise NotAnAnswer("said that it calls a tool, and called none")
            choice["finish_reason"], is_changed = "stop", True
        return end, is_changed
    return end, _checked_calls(choice, message, given, end, CallParts(ids)) or is_changed


def _checked_calls(
    choice: dict[str, Any], message: dict[str, Any], given: list[Any], end: End, calls: CallParts
) -> bool:
    """Take the calls `given` in the message of a choice, and return whether they, or the reason of
    its end, were rewritten. Raises `NotAnAnswer`.
    """
    # In a whole answer each entry is a call, even if entries share an index.
    found = calls.take([{**c, "index": at} for at, c in enumerate(given) if isinstance(c, dict)])
    found += [part for part in calls.end() if part.id is not None]
    if end not in CUT_ENDS and (flaw := calls.flaw()):
        raise NotAnAnswer(flaw)
    if end is CALLS and not found:
        raise NotAnAnswer(NAMELESS)
    is_changed = end is STOPPED and ends_by_calls(choice, calls)
    written = [
        {
            "id": part.id,
            "type": "function",
            "function": {
                "name": part.name,
                "arguments": part.arguments
                if end in CUT_ENDS and part.number == len(found) - 1
                else object_in(part.arguments) or part.arguments,
            },
            **part.extra,
        }
        for part in found
    ]
    if (
        message["tool_calls"] is given
        and len(written) == len(given)
        and all(map(_is_same, given, written))
    ):
        return is_changed
    message["tool_calls"] = written
    return True


def _is_same(given: object, written: dict[str, Any]) -> bool:
    """Whether a client reads the same in `given` as in `written`."""
    if not isinstance(given, dict) or given.get("id") != written["id"]:
        return False
    function = given.get("function")
    return isinstance(function, dict) and all(
        function.get(name) == value for name, value in written["function"].items()
    )
