"""TLS in front of the server: certificates, handshakes, and the copying of bytes between a client's
TLS stream and a plain socket.

Owns the deadline of handshakes, and reads certificates again when their files change. The server
reads plain sockets in any case, so only TLS connections pay for TLS, with a copy of each piece.
Must not know HTTP.
"""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, final

import trio

from housekeeping.certificate_dates import expires_at
from protocol.errors import ConfigError

HANDSHAKE_S: Final = 10.0
_GOODBYE_S: Final = 5.0
_PIECE_BYTES: Final = 2**16

_log = logging.getLogger(__name__)

Handle = Callable[[socket.socket, tuple[str, int] | None], Awaitable[None]]


@final
class Certificates:
    """A chain and its key, in PEM files. TLS 1.2 and newer. `unix_time` is the clock by which the
    log says that a certificate that is read has expired.
    """

    def __init__(
        self, certificate: str, key: str, unix_time: Callable[[], float] = time.time
    ) -> None:
        """Raises `ConfigError` if they cannot be read or do not belong together."""
        self._unix_time = unix_time
        self._files = Path(certificate).expanduser(), Path(key).expanduser()
        try:
            self._stamps = self._stamped()
            self._context = self._read()
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"[gateway] tls_certificate_file, tls_key_file: {error}; give a PEM chain, and the "
                "key that belongs to its first certificate"
            ) from error

    def context(self) -> ssl.SSLContext:
        """The context for the next handshake: of the files as they are now, or of their last usable
        state.
        """
        try:
            stamps = self._stamped()
            if stamps != self._stamps:
                self._stamps = stamps
                self._context = self._read()
                _log.info("the certificate was read again")
        except (OSError, ssl.SSLError) as error:
            _log.error(
                "the certificate has changed and cannot be used (%s); the old one stays", error
            )
        return self._context

    def _stamped(self) -> list[tuple[int, int]]:
        found = [path.stat() for path in self._files]
        return [(each.st_mtime_ns, each.st_ino) for each in found]

    def _read(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(*self._files)
        ends_at = expires_at(self._files[0].read_text(encoding="utf-8", errors="replace"))
        if ends_at is not None and ends_at < self._unix_time():
            _log.warning(
                "the certificate %s has expired on %s: clients that check it refuse to connect; "
                "renew it, and the gateway reads it by itself",
                self._files[0],
                f"{datetime.fromtimestamp(ends_at, UTC):%Y-%m-%d %H:%M} UTC",
            )
        return context


async def serve_tls(
    accepted: socket.socket,
    peer: tuple[str, int] | None,
    certificates: Certificates,
    handle: Handle,
) -> None:
    """Do the TLS handshake with a client, and let `handle` serve a socket with the plain bytes."""
    plain = trio.SocketStream(trio.socket.from_stdlib_socket(accepted))
    stream = trio.SSLStream(plain, certificates.context(), server_side=True, https_compatible=True)
    try:
        with trio.fail_after(HANDSHAKE_S):
            await stream.do_handshake()
    except (trio.BrokenResourceError, trio.TooSlowError, ssl.SSLError):
        await trio.aclose_forcefully(plain)
        return
    outer, inner = socket.socketpair()
    for end in (outer, inner):
        end.setblocking(False)
    ours = trio.SocketStream(trio.socket.from_stdlib_socket(outer))
    async with plain, ours, trio.open_nursery() as nursery:
        nursery.start_soon(_take_in, stream, ours)
        nursery.start_soon(_give_out, ours, stream, nursery.cancel_scope)
        await handle(inner, peer)


async def _take_in(stream: trio.SSLStream[trio.SocketStream], ours: trio.SocketStream) -> None:
    """Copy from the client to the server. The server reads an end of file after any end of the
    client's stream, also after a broken one.
    """
    try:
        while piece := await stream.receive_some(_PIECE_BYTES):
            await ours.send_all(piece)
    except (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError):
        pass
    try:
        await ours.send_eof()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return


async def _give_out(
    ours: trio.SocketStream, stream: trio.SSLStream[trio.SocketStream], both: trio.CancelScope
) -> None:
    """Copy from the server to the client, then close the connection."""
    try:
        while piece := await ours.receive_some(_PIECE_BYTES):
            await stream.send_all(piece)
        with trio.move_on_after(_GOODBYE_S):
            await stream.aclose()
    except (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError):
        await ours.aclose()
        return
    both.cancel()
