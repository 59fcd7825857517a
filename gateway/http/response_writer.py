"""Answers that are pushed: written from where they come to be, without a task per chunk.

Owns the seam between a streamed answer and the server, and what is joined into one write. Must
not know sockets, HTTP/1.1 or what the bytes mean.

An ASGI `send` is awaited, so a chunk costs a wake-up of the request's task and a checkpoint. A
`ResponseWriter` is called synchronously, by whoever takes a worker's frame apart.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import trio

from gateway.http.responses import Header

MAX_PENDING_BYTES: Final = 2**20
"""What is kept for a client that reads slowly: about a minute of text. One part that is larger, as
an image in a provider's event, is kept beside it.
"""

EXTENSION: Final = "herma.push"
"""Its name in `scope["extensions"]`."""


Look = Callable[[float], float]
"""Called with the time on trio's clock; returns when to be called again. Must not raise."""


class ResponseWriter(Protocol):
    """The response of one request, and its body if that is here. It is pushed or sent by ASGI,
    never both.

    `respond` is all of a response that is not streamed: `open`, then `end`, in one call. `wrote_at`
    is when `write` was called last, on trio's clock. `extra_headers` join those of any response.
    """

    wrote_at: float
    extra_headers: Sequence[Header]

    def whole_body(self) -> bytes | None:
        """The request's body, or None unless all of it has arrived; it is received or taken here,
        never both.
        """
        ...

    @property
    def is_gone(self) -> bool:
        """The peer is gone, or was given up; nothing reaches it any more."""
        ...

    def respond(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """Send a whole response, whatever its size; the server tells its length. To a peer that is
        gone it is nothing.
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
        """Call nobody any more, and hold on to nobody."""
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


class Flushable(Protocol):
    """What a `WriteBatch` calls at its end: one connection with writes that wait."""

    def flush(self) -> None:
        """Send what was written since the block began."""
        ...


class WriteBatch:
    """`with write_batch:` around one engine step: what is written to a connection in it leaves in
    one piece at its end. The block must not await; an inner block is part of the outer one.

    `is_open`: writes are being collected. `now`, which the block is given, is when it began, on
    trio's clock: it is the time of all that happens in it, as a clock asked for every token would
    cost more than its text. A connection whose first bytes wait adds itself to `corked`, once.
    """

    __slots__ = ("_depth", "corked", "is_open", "now")

    def __init__(self) -> None:
        self.is_open = False
        self.now = 0.0
        self.corked: list[Flushable] = []
        self._depth = 0

    def __enter__(self) -> float:
        self._depth += 1
        if not self.is_open:
            self.now = trio.current_time()
            self.is_open = True
        return self.now

    def __exit__(self, *_exc: object) -> None:
        self._depth -= 1
        if self._depth:
            return
        self.is_open = False
        corked, self.corked = self.corked, []
        for connection in corked:
            connection.flush()


write_batch: Final = WriteBatch()
"""The one of this process: its connections and its frames share one thread."""
