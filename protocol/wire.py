"""Encodes messages as frames and decodes them, and splits a stream of bytes into frames.

Owns the encoding (MessagePack arrays by msgspec), the frame limit and the translation of every
decoding fault into `WireError`. Must not know sockets. A frame starts with a MessagePack array
header and the message's tag, so a relay can distinguish messages without decoding them.
"""

import re
import struct
from collections.abc import Iterator
from typing import Final, final

import msgspec

from protocol.errors import WireError
from protocol.messages import FromWorker, ToWorker
from protocol.reading import FAULTS, decoded

MAX_FRAME_BYTES: Final = 40 * 2**20
"""The largest message has the files of a model, up to 32 MiB."""

MAX_SEARCHED_BYTES: Final = 2**18
"""The tokens of one step, of 320 sequences with 20 log-probabilities each, take less."""

_ID: Final = re.compile(rb"(?=\xc4\x10(.{16}))", re.DOTALL)
"""MessagePack's header of 16 bytes, and those; also where two overlap."""

_encoder = msgspec.msgpack.Encoder()
_to_worker: Final[msgspec.msgpack.Decoder[ToWorker]] = msgspec.msgpack.Decoder(ToWorker)
_from_worker: Final[msgspec.msgpack.Decoder[FromWorker]] = msgspec.msgpack.Decoder(FromWorker)

# All valid first two bytes: array header and tag. MessagePack has longer encodings of the same
# header, which are refused, so that `peek_tag` always sees the tag that a decoder finds. Looking
# both bytes up at once saves three calls per frame.
_STARTS: Final = frozenset(bytes((0x90 | size, tag)) for size in range(16) for tag in range(128))


def encode(message: ToWorker | FromWorker) -> bytes:
    """The frame of `message`. Raises `WireError` if it is over the frame limit."""
    frame = _encoder.encode(message)
    if len(frame) > MAX_FRAME_BYTES:
        kind = type(message).__name__
        raise WireError(f"{kind} has {len(frame)} bytes; a frame holds {MAX_FRAME_BYTES}")
    return frame


def decode_to_worker(frame: bytes) -> ToWorker:
    """The message of a frame from a gateway. Raises `WireError` for anything else."""
    if frame[:2] not in _STARTS or len(frame) > MAX_FRAME_BYTES:
        raise _no_message(frame)
    return decoded(_to_worker, frame, "a message to a worker")


def decode_from_worker(frame: bytes) -> FromWorker:
    """The message of a frame from a worker. Raises `WireError` for anything else."""
    if frame[:2] not in _STARTS or len(frame) > MAX_FRAME_BYTES:
        raise _no_message(frame)
    try:
        return _from_worker.decode(frame)
    except FAULTS as error:
        raise WireError(f"not a message from a worker: {error}") from error


def check_frame_size(frame: bytes) -> None:
    """Raise `WireError` for a frame so large that the peer would close the connection."""
    if len(frame) > MAX_FRAME_BYTES:
        raise WireError(f"a frame of {len(frame)} bytes is over the limit of {MAX_FRAME_BYTES}")


def peek_tag(frame: bytes) -> int | None:
    """The tag of a frame without decoding it; None if it cannot be a message.

    Messages have at most 15 fields (one header byte) and tags below 128 (one byte).
    """
    return frame[1] if frame[:2] in _STARTS else None


def tag_of(message_type: type[msgspec.Struct]) -> int:
    """The tag of a message type, to compare with `peek_tag`."""
    tag = message_type.__struct_config__.tag
    if not isinstance(tag, int):
        raise TypeError(f"{message_type.__name__} is not a message")
    return tag


def named_ids(frame: bytes) -> Iterator[bytes]:
    """What may be request ids in a frame that cannot be decoded: all that is encoded as 16 bytes in
    its first `MAX_SEARCHED_BYTES`. Some may be other bytes that look so.
    """
    return (found[1] for found in _ID.finditer(frame, 0, MAX_SEARCHED_BYTES))


def _no_message(frame: bytes) -> WireError:
    if len(frame) > MAX_FRAME_BYTES:
        return WireError(f"a frame of {len(frame)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return WireError("a frame starts with a short array header and a tag below 128")


@final
class LengthDecoder:
    """Splits a stream of bytes into frames. A `header` precedes each frame; its first field is the
    frame's length in bytes.
    """

    def __init__(self, header: struct.Struct) -> None:
        self._header: Final = header
        self._pending = bytearray()

    def feed(self, data: bytes | bytearray) -> list[tuple[tuple[int, ...], bytes]]:
        """Take any number of bytes; returns the frames that they complete, each with the fields of
        its header. Raises `WireError` for a length over the frame limit; the decoder must not be
        used after that.
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
