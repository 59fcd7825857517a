"""Whole responses: JSON, errors, and how exceptions become errors.

Owns the only table from exceptions to HTTP statuses, and the only place that catches an unexpected
exception of a request. Must not know routes.
"""

import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVarTuple

import msgspec
from starlette.types import Scope, Send

from gateway.api import MAX_RETRY_AFTER_S, ApiError, message_error
from protocol.errors import ConfigError, HermaError, LinkError, WireError

Header = tuple[bytes, bytes]

_PART_BYTES: Final = 2**20
JSON: Final = b"application/json"
JSON_TYPE: Final[Header] = (b"content-type", JSON)
SSE_HEADERS: Final[tuple[Header, ...]] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
"""The head of every event stream; the last one tells nginx not to buffer it."""

_log = logging.getLogger(__name__)

REQUEST_ID: Final = b"x-request-id"
RETRY_AFTER: Final = b"retry-after"

PRINTABLE: Final = bytes(byte if 0x20 <= byte <= 0x7E else ord("?") for byte in range(256))
_OTHER_APIS: Final = ("/completions", "/responses", "/embeddings")
"""Ends of paths whose errors are OpenAI's, whatever headers a client sends everywhere."""
_encode = msgspec.json.Encoder().encode

_STATUS: tuple[tuple[type[HermaError], int, str], ...] = (
    (LinkError, 503, "The worker of this request cannot be reached now."),
    (WireError, 502, "The worker of this request answered in a way that cannot be read."),
    (ConfigError, 500, "The gateway's configuration does not allow this request."),
    (HermaError, 500, "The gateway could not answer this request; its log has the cause."),
)
_LINK_RETRY_AFTER_S = 1

Arguments = TypeVarTuple("Arguments")


class ClientGone(Exception):
    """The client has left; nothing can be sent to it."""


async def send_body(
    send: Send,
    status: int,
    body: bytes,
    *,
    content_type: bytes = JSON,
    headers: Iterable[Header] = (),
) -> None:
    """Send a whole response; the server leaves the body out for HEAD."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", content_type),
                (b"content-length", str(len(body)).encode()),
                *headers,
            ],
        }
    )
    start = 0
    while len(body) - start > _PART_BYTES:
        # Copying 30 MB into what waits for the kernel would take 30 ms at once.
        part = body[start : start + _PART_BYTES]
        await send({"type": "http.response.body", "body": part, "more_body": True})
        start += _PART_BYTES
    await send({"type": "http.response.body", "body": body[start:], "more_body": False})


def json_bytes(value: object) -> bytes:
    """`value` as JSON. Call it in a thread for a large value."""
    return _encode(value)


def header(name: bytes, value: object) -> Header:
    """A header whose value cannot break the response: printable ASCII only."""
    return name, str(value).encode("ascii", "replace").translate(PRINTABLE)


def passed_on(
    headers: Iterable[Header], request_id: str, *, has_limits: bool = False
) -> list[Header]:
    """The `headers` of another server, made printable so that they cannot break the response, and
    our id of the request if they have none. With `has_limits` the response has our own rate limits,
    and the other server's are left out.
    """
    given = [
        (name, _shortened(value) if name == RETRY_AFTER else value.translate(PRINTABLE))
        for name, value in headers
        if not (has_limits and name.startswith(b"x-ratelimit-"))
    ]
    if REQUEST_ID not in dict(given):
        given.append(header(REQUEST_ID, request_id))
    return given


def _shortened(retry_after: bytes) -> bytes:
    """Another server's Retry-After, bounded as ours is. A date may be too far away, so it is
    replaced by the bound.
    """
    seconds = retry_after.strip()
    is_short = seconds.isdigit() and len(seconds) < 4 and int(seconds) <= MAX_RETRY_AFTER_S
    return seconds if is_short else b"%d" % MAX_RETRY_AFTER_S


async def send_error(
    send: Send, error: ApiError, headers: tuple[Header, ...] = (), scope: Scope | None = None
) -> None:
    """Send `error` as the whole response, in Anthropic's shape if the request in `scope` is one of
    its clients'.
    """
    body, headers = error.body(), error_headers(error, headers)
    if scope is not None and _is_message(scope):
        request_id = f"req_{secrets.token_hex(12)}"
        body = message_error(error, request_id)
        headers = (*headers, header(b"request-id", request_id))
    await send_body(send, error.status, body, headers=headers)


def _is_message(scope: Scope) -> bool:
    """Whether a request, perhaps to a path that is not served, is one of Anthropic's API."""
    names = dict(scope["headers"])
    return b"anthropic-version" in names and not scope["path"].endswith(_OTHER_APIS)


def error_headers(error: ApiError, headers: tuple[Header, ...] = ()) -> tuple[Header, ...]:
    """`headers` and those that `error` adds."""
    if error.wait_s is not None:
        headers = (*headers, header(b"retry-after", error.wait_s))
    if error.is_lasting:
        headers = (*headers, (b"x-should-retry", b"false"))
    if error.status == 401:
        headers = (*headers, header(b"www-authenticate", "Bearer"))
    return headers


async def error_of(
    work: Callable[[*Arguments], Awaitable[None]], *arguments: *Arguments
) -> ApiError | None:
    """Run `work` with `arguments`. Returns the error that the client gets, or None.

    Unexpected exceptions are logged here, and their text is not shown to the client. Raises
    `ClientGone` and `Cancelled` unchanged.
    """
    try:
        await work(*arguments)
    except ApiError as error:
        # Without the frames, which may hold the error in turn: a body of 28 MB would then live
        # until the garbage collector runs.
        return error.with_traceback(None)
    except ClientGone:
        raise
    except Exception as error:  # noqa: BLE001 - the edge: one request fails, the others live
        return api_error_of(error)
    return None


def api_error_of(error: Exception) -> ApiError:
    """The error that the client gets for `error`, which is logged unless it is an `ApiError`."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ExceptionGroup):
        meant, rest = error.split(ApiError)
        if rest is None and meant is not None:
            return _first_leaf(meant)
    _log.error("a request or its connection failed", exc_info=error)
    for kind, status, text in _STATUS:
        if isinstance(error, kind):
            retry_after_s = _LINK_RETRY_AFTER_S if status == 503 else None
            return ApiError(status, text, retry_after_s=retry_after_s)
    return ApiError(500, "The gateway failed on this request; its log has the cause.")


def _first_leaf(group: ExceptionGroup[ApiError]) -> ApiError:
    for error in group.exceptions:
        return _first_leaf(error) if isinstance(error, ExceptionGroup) else error
    raise AssertionError("an exception group is never empty")
