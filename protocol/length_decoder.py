"""Splits a stream of bytes into frames, each of which follows its length.

Owns the part of a frame that has come so far. Must not know what a frame contains, nor do I/O.
"""

import struct
from typing import Final, final

from protocol.errors import WireError
from protocol.wire import MAX_FRAME_BYTES


@final
class LengthDecoder:
    """Incremental: `feed` takes any bytes and returns the frames that they complete. `header` comes
    before each frame; its first field is the frame's length.
    """

    def __init__(self, header: struct.Struct) -> None:
        self._header: Final = header
        self._pending = bytearray()

    def feed(self, data: bytes | bytearray) -> list[tuple[tuple[int, ...], bytes]]:
        """The fields of each header and its frame. Raises `WireError` for a length over the frame
        limit; the stream cannot be used after that.
        """
        header, num_header_bytes = self._header, self._header.size
        if self._pending:
            self._pending += data
            data = self._pending
        frames: list[tuple[tuple[int, ...], bytes]] = []
        start, size = 0, len(data)
        while size - start >= num_header_bytes:
            fields = header.unpack_from(data, start)
            if fields[0] > MAX_FRAME_BYTES:
                raise WireError(f"a frame of {fields[0]} bytes is over {MAX_FRAME_BYTES}")
            begin = start + num_header_bytes
            end = begin + fields[0]
            if end > size:
                break
            frames.append((fields, bytes(data[begin:end])))
            start = end
        # Usually nothing is left over, and nothing is copied twice.
        if data is self._pending:
            del self._pending[:start]
        elif start < size:
            self._pending += data[start:]
        return frames
