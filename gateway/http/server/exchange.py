"""An exchange: one request and its response, between the app and the socket.

Owns what each message does, whether it comes by ASGI's `receive` and `send` or by a
`ResponseWriter`; their order is the table of `response_state.py`. Owns the buffer of bytes that the
kernel has not taken yet, and which writes leave together. Must not know the app, nor other requests
on the connection.
"""

import socket
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import trio
from starlette.types import Message, Scope

from gateway.http.error_responses import ClientGone, Header, error_of
from gateway.http.response_writer import EXTENSION, MAX_PENDING_BYTES, Look
from gateway.http.server.parser import ParsedRequest
from gateway.http.server.response import CONTINUE, Framing
from gateway.http.server.response_state import (
    CHUNKED,
    ENDED,
    HELD,
    LAST,
    OPEN,
    RESPOND,
    TABLE,
    UNMEASURED,
    UNOPENED,
    UNSENT,
    ResponseEvent,
)
from gateway.runtime import Wakeup

_MAX_SEND_BYTES: Final = 2**20
_SENDS_PER_CHECKPOINT: Final = 16
"""A `send` that does not wait is no checkpoint, so a stream that never waits takes one now and
then.
"""

_ASGI: Final = {"version": "3.0", "spec_version": "2.4"}


class WriteBatch:
    """`with write_batch:` surrounds the processing of one engine frame. What the block writes to a
    connection leaves in one piece at its end. The block must not await; an inner block is part of
    the outer one.

    `is_open`: writes are being collected. `now`, which `with` also gives, is the time on trio's
    clock at which the block began; all events in the block use it, because asking the clock for
    every token would cost more than formatting its text. A buffer adds itself to `pending` with its
    first bytes.
    """

    __slots__ = ("_depth", "is_open", "now", "pending")

    def __init__(self) -> None:
        self.is_open = False
        self.now = 0.0
        self.pending: list[SendBuffer] = []
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
        pending, self.pending = self.pending, []
        for send_buffer in pending:
            send_buffer.flush()


write_batch: Final = WriteBatch()
"""The write batch of this process, whose connections and frames share one thread."""


class SendBuffer:
    """Bytes for one socket; `write` never waits. `on_gone` is called once, when the peer turns out
    to be gone.

    `waiting` holds the bytes that the kernel has not taken, or was not offered yet because the
    `batch` is open. It is the `bytes` of the only write, as in most batches, or else a bytearray.
    `stuck_since` is when the kernel last took bytes while more waited; None while none wait. Then a
    task of `senders` waits for the kernel.
    """

    __slots__ = (
        "_emptied",
        "_on_gone",
        "_senders",
        "_socket",
        "batch",
        "is_gone",
        "stuck_since",
        "waiting",
    )

    def __init__(
        self,
        connection: socket.socket,
        senders: trio.Nursery,
        batch: WriteBatch,
        on_gone: Callable[[], None],
    ) -> None:
        self._socket = connection
        self._senders = senders
        self.batch = batch
        self._on_gone = on_gone
        self._emptied = Wakeup()
        self.waiting: bytes | bytearray = b""
        self.stuck_since: float | None = None
        self.is_gone = False

    def write(self, data: bytes) -> None:
        """Send `data`, which is not empty, now or as soon as the kernel takes it."""
        if self.is_gone:
            return
        if self.waiting:
            # It leaves together with the bytes before it.
            if type(self.waiting) is bytes:
                self.waiting = bytearray(self.waiting)
            self.waiting += data
            return
        self.waiting = data
        if self.batch.is_open:
            self.batch.pending.append(self)
        else:
            self.flush()

    def write_all(self, data: bytes) -> None:
        """`write` a whole response at once: no later write of the batch can join it."""
        if self.waiting or self.is_gone:
            self.write(data)
        else:
            self.waiting = data
            self.flush()

    def flush(self) -> None:
        """Send the bytes that were written since the batch began."""
        data, self.waiting = self.waiting, b""
        try:
            num_sent = self._socket.send(data)
        except OSError as error:
            num_sent = self._sent_nothing(error)
        if num_sent < len(data) and not self.is_gone:
            self._send_later(data[num_sent:])

    def lose(self) -> None:
        """The peer is gone: drop the bytes that wait."""
        if self.is_gone:
            return
        self.is_gone = True
        self.waiting = b""
        self._emptied.ring()
        self._on_gone()

    def close(self) -> None:
        """Send nothing more, and drop the callback. The caller closes the socket next."""
        self.is_gone = True
        self.waiting = b""
        self._on_gone = _nothing
        if self.stuck_since is not None:
            trio.lowlevel.notify_closing(self._socket)

    async def flushed(self) -> None:
        """Return once everything is with the kernel, or the peer is gone."""
        while self.waiting:
            await self._emptied.wait()

    def _sent_nothing(self, error: OSError) -> int:
        if not isinstance(error, BlockingIOError):
            self.lose()
        return 0

    def _send_later(self, rest: bytes | bytearray) -> None:
        self.waiting = bytearray(rest)
        self.stuck_since = trio.current_time()
        self._senders.start_soon(self._send_rest)

    async def _send_rest(self) -> None:
        """Send the bytes that wait, once the kernel takes them. A failure is logged and ends this
        connection alone.
        """
        if await error_of(self._send_on) is not None:
            self.lose()

    async def _send_on(self) -> None:
        while isinstance(self.waiting, bytearray) and self.waiting:
            try:
                await trio.lowlevel.wait_writable(self._socket)
            except trio.ClosedResourceError:
                return  # cancelled by `close`
            try:
                num_sent = self._socket.send(self.waiting[:_MAX_SEND_BYTES])
            except OSError as error:
                num_sent = self._sent_nothing(error)
            if num_sent:
                del self.waiting[:num_sent]
                self.stuck_since = trio.current_time()
        self.stuck_since = None
        self._emptied.ring()


def _nothing() -> None:
    """Do nothing: the callback of a buffer that is closed."""


class PeerGone(ClientGone, OSError):
    """Raised by `send` once the peer is gone; ASGI 2.4 asks for an `OSError`."""


class BodySource(Protocol):
    """The source of the rest of a request's body: its connection."""

    async def wait_for_change(self) -> None:
        """Return once more of the request has arrived, or its peer is gone."""
        ...

    def on_body_taken(self) -> None:
        """The app has taken a part of the body, so there is room for more."""
        ...

    def give_up(self) -> None:
        """Cancel the request once the client has what was written."""
        ...


class ServerExchange:
    """ASGI's `receive` and `send`, and a `ResponseWriter`, for one request."""

    __slots__ = (
        "_body",
        "_date",
        "_framing",
        "_has_all",
        "_held",
        "_keeps_alive",
        "_look",
        "_look_at",
        "_num_sends",
        "_room",
        "_send_buffer",
        "extra_headers",
        "request",
        "state",
        "wrote_at",
    )

    def __init__(
        self,
        request: ParsedRequest,
        body: BodySource,
        send_buffer: SendBuffer,
        date: Callable[[], bytes],
        *,
        keeps_alive: bool,
    ) -> None:
        self.request = request
        self._body = body
        self._send_buffer = send_buffer
        self._date = date
        self._framing: Framing  # the framing of a response that has begun
        self._keeps_alive = keeps_alive
        self._held: tuple[int, Sequence[Header]]  # the head of a response that is `HELD`
        self._has_all = False
        self._num_sends = 0
        self._look: Look | None = None
        self._look_at = 0.0
        self._room = MAX_PENDING_BYTES
        self.extra_headers: Sequence[Header] = ()
        self.state = UNOPENED
        self.wrote_at = 0.0

    @property
    def is_cut(self) -> bool:
        """Whether the peer cannot see from the bytes that the response is not whole."""
        return self.state is UNMEASURED

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection can take another request after this one."""
        return self.state is ENDED and self.request.is_complete and self._framing.keeps_alive

    def scope(self, client: tuple[str, int] | None, server: tuple[str, int] | None) -> Scope:
        """The request as ASGI describes it."""
        request = self.request
        raw_path, path, query = request.path_and_query()
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": request.version,
            "method": request.method,
            "scheme": "http",
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "root_path": "",
            "headers": request.headers,
            "client": client,
            "server": server,
            "extensions": {EXTENSION: self},
        }

    # ASGI.

    async def receive(self) -> Message:
        """The next part of the body, then `http.disconnect` once the peer is gone. Raises
        `ApiError` when the rest of the body will never come, or not as HTTP.
        """
        request = self.request
        while True:
            if self.state is ENDED or self._send_buffer.is_gone:
                return {"type": "http.disconnect"}
            if not self._has_all:
                if request.error is not None:
                    raise request.error
                if request.parts or request.is_complete:
                    return self._next_part()
                self._invite()
            await self._body.wait_for_change()

    def whole_body(self, max_bytes: int) -> bytes | None:
        """See `ResponseWriter`."""
        request = self.request
        num_bytes = request.num_body_bytes
        if self._has_all or not request.is_complete or self._send_buffer.is_gone:
            return None
        if num_bytes > max_bytes or num_bytes != request.num_waiting_bytes:
            return None
        if not request.has_plain_body:
            return None
        self._has_all = True
        body = request.take()
        self._body.on_body_taken()
        return body

    async def send(self, message: Message) -> None:
        """Send a message of the app. Returns once the kernel has taken it."""
        kind = message["type"]
        if kind == "http.response.start":
            self.open(message["status"], message.get("headers", ()))
        elif kind == "http.response.body":
            self._put(message.get("body", b""), is_last=not message.get("more_body", False))
        else:
            raise ValueError(f"{kind} is no message of an HTTP response")
        if self._send_buffer.is_gone:
            # The connection's scope is cancelled; only a shielded task gets past the checkpoint.
            await trio.lowlevel.checkpoint()
            raise PeerGone
        self._num_sends += 1
        if self._send_buffer.waiting:
            await self._send_buffer.flushed()
        elif self._num_sends % _SENDS_PER_CHECKPOINT == 0:
            await trio.lowlevel.checkpoint()

    # ResponseWriter.

    @property
    def is_gone(self) -> bool:
        """The peer is gone, or was given up."""
        return self._send_buffer.is_gone

    def open(self, status: int, headers: Sequence[Header]) -> None:
        """See `ResponseWriter`."""
        self.state = TABLE[self.state, OPEN]
        self._held = (status, [*headers, *self.extra_headers] if self.extra_headers else headers)

    def respond(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """See `ResponseWriter`."""
        ended = TABLE[self.state, RESPOND]
        if self.extra_headers:
            headers = [*headers, *self.extra_headers]
        response = self._begin().whole(status, headers, self._date(), body)
        self.state = ended
        self._send_buffer.write_all(response)

    def forget_head(self) -> None:
        """Discard a head that has not left yet."""
        self.state = TABLE[self.state, ResponseEvent.FORGET]

    def watch(self, look: Look, at: float) -> None:
        """See `ResponseWriter`."""
        self._look, self._look_at = look, at

    def unwatch(self) -> None:
        """See `ResponseWriter`."""
        self._look = None

    def sweep(self, now: float) -> None:
        """Call the callback of `watch` if it is due."""
        if self._look is not None and now >= self._look_at and self.state is not ENDED:
            self._look_at = self._look(now)

    def write(self, chunk: bytes) -> bool:
        """Send a part, or keep it within the bound."""
        send_buffer = self._send_buffer
        batch = send_buffer.batch
        num_bytes = len(chunk)
        if send_buffer.is_gone:
            return False
        if len(send_buffer.waiting) + num_bytes > self._room and not self._has_room(num_bytes):
            return False
        if batch.is_open and self.state is CHUNKED and num_bytes:
            # The path of every token: the same as `_put`, without checks that a started chunked
            # response has passed.
            self.wrote_at = batch.now
            framed = b"%x\r\n%b\r\n" % (num_bytes, chunk)
            if send_buffer.waiting:
                send_buffer.write(framed)
            else:
                send_buffer.waiting = framed
                batch.pending.append(send_buffer)
            return True
        self.wrote_at = batch.now if batch.is_open else trio.current_time()
        self._put(chunk, is_last=False)
        return not send_buffer.is_gone

    def end(self, last: bytes = b"") -> None:
        """Send the last part."""
        self._put(last, is_last=True)

    def give_up(self) -> None:
        """See `ResponseWriter`."""
        self._body.give_up()

    def _has_room(self, num_bytes: int) -> bool:
        """Whether a part may wait although the bound is exceeded: a single part that is larger than
        the bound may, and further parts up to the bound behind it.
        """
        if num_bytes <= MAX_PENDING_BYTES or len(self._send_buffer.waiting) > MAX_PENDING_BYTES:
            return False
        self._room = 2 * MAX_PENDING_BYTES + num_bytes
        return True

    def _put(self, part: bytes, *, is_last: bool) -> None:
        after = TABLE[self.state, LAST]
        data = b""
        if self.state is HELD:
            status, headers = self._held
            data = self._begin().head(status, headers, self._date(), part if is_last else None)
        framing = self._framing
        data += framing.body(part, is_last=is_last)
        if self.state is HELD:
            del self._held
        if not is_last:
            after = TABLE[self.state, framing.leaves_as]
        self.state = after
        if data:
            self._send_buffer.write(data)

    def _begin(self) -> Framing:
        """The framing of the response. The connection is kept only if all of the request came."""
        request = self.request
        if request.hold is not None:
            request.hold.end()
        keeps_alive = self._keeps_alive and request.is_complete
        framing = self._framing = Framing(request.method, request.version, keeps_alive=keeps_alive)
        return framing

    def _next_part(self) -> Message:
        request = self.request
        part = request.take()
        self._has_all = request.is_complete
        self._body.on_body_taken()
        return {"type": "http.request", "body": part, "more_body": not self._has_all}

    def _invite(self) -> None:
        request = self.request
        if request.expects_continue and not request.num_body_bytes and self.state in UNSENT:
            self._send_buffer.write(CONTINUE)
        request.expects_continue = False
