"""How an answer reaches the server without a task per chunk.

Owns the seam between an answer and the server. Must not know sockets, HTTP/1.1 or what the bytes
mean.

An ASGI `send` is awaited, so a chunk costs a wake-up of the request's task and a checkpoint. The
link's frame callback calls a `ResponseWriter` synchronously instead.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from gateway.http.responses import Header

MAX_PENDING_BYTES: Final = 2**20
"""What is kept for a client that reads slowly: about a minute of text. One part that is larger, as
an image in a provider's event, is kept beside it.
"""

EXTENSION: Final = "herma.response_writer"
"""Its name in `scope["extensions"]`."""


Look = Callable[[float], float]
"""Called with the time on trio's clock; returns when to be called again. Must not raise."""


class ResponseWriter(Protocol):
    """The response of one request, and its body if that has arrived. A response is written here or
    sent by ASGI, never both.

    `wrote_at` is when `write` was called last, on trio's clock. `extra_headers` join those of any
    response.
    """

    wrote_at: float
    extra_headers: Sequence[Header]

    def whole_body(self, max_bytes: int) -> bytes | None:
        """The request's body, or None unless all of it has arrived, plain and of at most
        `max_bytes`: `read_body` waits for it, or raises the error. It is received or taken here,
        never both.
        """
        ...

    @property
    def is_gone(self) -> bool:
        """The peer is gone, or was given up; nothing reaches it any more."""
        ...

    def respond(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """Send a whole response, whatever its size; the server adds its length. Does nothing if the
        peer is gone.
        """
        ...

    def open(self, status: int, headers: Sequence[Header]) -> None:
        """Begin. The head is kept back until the first `write`, or `end`."""
        ...

    def watch(self, look: Look, at: float) -> None:
        """Have `look` called at `at`, or up to a second later, as long as the response has not
        ended. A task and a timer for every stream cost as much as 30 tokens of it.
        """
        ...

    def unwatch(self) -> None:
        """Cancel the callback and drop its reference."""
        ...

    def write(self, chunk: bytes) -> bool:
        """Send `chunk` now if the socket takes it, or keep it, never waiting. False if the peer is
        gone or if more than `MAX_PENDING_BYTES` would wait: then nothing of it is kept.
        """
        ...

    def end(self, last: bytes = b"") -> None:
        """Send `last`, whatever its size, and the end; nothing may follow. A response that has not
        ended when its handler returns is cut off, so that its client notices.
        """
        ...

    async def flushed(self) -> None:
        """Return once everything is with the kernel, or the peer is gone."""
        ...
