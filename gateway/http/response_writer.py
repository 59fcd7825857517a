"""The response writer: how an answer is written without waking a task per chunk.

Owns the interface between an answer and the server. Must not know sockets, HTTP/1.1 or what the
bytes mean.

An ASGI `send` is awaited, so each chunk would cost a wake-up of the request's task and a
checkpoint. Instead the link's frame callback calls a `ResponseWriter`, whose methods do not wait.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from gateway.http.error_responses import Header

MAX_PENDING_BYTES: Final = 2**20
"""Bytes that are kept for a client that reads slowly: about a minute of text. A single part that is
larger, such as an image in a provider's event, is kept in addition.
"""

EXTENSION: Final = "herma.response_writer"
"""The writer's name in `scope["extensions"]`."""


MAX_IGNORED_CHARS: Final = 1024
"""The bound on the header that names what the client does not get."""

Look = Callable[[float], float]
"""A callback that gets the time on trio's clock and returns when to be called again. Must not
raise.
"""


class ResponseWriter(Protocol):
    """The response of one request, and the request's body if it has arrived. A response is sent
    either by these methods or by ASGI, never by both.

    `wrote_at` is when `write` was called last, on trio's clock. `extra_headers` are added to the
    headers of any response.
    """

    wrote_at: float
    extra_headers: Sequence[Header]

    def whole_body(self, max_bytes: int) -> bytes | None:
        """The request's body if all of it has arrived, uncompressed and of at most `max_bytes`;
        else None, and `read_body` waits for it or raises the error. Call one of the two only once.
        """
        ...

    @property
    def is_gone(self) -> bool:
        """The peer is gone, or its connection was given up; writes have no effect."""
        ...

    def respond(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """Send a whole response, whatever its size; the server adds its length. Does nothing if the
        peer is gone.
        """
        ...

    def open(self, status: int, headers: Sequence[Header]) -> None:
        """Begin the response. The head is kept back until the first `write`, or `end`."""
        ...

    def watch(self, look: Look, at: float) -> None:
        """Call `look` at `at`, or up to a second later, unless the response has ended. A task with
        a timer per stream would cost as much as 30 of its tokens.
        """
        ...

    def unwatch(self) -> None:
        """Cancel the callback and drop its reference."""
        ...

    def write(self, chunk: bytes) -> bool:
        """Send `chunk`, or keep what the socket does not take. Never waits. Returns False if the
        peer is gone or more than `MAX_PENDING_BYTES` would wait; then the chunk is dropped.
        """
        ...

    def end(self, last: bytes = b"") -> None:
        """Send `last`, whatever its size, and the end. The server cuts off a response that has not
        ended when its handler returns, so that the client notices.
        """
        ...

    def give_up(self) -> None:
        """Cancel the handler, whose client does not read. What was written is still sent, as long
        as the client takes any of it.
        """
        ...
