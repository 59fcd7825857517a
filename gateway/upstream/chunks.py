"""The chunks of a chunked body, as long as they are plain.

Owns the way past the HTTP parser for what nearly every read of a stream holds: whole chunks. The
first bytes that are anything else (the last chunk, a large one, a fault) are left to the parser,
together with all that follows, so that it alone judges. Must not know sockets.
"""

import re
from typing import Final

MAX_CHUNK_BYTES: Final = 2**16
"""So much waits for the rest of its chunk; a larger chunk is the parser's, which holds nothing."""

_HEADER: Final = re.compile(rb"([0-9A-Fa-f]{1,20})(?:;[^\r\n]*)?[ \t]*\r\n")
_MAX_HEADER_BYTES: Final = 256


class PlainChunks:
    """Bytes in, the content of whole chunks out. `rest`: what is for the parser, which stands
    before a chunk; None as long as it is not needed.
    """

    def __init__(self) -> None:
        self._pending = b""
        self.rest: bytes | None = None

    def push(self, data: bytes) -> bytes:
        """The content of the chunks that `data` completes. Nothing may follow once there is a
        `rest`; the end of the connection is b"".
        """
        buffer = self._pending + data if self._pending else data
        content = b""
        at = 0
        while (header := _HEADER.match(buffer, at)) is not None:
            begin = header.end()
            end = begin + int(header[1], 16)
            if buffer[end : end + 2] != b"\r\n" or end == begin:
                break
            content += buffer[begin:end]
            at = end + 2
        self._pending = buffer[at:]
        if not data or (self._pending and not self._may_become_plain(header)):
            self.rest = self._pending
        return content

    def _may_become_plain(self, header: re.Match[bytes] | None) -> bool:
        """Whether what is pending may be the beginning of a chunk like the others."""
        if header is None:
            return b"\n" not in self._pending and len(self._pending) < _MAX_HEADER_BYTES
        size = int(header[1], 16)
        missing = header.end() - header.start() + size + 2 - len(self._pending)
        return 0 < size <= MAX_CHUNK_BYTES and missing > 0
