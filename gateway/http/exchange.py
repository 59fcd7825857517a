"""An exchange: one request and its answer, as a handler sees them.

Owns what a handler may ask of a request (its sender, path, query and body) and how it answers. Must
not know what any path means, nor how bytes travel.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import final
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from gateway.api import ApiError, ChatRequest
from gateway.http.auth import Authenticator, header_of
from gateway.http.body import read_body
from gateway.http.edge import Edge
from gateway.http.error_responses import (
    JSON,
    SSE_HEADERS,
    Header,
    header,
    json_bytes,
    send_body,
    send_error,
)
from gateway.http.response_writer import EXTENSION, MAX_IGNORED_CHARS, ResponseWriter
from gateway.turn import Caller

Handler = Callable[["Exchange"], Awaitable[None]]


@final
class Exchange:
    """`edge` is the gateway, `authenticator` knows its callers, `scope` is the request in ASGI's
    words. A handler answers by the `send_` methods, which wait for the client, or by `writer`,
    which never waits; not by both.
    """

    __slots__ = ("_receive", "_send", "authenticator", "edge", "scope", "writer")

    def __init__(
        self, edge: Edge, authenticator: Authenticator, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self.edge = edge
        self.scope = scope
        self.writer: ResponseWriter = scope["extensions"][EXTENSION]
        self.authenticator = authenticator
        self._receive = receive
        self._send = send

    # The request.

    def identify(self) -> Caller:
        """The sender. Raises `ApiError` 401."""
        return self.authenticator.identify(self.scope)

    def check_admin(self) -> None:
        """Raise `ApiError` 401 or 403 unless the caller is local or holds an admin key."""
        self.authenticator.check_admin(self.scope)

    def check_page(self) -> None:
        """Like `check_admin`, for data that a web page reads."""
        self.authenticator.check_page(self.scope)

    @property
    def path(self) -> str:
        path: str = self.scope["path"]
        return path

    @property
    def host(self) -> str:
        """The client's address, empty if it is unknown."""
        host: str = (self.scope["client"] or ("", 0))[0]
        return host

    def header(self, name: bytes) -> str | None:
        """The first header of that lower-case name."""
        return header_of(self.scope, name)

    def named(self, parameter: str = "name") -> str:
        """The part of the path that matched `{parameter}` of the route."""
        value: str = self.scope["path_params"][parameter]
        return value

    @property
    def query(self) -> dict[str, str]:
        """The last value, maybe empty, of each parameter of the query. Raises `ApiError` 400."""
        try:
            text = self.scope["query_string"].decode("ascii")
        except UnicodeDecodeError as error:
            raise ApiError(400, "The query is not ASCII.") from error
        return {name: values[-1] for name, values in parse_qs(text, keep_blank_values=True).items()}

    async def body(self) -> bytes:
        """The body, of at most `[gateway] max_body_bytes`; call it once. Raises the errors of
        `read_body`.
        """
        max_bytes = self.edge.config.max_body_bytes
        return await read_body(self._receive, self.scope["headers"], max_bytes)

    # The answer.

    def add_headers(self, *headers: Header) -> None:
        """Add `headers` to the headers of the answer, also if the answer is an error."""
        self.writer.extra_headers = (*self.writer.extra_headers, *headers)

    def name_ignored(self, request: ChatRequest) -> None:
        """Tell the client in a header what it asked for and does not get."""
        if request.ignored:
            ignored = ", ".join(request.ignored)[:MAX_IGNORED_CHARS]
            self.add_headers(header(b"x-herma-ignored", ignored))

    async def send_json(self, value: object, *, status: int = 200) -> None:
        """Send `value` as JSON."""
        await send_body(self._send, status, json_bytes(value))

    async def send_body(
        self,
        status: int,
        body: bytes,
        *,
        content_type: bytes = JSON,
        headers: Iterable[Header] = (),
    ) -> None:
        """Send a whole response."""
        await send_body(self._send, status, body, content_type=content_type, headers=headers)

    async def send_error(self, error: ApiError, headers: tuple[Header, ...] = ()) -> None:
        """Send `error` as the whole response."""
        await send_error(self._send, error, headers, self.scope)

    async def send_head(self, status: int = 200, headers: Iterable[Header] = SSE_HEADERS) -> None:
        """Begin a response that comes in parts; without arguments a stream of events."""
        head = {"type": "http.response.start", "status": status, "headers": list(headers)}
        await self._send(head)

    async def send_part(self, part: bytes, *, is_last: bool = False) -> None:
        """Send the next part. Returns once the kernel has taken it."""
        await self._send({"type": "http.response.body", "body": part, "more_body": not is_last})
