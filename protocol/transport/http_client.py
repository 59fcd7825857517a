"""A streaming HTTP/1.1 client, for engines, providers and benchmarks.

Owns the connections to one origin: their number, which ones are kept alive, TLS, and one exchange
at a time on each. It never repeats a request: only the caller knows whether that is safe. Must not
know proxies, redirects, cookies, or what bodies mean.
"""

from __future__ import annotations

import errno
import math
import os
import select
import socket
import ssl
from collections.abc import AsyncIterable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from typing import Final, NamedTuple, final
from urllib.parse import urlsplit

import certifi
import msgspec
import trio

from protocol.errors import (
    ConnectError,
    ConnectTimeout,
    HttpError,
    KeptConnectionClosed,
    LocalProtocolError,
    ReadError,
    ReadTimeout,
    RemoteProtocolError,
    WriteTimeout,
)
from protocol.transport.http_body import Body, ConnectionBody
from protocol.transport.http_response import Header, ResponseParser

MAX_CONNECTIONS: Final = 512
MAX_IDLE: Final = 64
KEEPALIVE_S: Final = 5.0
"""Servers close idle connections too, some after five seconds."""
FRESH_S: Final = 1.0
"""How long no kept connection is used behind one that the server ended in the same moment."""
IDLE_END_S: Final = 5.0
"""How long behind a request the end of a kept connection may be that of an idle one, which the
server ended before the request came. A later one had the request: it may be running, and be billed.
"""

_READ_BYTES: Final = 2**16
"""More than a TLS record, so that a read leaves no decrypted bytes inside the TLS layer."""

_PORTS: Final = {"http": 80, "https": 443}
_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
_NO_ROOM_S: Final = 0.05
_IDLE_FOR_LONG: Final = 408
"""The status with which some balancers end idle connections. On a kept connection it may have been
sent before the request came.
"""
_WITHOUT_BODY: Final = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})


class HttpResponse(msgspec.Struct, frozen=True):
    """Header names are in lower case. `body` is decompressed if it was gzip or deflate; reading it
    raises `ReadError` or `RemoteProtocolError`.
    """

    status: int
    headers: list[Header]
    body: Body


@final
class HttpClient:
    """Sends requests to the origin of `url`, over at most `max_connections` connections, of which
    `max_idle` are kept alive for `keepalive_s`. `uds` is the path of a Unix socket to connect to
    instead of the host. `tls` is for https, by default `trusting_context()`.

    Raises `ValueError` if `url` is not an http or https address.
    """

    def __init__(
        self,
        url: str,
        *,
        uds: str | None = None,
        tls: ssl.SSLContext | None = None,
        max_connections: int = MAX_CONNECTIONS,
        max_idle: int = MAX_IDLE,
        keepalive_s: float = KEEPALIVE_S,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in _PORTS or not parts.hostname:
            raise ValueError(f"{url!r} is not an http or https address")
        host = parts.hostname
        self._host = host if host.isascii() else host.encode("idna").decode()
        self._port = parts.port or _PORTS[parts.scheme]
        self._uds = uds
        self._tls = None
        if parts.scheme == "https":
            self._tls = tls or trusting_context()
        name = f"[{self._host}]" if ":" in self._host else self._host
        is_usual = self._port == _PORTS[parts.scheme]
        self._host_header = (b"host", (name if is_usual else f"{name}:{self._port}").encode())
        self._max_connections = max_connections
        self._max_idle = max_idle
        self._keepalive_s = keepalive_s
        self._free = trio.Semaphore(max_connections, max_value=max_connections)
        # The longest idle first. A new connection is made only when there is none.
        self._idle: list[ClientConnection] = []
        self._fresh_until = -math.inf
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<HttpClient {self.num_busy} busy, {self.num_idle} idle>"

    @property
    def num_busy(self) -> int:
        """Connections that serve a request, or are being made for one."""
        return self._max_connections - self._free.value

    @property
    def num_idle(self) -> int:
        """Connections that are kept alive."""
        return len(self._idle)

    def close(self) -> None:
        """Close idle connections now, and the others when their exchanges end."""
        self._is_closed = True
        self.close_idle()

    def exchange(
        self,
        method: str,
        target: str,
        headers: Iterable[Header] = (),
        body: bytes | AsyncIterable[bytes] = b"",
        *,
        num_bytes: int | None = None,
        connect_s: float = math.inf,
        write_s: float = math.inf,
        read_s: float = math.inf,
    ) -> AbstractAsyncContextManager[HttpResponse]:
        """A context that sends a request and gives the response as soon as its head has arrived. On
        leaving it, the connection is kept if the body was read to its end, else closed.

        `connect_s` bounds the wait for a free connection, and once more the connecting; `write_s`
        bounds sending the request (each piece of an iterable `body`), `read_s` the time until the
        whole head is there: a head that dribbles is no answer. An iterable body is sent in chunks
        unless `num_bytes` gives its length. Entering raises subclasses of
        `protocol.errors.HttpError`.
        """
        if isinstance(body, bytes):
            num_bytes = len(body)
        head = _head(method, target, [self._host_header, *headers], num_bytes)
        limits = _Limits(connect_s, write_s, read_s)
        is_chunked = num_bytes is None
        return _Exchange(self, ResponseParser(method), head, body, limits, is_chunked=is_chunked)

    async def acquire(self, connect_s: float) -> ClientConnection | None:
        """Wait for one of `max_connections` slots. Returns an idle connection, or None if one has
        to be made. Call `release` in either case.
        """
        try:
            self._free.acquire_nowait()
        except trio.WouldBlock:
            with _within(connect_s, ConnectTimeout, "no connection was free"):
                await self._free.acquire()
        return self._take_idle()

    def release(self, connection: ClientConnection | None, *, can_reuse: bool) -> None:
        """Keep or close `connection`, and free its slot."""
        if connection is not None:
            self._take_back(connection, can_reuse=can_reuse)
        self._free.release()

    async def connect(self, connect_s: float) -> ClientConnection:
        """A new connection. While this process has no descriptor left, which is no failure of the
        server, one is waited for.
        """
        with _within(connect_s, ConnectTimeout, "the connection was not established"):
            while True:
                try:
                    return await self._connect()
                except _NoDescriptorError:
                    await trio.sleep(_NO_ROOM_S)

    def distrust_idle(self) -> None:
        """A kept connection had ended when it was used again: the other kept connections have
        probably ended too.
        """
        self._fresh_until = trio.current_time() + FRESH_S
        self.close_idle()

    def close_idle(self) -> None:
        """Close the connections that are kept alive."""
        while self._idle:
            self._idle.pop().close()

    async def _connect(self) -> ClientConnection:
        try:
            if self._uds is not None:
                stream = await trio.open_unix_socket(self._uds)
            else:
                stream = await trio.open_tcp_stream(self._host, self._port)
            # A bare socket: trio's stream tries each read before it waits, one failing call more.
            connection = ClientConnection(socket.socket(fileno=stream.socket.detach()))
            if self._tls is not None:
                await connection.start_tls(self._tls, self._host)
        except (OSError, UnicodeError) as error:
            kind = _NoDescriptorError if _lacks_descriptor(error) else ConnectError
            raise kind(_why_no_connection(error)) from error
        return connection

    def _take_idle(self) -> ClientConnection | None:
        now = trio.current_time()
        while self._idle:
            connection = self._idle.pop()
            if self._fresh_until <= now < connection.expires_at and not connection.is_readable():
                connection.taken_at = now
                return connection
            connection.close()
        return None

    def _take_back(self, connection: ClientConnection, *, can_reuse: bool) -> None:
        if not can_reuse or self._is_closed:
            connection.close()
            return
        now = trio.current_time()
        connection.expires_at = now + self._keepalive_s
        self._idle.append(connection)
        while self._idle and (self._idle[0].expires_at <= now or len(self._idle) > self._max_idle):
            self._idle.pop(0).close()


def trusting_context() -> ssl.SSLContext:
    """A context that verifies servers by SSL_CERT_FILE or SSL_CERT_DIR if set, else by certifi's
    authorities. Making it takes 20 ms.
    """
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if file or not folder:
        context = ssl.create_default_context(cafile=file or certifi.where())
    else:
        context = ssl.create_default_context(capath=folder)
    context.set_alpn_protocols(["http/1.1"])
    return context


class _NoDescriptorError(ConnectError):
    """This process, or its host, may open no further file now."""


class ClientConnection:
    """A connected socket. Only `close` closes it."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self.expires_at = math.inf
        self.taken_at = -math.inf
        """When a request took it last that found it kept alive."""

    async def start_tls(self, context: ssl.SSLContext, server_name: str) -> None:
        """Do the TLS handshake. Raises `OSError`; a failure or cancellation closes the socket."""
        with ExitStack() as on_failure:
            on_failure.callback(self.close)
            secured = context.wrap_socket(
                self._socket, server_hostname=server_name, do_handshake_on_connect=False
            )
            self._socket = secured
            is_done = False
            while not is_done:
                try:
                    secured.do_handshake()
                    is_done = True
                except ssl.SSLWantReadError:
                    await trio.lowlevel.wait_readable(secured)
                except ssl.SSLWantWriteError:
                    await trio.lowlevel.wait_writable(secured)
            on_failure.pop_all()

    async def send_request(
        self, head: bytes, body: bytes | AsyncIterable[bytes], write_s: float, *, is_chunked: bool
    ) -> None:
        """Send the whole request. A connection that breaks is not an error yet, because the server
        may have answered before it has read everything.
        """
        try:
            if isinstance(body, bytes):
                await self._send(head + body, write_s)
                return
            await self._send(head, write_s)
            async for piece in body:
                if piece:
                    framed = b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece
                    await self._send(framed, write_s)
            if is_chunked:
                await self._send(b"0\r\n\r\n", write_s)
        except OSError:
            return

    async def read_head(self, parser: ResponseParser, read_s: float) -> None:
        """Feed `parser` until it has the head."""
        if read_s == math.inf:  # the caller sets the bound: a scope costs as much as 40 calls
            await self._read_head(parser)
            return
        with trio.CancelScope(deadline=trio.current_time() + read_s) as waiting:
            await self._read_head(parser)
        if waiting.cancelled_caught:
            raise ReadTimeout(f"the server sent no whole head in {read_s:g} s")

    async def _read_head(self, parser: ResponseParser) -> None:
        while not parser.has_head:
            parser.feed(await self.receive())
            if not parser.has_head:
                parser.take()  # raises the error of a wrong head

    def fileno(self) -> int:
        """The socket's descriptor, to wait for it."""
        return self._socket.fileno()

    def receive_now(self, num_bytes: int) -> bytes | None:
        """At most `num_bytes` that have arrived; b"" at the end, None if none have arrived. Raises
        `ReadError`.
        """
        try:
            return self._socket.recv(num_bytes)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except OSError as error:
            raise ReadError(str(error)) from error

    async def receive(self) -> bytes:
        """Wait for the next bytes; b"" at the end. The end of TLS is not checked, because HTTP's
        framing shows whether something is missing. Raises `ReadError`.
        """
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                return self._socket.recv(_READ_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError):
                continue
            except ssl.SSLWantWriteError:
                await trio.lowlevel.wait_writable(self._socket)
            except OSError as error:
                raise ReadError(str(error)) from error

    async def _send(self, data: bytes, write_s: float) -> None:
        try:
            num_sent = self._socket.send(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            num_sent = 0
        if num_sent == len(data):
            return  # the usual case, without a deadline
        left = memoryview(data)[num_sent:]
        with _within(write_s, WriteTimeout, "the server did not take the request"):
            while left:
                try:
                    left = left[self._socket.send(left) :]
                except (BlockingIOError, ssl.SSLWantWriteError):
                    await trio.lowlevel.wait_writable(self._socket)
                except ssl.SSLWantReadError:
                    await trio.lowlevel.wait_readable(self._socket)

    def is_readable(self) -> bool:
        """Whether an idle connection has ended, or has bytes that no request asked for."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def may_have_ended_idle(self) -> bool:
        """Whether a connection that has just ended may have done so before its request came."""
        return trio.current_time() - self.taken_at <= IDLE_END_S

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class _Limits(NamedTuple):
    """Limits in seconds; see `HttpClient.exchange`."""

    connect_s: float
    write_s: float
    read_s: float


@final
class _Exchange(AbstractAsyncContextManager[HttpResponse]):
    """One request and its response. It is a class because a context made from a generator costs as
    much as ten calls.
    """

    def __init__(
        self,
        client: HttpClient,
        parser: ResponseParser,
        head: bytes,
        body: bytes | AsyncIterable[bytes],
        limits: _Limits,
        *,
        is_chunked: bool,
    ) -> None:
        self._client = client
        self._parser = parser
        self._head = head
        self._body = body
        self._limits = limits
        self._is_chunked = is_chunked
        self._connection: ClientConnection | None = None

    async def __aenter__(self) -> HttpResponse:
        client, limits, parser = self._client, self._limits, self._parser
        connection = await client.acquire(limits.connect_s)
        try:
            if connection is None:
                connection = await client.connect(limits.connect_s)
            await connection.send_request(
                self._head, self._body, limits.write_s, is_chunked=self._is_chunked
            )
            try:
                await connection.read_head(parser, limits.read_s)
            except (ReadError, RemoteProtocolError) as error:
                if not connection.may_have_ended_idle():
                    raise
                client.distrust_idle()
                raise KeptConnectionClosed(str(error)) from error
            if parser.status == _IDLE_FOR_LONG and connection.may_have_ended_idle():
                client.distrust_idle()
                raise KeptConnectionClosed("the connection was idle for too long")
            self._connection = connection
        finally:
            if self._connection is None:
                client.release(connection, can_reuse=False)
        return HttpResponse(parser.status, parser.headers, ConnectionBody(connection, parser))

    async def __aexit__(self, *_exc: object) -> None:
        self._client.release(self._connection, can_reuse=self._parser.can_reuse)


def _head(method: str, target: str, headers: list[Header], num_bytes: int | None) -> bytes:
    if num_bytes is None:
        headers.append((b"transfer-encoding", b"chunked"))
    elif num_bytes or method not in _WITHOUT_BODY:
        headers.append((b"content-length", b"%d" % num_bytes))
    lines = [f"{method} {target} HTTP/1.1".encode(), *map(b": ".join, headers), b"\r\n"]
    head = b"\r\n".join(lines)
    if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines) or head.count(b"\0"):
        raise LocalProtocolError("a header of the request contains a line break or a zero")
    return head


@contextmanager
def _within(seconds: float, error: type[HttpError], text: str) -> Iterator[None]:
    try:
        with trio.fail_after(seconds):
            yield
    except trio.TooSlowError:
        raise error(f"{text} in {seconds:g} s") from None


def _lacks_descriptor(error: BaseException | None) -> bool:
    """Whether an error is a lack of descriptors; trio's own has that of each attempt behind it."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(_lacks_descriptor, error.exceptions))
    if not isinstance(error, OSError):
        return False
    return error.errno in _NO_DESCRIPTORS or _lacks_descriptor(error.__cause__)


def _why_no_connection(error: OSError | UnicodeError) -> str:
    """The system's words. trio's own, of a name with several addresses, say only that all attempts
    failed; their causes say why.
    """
    cause = error.__cause__
    attempts = cause.exceptions if isinstance(cause, BaseExceptionGroup) else (cause,)
    found = [one.strerror for one in attempts if isinstance(one, OSError) and one.strerror]
    words = ", ".join(dict.fromkeys(found)).lower()
    return f"{error}: {words}" if words else str(error)
