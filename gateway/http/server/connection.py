"""One connection: requests in, responses out, one after the other.

Owns the task of a connection, what ends it, the one task that reads for all connections and the one
that checks their deadlines. Must not know the listener, the app or how HTTP is written.

The socket is read while the app answers, so that a client that leaves is noticed: its leaving
cancels the connection's scope, and with it the app. One task reads all sockets. A reading task per
connection would cost a second task switch and another system call per request, and a timer per
connection a cancel scope; each would cost more than all other work of a request.
"""

import selectors
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, final

import trio
from starlette.types import ASGIApp

from gateway.api import ApiError, unavailable
from gateway.http.error_responses import ClientGone, error_of, send_error
from gateway.http.server.body_budget import WAIT_S, BodyBudget, BodyHold
from gateway.http.server.connection_state import (
    ANSWERED,
    ANSWERING,
    BUSY,
    ENDING,
    REQUEST,
    TABLE,
    UNUSED,
    ConnectionEvent,
    ConnectionState,
)
from gateway.http.server.exchange import SendBuffer, ServerExchange, WriteBatch
from gateway.http.server.parser import ParsedRequest, ParserLimits, RequestParser
from gateway.http.server.read_deadlines import Deadlines, ReadDeadlines
from gateway.http.server.response_state import UNSENT
from gateway.runtime import Wakeup
from housekeeping.tick import coalesced_tick

_RECEIVE_BYTES: Final = 2**16
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Service:
    """What all connections of a server share. `date` gives the current `Date` line; `readers` is
    the task that reads; `budget` bounds the bodies that are being read; `senders` has the tasks
    that send what a kernel did not take at once.
    """

    app: ASGIApp
    limits: ParserLimits
    deadlines: Deadlines
    silent_peer_s: float
    date: Callable[[], bytes]
    batch: WriteBatch
    readers: "Readers"
    budget: BodyBudget
    senders: trio.Nursery


class ServerConnection:
    """One accepted socket. `serve` runs within `scope`, which ends the connection. `Readers` calls
    `read` meanwhile, as long as the parser has room.

    `here` is the server's own address.
    """

    __slots__ = (
        "_changed",
        "_deadlines",
        "_exchange_now",
        "_here",
        "_is_read",
        "_num_answered",
        "_parser",
        "_peer",
        "_scope",
        "_send_buffer",
        "_service",
        "_socket",
        "_state",
    )

    def __init__(
        self,
        service: Service,
        connection: socket.socket,
        peer: Address | None,
        here: Address | None,
        scope: trio.CancelScope,
    ) -> None:
        self._service = service
        self._socket = connection
        self._peer = peer
        self._here = here
        self._scope = scope
        self._parser = RequestParser(service.limits)
        self._send_buffer = SendBuffer(connection, service.senders, service.batch, self._on_gone)
        self._deadlines = ReadDeadlines(service.deadlines, trio.current_time())
        self._changed = Wakeup()
        self._is_read = False
        self._state = ConnectionState.FRESH
        self._exchange_now: ServerExchange | None = None
        self._num_answered = 0

    def read(self) -> None:
        """Receive what the peer has sent; stop reading if the parser has no room."""
        parser = self._parser
        body_of = parser.body_of
        if (body_of is not None or parser.waiting) and (
            parser.is_full or (body_of is not None and not self._may_read(body_of))
        ):
            self._pause_reading()
            return
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            parser.feed(data)
            if body_of is not None and body_of.hold is not None:
                body_of.hold.grow_to(body_of.num_body_bytes)
            if parser.body_of is not None and parser.body_of.hold is None:
                self._hold(parser.body_of)
            self._changed.ring()
        else:
            self.lose()

    def lose(self) -> None:
        """End the connection: the peer is gone, or reading failed."""
        self._pause_reading()
        self._send_buffer.lose()

    async def serve(self) -> None:
        """Answer requests until one side wants no more of them."""
        lingers = False
        self._resume_reading()
        while (request := await self._next()) is not None:
            self._state = TABLE[self._state, REQUEST]
            try:
                keeps_alive = await self._answer(request)
            finally:
                # Done also when the client left, so that the request is freed without the garbage
                # collector.
                self._exchange_now = None
                if request.hold is not None:
                    request.hold.end()
            self._num_answered += 1
            if not keeps_alive:
                lingers = not request.is_complete
                break
            self._state = TABLE[self._state, ANSWERED]
            if self._parser.waiting:
                # An answer that never waits is no checkpoint; let other tasks run.
                await trio.lowlevel.checkpoint()
        else:
            if self._parser.error is not None:
                await self._refuse(self._parser.error)
                lingers = True
        await self._end(lingers=lingers)

    @property
    def is_unused(self) -> bool:
        """Whether nothing has come yet: the peer has just connected, or will send later."""
        return self._state in UNUSED and self._parser.is_idle

    def end_soon(self) -> None:
        """Answer the requests that have arrived, read or not, then end the connection."""
        if not self._send_buffer.is_gone:
            self.read()
        self._state = TABLE[self._state, ConnectionEvent.END_SOON]
        self._changed.ring()

    def take_one(self) -> None:
        """Answer one request, then end the connection."""
        self._state = TABLE[self._state, ConnectionEvent.TAKE_ONE]

    def sweep(self, now: float) -> None:
        """End the connection of a peer that is overdue; let an open stream send its keep-alive."""
        if self._exchange_now is not None:
            self._exchange_now.sweep(now)
        stuck_since = self._send_buffer.stuck_since
        if stuck_since is not None and now - stuck_since > self._service.silent_peer_s:
            self._send_buffer.lose()
        self._give_up_waiting(now)
        phase = self._deadlines.look(
            self._parser,
            now,
            num_answered=self._num_answered,
            is_answering=self._state in BUSY,
        )
        if phase == "idle":
            self._scope.cancel()
        elif phase is not None:
            part = "head" if phase == "head" else "body"
            self._parser.fail(
                ApiError(408, f"The rest of the request's {part} did not arrive in time.")
            )
            self._changed.ring()

    def give_up(self) -> None:
        """End the connection once the client has what was written: its request is cancelled."""
        self._scope.cancel()

    async def flushed(self) -> None:
        """Return once everything is with the kernel, or the peer is gone."""
        await self._send_buffer.flushed()

    async def wait_for_change(self) -> None:
        """Return once more of a request has arrived, or its peer is gone."""
        await self._changed.wait()

    def on_body_taken(self) -> None:
        """Continue reading: the exchange has made room for more of a body."""
        if not self._is_read:
            self._resume_reading()

    def close(self) -> None:
        """The connection has ended: free the requests that were read and not answered. They are
        freed at once, because a run of the garbage collector would stop all streams for longer.
        """
        self._pause_reading()
        self._send_buffer.close()
        for request in (*self._parser.waiting, self._parser.body_of):
            if request is not None and request.hold is not None:
                request.hold.end()
        self._parser.close()

    def _hold(self, request: ParsedRequest) -> None:
        """Count a body that did not arrive together with its head."""
        peer = self._peer[0] if self._peer is not None else ""
        length = next((v for name, v in request.headers if name == b"content-length"), None)
        announced = int(length) if length is not None else None
        request.hold = BodyHold(self._service.budget, peer, self.on_body_taken, announced)
        request.hold.grow_to(request.num_body_bytes)

    def _may_read(self, request: ParsedRequest) -> bool:
        """Whether there is room for more of this body."""
        hold = request.hold
        if hold is None or hold.may_read(trio.current_time()):
            return True
        if self._service.budget.is_crowded:
            self._parser.fail(_no_room())
            self._changed.ring()
        return False

    def _give_up_waiting(self, now: float) -> None:
        body_of = self._parser.body_of
        if body_of is None or body_of.hold is None or body_of.hold.waits_since is None:
            return
        if now - body_of.hold.waits_since > WAIT_S:
            self._parser.fail(_no_room())
            self._changed.ring()

    def _resume_reading(self) -> None:
        if not self._send_buffer.is_gone and not self._parser.is_full:
            self._is_read = True
            self._service.readers.add(self._socket, self)

    def _pause_reading(self) -> None:
        if self._is_read:
            self._is_read = False
            self._service.readers.drop(self._socket)

    async def _next(self) -> ParsedRequest | None:
        parser = self._parser
        while True:
            if parser.waiting and (request := parser.take()) is not None:
                if not self._is_read:
                    self._resume_reading()
                return request
            if parser.is_over or (self._state is ENDING and parser.is_idle):
                return None
            await self._changed.wait()

    async def _answer(self, request: ParsedRequest) -> bool:
        """Answer; returns whether another request can follow."""
        service = self._service
        keeps_alive = request.keeps_alive and self._state is ANSWERING
        exchange = self._exchange_now = ServerExchange(
            request, self, self._send_buffer, service.date, keeps_alive=keeps_alive
        )
        scope = exchange.scope(self._peer, self._here)
        try:
            error = await error_of(service.app, scope, exchange.receive, exchange.send)
            if error is None and exchange.state in UNSENT:
                error = ApiError(500, "The gateway has no answer to this request.")
            if error is not None and exchange.state in UNSENT:
                exchange.forget_head()
                await send_error(exchange.send, error, scope=scope)
        except ClientGone:
            return False
        finally:
            if exchange.is_cut:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        if self._send_buffer.waiting:
            await self._send_buffer.flushed()
        return exchange.keeps_alive

    async def _refuse(self, error: ApiError) -> None:
        """Answer bytes that are not a valid request."""
        request = ParsedRequest("GET", b"/", [], "1.1", keeps_alive=False)
        exchange = ServerExchange(
            request, self, self._send_buffer, self._service.date, keeps_alive=False
        )
        await send_error(exchange.send, error)

    async def _end(self, *, lingers: bool) -> None:
        self._state = TABLE[self._state, ConnectionEvent.CLOSE]
        await self._send_buffer.flushed()
        if lingers:
            self._parser.is_over = True
            self.on_body_taken()
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
            await trio.sleep(self._service.deadlines.linger_s)

    def _on_gone(self) -> None:
        self._changed.ring()
        self._scope.cancel()


def _no_room() -> ApiError:
    return unavailable("Too many large requests are being read; send this one again soon.", 5)


class ConnectionReader(Protocol):
    """A connection, as the reading task sees it."""

    def read(self) -> None:
        """Receive once. Called again while the socket is readable. Must not wait, nor add or drop
        other readers.
        """
        ...

    def lose(self) -> None:
        """End the connection, as reading it failed."""
        ...


@final
class Readers:
    """The connections that are being read, and the task that reads them. Only the connection's own
    task wakes for what has arrived.
    """

    def __init__(self) -> None:
        self._selector: Final = selectors.DefaultSelector()
        self._at: ConnectionReader | None = None

    def close(self) -> None:
        self._selector.close()

    def add(self, connection: socket.socket, reader: ConnectionReader) -> None:
        """Read `connection` until `drop`, which must be called before the socket is closed."""
        self._selector.register(connection, selectors.EVENT_READ, reader)

    def drop(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)

    async def run(self) -> None:
        """Read all connections until cancelled. A failure is logged and ends one connection."""
        descriptor = self._selector.fileno()
        while True:
            await trio.lowlevel.wait_readable(descriptor)
            if await error_of(self._read_all) is not None and self._at is not None:
                self._at.lose()

    async def _read_all(self) -> None:
        for key, _ in self._selector.select(0):
            self._at = key.data
            key.data.read()


class Connections:
    """The open connections of a server."""

    def __init__(self, service: Service, here: Address | None) -> None:
        self._service = service
        self._here = here
        self._open: set[ServerConnection] = set()
        self._is_ending = False
        self._draining: set[ServerConnection] = set()
        self._drained: trio.Event | None = None

    async def handle(self, accepted: socket.socket, peer: Address | None) -> None:
        """Serve one connection to its end."""
        with accepted:
            scope = trio.CancelScope()
            connection = ServerConnection(self._service, accepted, peer, self._here, scope)
            self._open.add(connection)
            if self._is_ending:
                connection.end_soon()
            elif self._drained is not None:
                connection.take_one()
            try:
                with scope, suppress(ClientGone):
                    await connection.serve()
                await connection.flushed()
            finally:
                self._open.discard(connection)
                connection.close()
                self._leave(connection)

    async def sweep(self) -> None:
        """Check the deadlines of all connections until cancelled. A failure is logged and ends one
        connection.
        """
        sweep_s = min(self._service.deadlines.sweep_s, self._service.silent_peer_s / 4)
        while True:
            await coalesced_tick(sweep_s)
            now = trio.current_time()
            for connection in tuple(self._open):
                if await error_of(_sweep, connection, now) is not None:
                    connection.lose()

    async def drain(self) -> None:
        """End the connections that are in use now, each after the requests that it has sent; return
        once they are gone. Meanwhile those that are accepted, or have been a moment ago, answer one
        request each: a peer that has just connected would find its request refused.
        """
        self._drained = trio.Event()
        self._draining = {one for one in self._open if not one.is_unused}
        for connection in tuple(self._open):
            if connection in self._draining:
                connection.end_soon()
            else:
                connection.take_one()
        if self._draining:
            await self._drained.wait()

    def _leave(self, connection: ServerConnection) -> None:
        if connection in self._draining:
            self._draining.discard(connection)
            if not self._draining and self._drained is not None:
                self._drained.set()

    def end_soon(self) -> None:
        """Call `end_soon` of all connections, and of those that are accepted later."""
        self._is_ending = True
        for connection in tuple(self._open):
            connection.end_soon()


async def _sweep(connection: ServerConnection, now: float) -> None:
    connection.sweep(now)
