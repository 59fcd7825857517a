"""The sockets under the HTTP client.

Owns connecting, and bytes both ways, in clear or by TLS; and how much the HTTP parser is given at a
time. A head ends a read, so that the body can still go past the parser. So does an answer: what
stands behind it the parser would take for the next one, which is another client's. Must not know
what the bytes mean.
"""

import math
import re
import socket
import ssl
import sys
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Final

import httpcore
import trio

from gateway.upstream.tls import TlsSession

_READ_BYTES: Final = 2**16
_HEAD_END: Final = re.compile(rb"\n\r?\n")
_LAST_CHUNK: Final = re.compile(rb"\n0")
"""How the last chunk begins, as others and lines of content may: then some reads are shorter."""
_MAX_SPLIT_BYTES: Final = 2
"""So much of a head's end can be in an earlier read."""


class Network(httpcore.AsyncNetworkBackend):
    """The network by trio. The client's own asks each socket first and waits then, which is one
    failing call per event of a stream, and two waits under TLS.
    """

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """See `AsyncNetworkBackend`."""
        assert not socket_options
        with _bounded(timeout, httpcore.ConnectTimeout, httpcore.ConnectError):
            stream = await trio.open_tcp_stream(host, port, local_address=local_address)
        # The same connection, with its options, outside of trio's wrapper.
        return Connection(socket.socket(fileno=stream.socket.detach()))

    async def sleep(self, seconds: float) -> None:
        """See `AsyncNetworkBackend`."""
        await trio.sleep(seconds)


class Connection(httpcore.AsyncNetworkStream):
    """One connection; `read` and `write` are the parser's, `receive` and `unread` go past it."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._is_closed = False
        self._unread = b""
        self._num_left = sys.maxsize
        self.expect_head()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """The next bytes, none of them from behind the end of a head or of a body with a length."""
        if timeout is None:
            data = await self.receive()
        else:
            with _bounded(timeout, httpcore.ReadTimeout, httpcore.ReadError):
                data = await self.receive()
        if self._is_in_head:
            end = min(max_bytes, self._end_of_head(data))
        else:
            end = min(max_bytes, len(data), self._num_left)
            self._num_left -= end
        self._unread = data[end:]
        return data[:end]

    def expect_head(self) -> None:
        """What comes now ends with a blank line, as heads and trailers do."""
        self._is_in_head = True
        self._sought = _HEAD_END
        self._end_of_last = b""

    def expect_chunks(self) -> None:
        """What comes now are chunks, the last one among them, and ends with a blank line too."""
        self.expect_head()
        self._sought = _LAST_CHUNK

    def expect_body(self, num_bytes: int | None) -> None:
        """What comes now is a body; `num_bytes` is its length, if it has told one."""
        self._is_in_head = False
        self._num_left = sys.maxsize if num_bytes is None else num_bytes

    async def receive(self) -> bytes:
        """What comes next, as soon as there is something; b"" is the end."""
        if self._unread:
            data, self._unread = self._unread, b""
            return data
        while not self._is_closed:
            try:
                await trio.lowlevel.wait_readable(self._socket)
                return self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                continue
            except (OSError, trio.ClosedResourceError) as error:
                raise httpcore.ReadError(str(error)) from error
        raise httpcore.ReadError("the connection is closed")

    def unread(self, data: bytes) -> None:
        """Let `data`, which was received last, come again."""
        self._unread = data + self._unread

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send all of it."""
        if not buffer:
            return
        self.expect_head()
        with _bounded(timeout, httpcore.WriteTimeout, httpcore.WriteError):
            await self._send(buffer)

    async def aclose(self) -> None:
        """Close it at once; who still reads gets an error."""
        if not self._is_closed:
            self._is_closed = True
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """The same connection, encrypted. It is closed if that fails."""
        session = TlsSession(ssl_context, server_hostname)
        async with AsyncExitStack() as failing:
            failing.push_async_callback(self.aclose)
            with _bounded(timeout, httpcore.ConnectTimeout, httpcore.ConnectError):
                while not session.shake_hands():
                    await self._send(session.to_send())
                    session.push(await self.receive())
                await self._send(session.to_send())
            secured = SecureConnection(self._socket, session)
            failing.pop_all()
        return secured

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401 - the client's own signature
        """What the client asks for: whether an idle connection says something, which can only be
        its end.
        """
        return self._is_readable() if info == "is_readable" else None

    def _end_of_head(self, data: bytes) -> int:
        """How many bytes of `data` are read at once: up to what is sought; all if it goes on."""
        before = self._end_of_last
        seen = before + data
        found = self._sought.search(seen)
        if found is None:
            self._end_of_last = seen[-_MAX_SPLIT_BYTES:]
            return len(data)
        self._sought = _HEAD_END
        self._end_of_last = b""
        return found.end() - len(before)

    async def _send(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._socket)

    def _is_readable(self) -> bool:
        if self._unread:
            return True
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True


class SecureConnection(Connection):
    """A connection after the handshake of its `session`."""

    def __init__(self, connected: socket.socket, session: TlsSession) -> None:
        super().__init__(connected)
        self._session = session
        self._unread = session.text()

    async def receive(self) -> bytes:
        """See `Connection`. An end that TLS does not announce is one too: HTTP knows by itself
        whether something is missing.
        """
        text, self._unread = self._unread, b""
        try:
            while not text and not self._session.is_over:
                self._session.push(await super().receive())
                text = self._session.text()
                await self._send(self._session.to_send())
        except OSError as error:
            raise httpcore.ReadError(str(error)) from error
        return text

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """See `Connection`."""
        try:
            encrypted = self._session.encrypted(buffer) if buffer else b""
        except ssl.SSLError as error:
            raise httpcore.WriteError(str(error)) from error
        await super().write(encrypted, timeout)

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401 - the client's own signature
        """See `Connection`; and the session, which tells the client what was agreed upon."""
        return self._session.ssl_object if info == "ssl_object" else super().get_extra_info(info)

    def _is_readable(self) -> bool:
        return self._session.is_over or super()._is_readable()


@contextmanager
def _bounded(
    seconds: float | None,
    too_slow: type[httpcore.TimeoutException],
    broken: type[httpcore.NetworkError],
) -> Iterator[None]:
    """A deadline, and the client's own errors for what goes wrong on a connection."""
    try:
        with trio.fail_after(math.inf if seconds is None else seconds):
            yield
    except trio.TooSlowError as error:
        raise too_slow(str(error)) from error
    except (OSError, trio.ClosedResourceError, httpcore.ReadError) as error:
        raise broken(str(error)) from error
