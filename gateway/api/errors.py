"""Errors that clients receive.

    HermaError
    └── ApiError    an HTTP status and the error object of the OpenAI API

Owns the error object, its JSON and the texts that several parts raise. Must not know how a
response is sent. Clients act on words in these texts: Hermes Agent compresses its history if a text
mentions the context length, and gives up if it mentions billing. So only the overflow error names
the window, and no text quotes a provider's secrets.
"""

from typing import Final

import msgspec

from protocol.errors import HermaError
from protocol.redaction import CUT

_DEFAULT_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
}
"""The type of an error by its status. All other statuses have OpenAI's `server_error`: Continue, pi
and pydantic-ai recognise a failure in a stream, where there is no status, by that word.
"""

MAX_RETRY_AFTER_S: Final = 60
"""The bound on Retry-After. With a longer time anthropic for Python and codex wait in silence, for
hours if the header says so; Claude Code and openai for Node report an error.
"""
RESTART_S: Final = 5
"""Retry-After while the gateway is stopping: about the time of a restart."""
_PASSING: Final = frozenset({408, 409, 425, 429})
_LIMITS: Final = frozenset({"spending_limit_reached", "rate_limit_exceeded"})

_encode = msgspec.json.Encoder().encode


class ErrorObject(msgspec.Struct):
    """The error: `message` for people; `code` and `param` (the field) for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct):
    """The body of every answer that is not a success."""

    error: ErrorObject


OVERFLOW: Final = "context_length_exceeded"
NO_THREADS: Final = "thread_unsupported_request"
"""The SDK's own word for a server that holds no conversations: it sends all messages then."""
_CUT_SHORT: Final = "upstream_connection_lost"


MAX_MESSAGE_CHARS: Final = 4000
MAX_PARAM_CHARS: Final = 400
"""An error quotes what the client sent, which may have megabytes."""


def _bounded(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}{CUT}"


class ApiError(HermaError):
    """A request that ends in an error object instead of an answer.

    `status` is the HTTP status while the head is withheld; afterwards the same `body()` goes out
    as an SSE event. `retry_after_s` is whole seconds, since clients ignore fractions; `wait_s` is
    what clients are told of it. `type` follows from the status unless `error_type` says otherwise.
    `overflow` is the window and the tokens of a prompt that exceeds it, if both are known.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        error_type: str | None = None,
        retry_after_s: int | None = None,
        overflow: tuple[int, int] | None = None,
    ) -> None:
        self.message = _bounded(message, MAX_MESSAGE_CHARS)
        super().__init__(self.message)
        self.status = status
        self.code = code
        self.param = None if param is None else _bounded(param, MAX_PARAM_CHARS)
        self.type = error_type or _DEFAULT_TYPES.get(status, "server_error")
        self.retry_after_s = retry_after_s
        self.overflow = overflow

    def __repr__(self) -> str:
        return (
            f"ApiError({self.status}, {self.message!r}, code={self.code!r}, param={self.param!r})"
        )

    @property
    def is_lasting(self) -> bool:
        """Whether the limit ends later than any client waits. Then the error's text says when the
        limit ends, and the response tells clients not to ask again.
        """
        return self.code in _LIMITS and (self.retry_after_s or 0) > MAX_RETRY_AFTER_S

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed if it is sent again soon."""
        return not self.is_lasting and (self.status >= 500 or self.status in _PASSING)

    @property
    def wait_s(self) -> int | None:
        """The `Retry-After` of the response, in seconds; None without one."""
        if self.retry_after_s is None or self.is_lasting:
            return None
        return min(self.retry_after_s, MAX_RETRY_AFTER_S)

    def body(self) -> bytes:
        """An `ErrorBody` as JSON."""
        return _encode(ErrorBody(ErrorObject(self.message, self.type, self.param, self.code)))


def invalid(param: str | None, message: str, *, code: str | None = "invalid_value") -> ApiError:
    """400: the field `param` cannot be used; `message` says why."""
    return ApiError(400, message, code=code, param=param)


def context_length_exceeded(
    context_length: int, prompt_tokens: int, param: str = "messages", *, is_least: bool = False
) -> ApiError:
    """400: the prompt alone, in `param`, is larger than the window (both in tokens). `is_least`:
    the prompt has at least this many tokens.

    OpenAI clients know this wording, and Hermes Agent and qwen-code parse the window from it.
    """
    at_least = "at least " if is_least else ""
    message = (
        f"This model's maximum context length is {context_length} tokens. However, your {param} "
        f"resulted in {at_least}{prompt_tokens} tokens. Please reduce the length of the {param}."
    )
    return overflow_error(message, param=param, overflow=(context_length, prompt_tokens))


def overflow_error(
    message: str, *, param: str | None = None, overflow: tuple[int, int] | None = None
) -> ApiError:
    """400: the prompt is larger than the window, which `message` says. The code ends the text too:
    langchain looks for it in the words of the exception, where openai 3 leaves the body out.
    """
    if OVERFLOW not in message:
        words = message if message.endswith(CUT) else message.removesuffix(".")
        message = f"{words} ({OVERFLOW})."
    return ApiError(400, message, code=OVERFLOW, param=param, overflow=overflow)


def model_not_found(model: str) -> ApiError:
    """404: no model has that name; clients stop retrying on this code."""
    message = f"The model `{model}` does not exist here; GET /v1/models lists those that do."
    return ApiError(404, message, code="model_not_found", param="model")


def connection_lost(why: str = "") -> ApiError:
    """502: the answer broke off and cannot be resumed; clients retry on exactly these words. `why`
    follows them, if the server said it.
    """
    message = "upstream connection lost"
    message = f"{message}: {why}" if why else message
    return ApiError(502, message, code=_CUT_SHORT)


def poisoned_request(deaths: int) -> ApiError:
    """422: every engine that ran it died. Clients do not retry on this status."""
    message = (
        f"{deaths} engines died while they worked on this request, so it is not tried again; the "
        "gateway's log has the causes."
    )
    return ApiError(422, message, code="poisoned_request")


def unavailable(message: str, retry_after_s: int) -> ApiError:
    """503: nothing can serve now; retry after `retry_after_s`."""
    return ApiError(503, message, code="unavailable", retry_after_s=retry_after_s)


def stopping(*, has_begun: bool = False) -> ApiError:
    """503: the gateway stops; another one, or the next, may serve. `has_begun`: the answer is cut,
    in the words on which clients retry.
    """
    if has_begun:
        return connection_lost("the gateway is stopping")
    return unavailable("The gateway is stopping.", RESTART_S)


def as_unsent(error: ApiError, *, is_stopping: bool) -> ApiError:
    """The error for a client to which nothing of the answer was sent. If the gateway cuts the
    answer because it stops, the error says that the gateway did not take the request.
    """
    return stopping() if is_stopping and error.code == _CUT_SHORT else error


def as_event(error: ApiError) -> ApiError:
    """The error in a stream, whose status was a success. Where the same request may succeed, the
    text says so in OpenAI's words, on which pi, opencode and OpenClaw ask again; a lost connection
    has words of its own.
    """
    if not error.may_pass or error.code == _CUT_SHORT:
        return error
    return ApiError(
        error.status,
        f"{error.message} You can retry your request.",
        code=error.code,
        param=error.param,
        error_type=error.type,
        retry_after_s=error.retry_after_s,
    )


def as_payment_required(error: ApiError) -> ApiError:
    """The 402 of a limit that lasts, for a client that asks again after any 429. Its type is
    another too: opencode asks again after a body with the words "rate limit".
    """
    return ApiError(402, error.message, code=error.code)


def busy(message: str, retry_after_s: int) -> ApiError:
    """429: the queue is full; retry after `retry_after_s`."""
    return ApiError(429, message, code="busy", retry_after_s=retry_after_s)


def spending_limit_reached(reasons: str, retry_after_s: int) -> ApiError:
    """429: a spending limit is reached. The words must not mean an empty account or a full window
    to Hermes Agent, so that it waits or goes to its own fallback.
    """
    return ApiError(429, reasons, code="spending_limit_reached", retry_after_s=retry_after_s)


def output_cap_required(reasons: str) -> ApiError:
    """400: the request needs a cap on its output, or a smaller cap; with it the request can be sent
    again at once.
    """
    return ApiError(400, reasons, code="output_cap_required")


def field_without_price(reasons: str) -> ApiError:
    """400: a field of the request has no price; without the field the request can be sent again at
    once.
    """
    return ApiError(400, reasons, code="field_without_price")


def request_too_costly(reasons: str) -> ApiError:
    """400: the request could cost more than a whole day's or month's limit. Not a 429, because
    waiting does not help.
    """
    return ApiError(400, reasons, code="request_too_costly")
