"""Errors -> what the client gets.

Owns the one table from the error tree to HTTP statuses and the one place where an unexpected
exception of a request ends. Must not know routes.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVarTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.api import ApiError
from gateway.http.body import ClientGone
from gateway.http.reply import Header, header, send_body
from protocol.errors import ConfigError, HermaError, LinkError, WireError

_log = logging.getLogger(__name__)

_STATUS: tuple[tuple[type[HermaError], int, str], ...] = (
    (LinkError, 503, "The worker of this request cannot be reached now."),
    (WireError, 502, "The worker of this request answered in a way that cannot be read."),
    (ConfigError, 500, "The gateway's configuration does not allow this request."),
    (HermaError, 500, "The gateway could not answer this request; its log has the cause."),
)
_LINK_RETRY_AFTER_S = 1

Arguments = TypeVarTuple("Arguments")


async def error_of(
    work: Callable[[*Arguments], Awaitable[None]], *arguments: *Arguments
) -> ApiError | None:
    """Do `work` with `arguments`; the error that a client is to be told, or None.

    Unexpected exceptions are logged once, here, and say nothing of the inside to the client.
    Raises `ClientGone` and cancellation as they are.
    """
    try:
        await work(*arguments)
    except ApiError as error:
        return error
    except ClientGone:
        raise
    except Exception as error:  # noqa: BLE001 - the edge: one request fails, the others live
        return api_error_of(error)
    return None


def api_error_of(error: Exception) -> ApiError:
    """The error that a client is told for any exception; logs what was not meant for clients."""
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


async def send_error(send: Send, error: ApiError, headers: tuple[Header, ...] = ()) -> None:
    """Send `error` as the whole response."""
    await send_body(send, error.status, error.body(), headers=error_headers(error, headers))


def error_headers(error: ApiError, headers: tuple[Header, ...] = ()) -> tuple[Header, ...]:
    """`headers` and what else stands above the body of `error`."""
    if error.retry_after_s is not None:
        headers = (*headers, header(b"retry-after", error.retry_after_s))
    if error.status == 401:
        headers = (*headers, header(b"www-authenticate", "Bearer"))
    return headers


class ErrorEdge:
    """Pure ASGI: an exception of the inner app becomes a JSON error, or ends the connection when
    the head is already out. Our own server does the same by itself.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head_sent = False

        async def note_head(message: Message) -> None:
            nonlocal head_sent
            head_sent = True
            await send(message)

        try:
            error = await error_of(self._app, scope, receive, note_head)
        except ClientGone:
            return
        if error is not None and not head_sent:
            await send_error(send, error)


def _first_leaf(group: ExceptionGroup[ApiError]) -> ApiError:
    for error in group.exceptions:
        return _first_leaf(error) if isinstance(error, ExceptionGroup) else error
    raise AssertionError("an exception group is never empty")
