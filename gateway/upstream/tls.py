"""TLS without a socket: ciphertext in, text out, and the other way round.

Owns one client's session. trio's `SSLStream` does the same around a stream, but tries to read
before it waits for the stream, at each event of a stream. Must not know sockets or HTTP.
"""

import ssl
from typing import Final

_MAX_RECORD_BYTES: Final = 2**14


class TlsSession:
    """One session. What it has for the peer is to be sent after each call. `is_over`: nothing
    comes any more. What the peer does wrong raises `ssl.SSLError`.
    """

    def __init__(self, context: ssl.SSLContext, server_name: str | None) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self.ssl_object = context.wrap_bio(
            self._incoming, self._outgoing, server_hostname=server_name
        )
        self.is_over = False

    def push(self, data: bytes) -> None:
        """Take what came; b"" is the end of the connection."""
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
            self.is_over = True

    def shake_hands(self) -> bool:
        """Go on with what came; True once the session stands."""
        try:
            self.ssl_object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def text(self) -> bytes:
        """The text of all whole records that came."""
        texts: list[bytes] = []
        try:
            # Asking is cheaper than the exception that says that there is no more.
            while self._incoming.pending or self.ssl_object.pending():
                text = self.ssl_object.read(_MAX_RECORD_BYTES)
                if not text:
                    self.is_over = True
                    break
                texts.append(text)
        except (ssl.SSLWantReadError, ssl.SSLEOFError):
            pass
        return b"".join(texts)

    def encrypted(self, text: bytes) -> bytes:
        """`text`, of one byte at least, as it is sent."""
        self.ssl_object.write(text)
        return self.to_send()

    def to_send(self) -> bytes:
        """What is for the peer now."""
        return self._outgoing.read() if self._outgoing.pending else b""
