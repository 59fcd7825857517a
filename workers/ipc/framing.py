"""Frames between the supervisor and its engine: `u32 length, u16 link, payload`.

Owns the byte layout, the link numbers, and which request a bad submission is about. Must not know
which socket carries a frame: bytes in, frames out, at any split point.
"""

import struct
from collections.abc import Iterable
from typing import Final

import msgspec

from protocol.errors import WireError
from protocol.ids import ID_BYTES
from protocol.messages import Relay, Submit
from protocol.reading import FAULTS
from protocol.wire import MAX_FRAME_BYTES, LengthDecoder, peek_tag, tag_of

SUPERVISOR: Final = 0
"""The link of the supervisor itself: control messages and its health probe."""

BROADCAST: Final = 0xFFFF
"""The link number of a frame for all connected gateways."""

MAX_LINK: Final = BROADCAST - 1

_REQUESTS: Final = frozenset((tag_of(Submit), tag_of(Relay)))

_HEADER: Final = struct.Struct("<IH")


def encode_frame(link: int, payload: bytes) -> bytes:
    """The bytes of one frame. Raises `WireError` if `payload` is over the frame limit."""
    if len(payload) > MAX_FRAME_BYTES:
        raise _too_large(len(payload))
    return _HEADER.pack(len(payload), link) + payload


def encode_frames(frames: Iterable[tuple[int, bytes]]) -> bytes:
    """The bytes of all of them, without a call for each. Raises `WireError` as `encode_frame`."""
    parts: list[bytes] = []
    for link, payload in frames:
        num_bytes = len(payload)
        if num_bytes > MAX_FRAME_BYTES:
            raise _too_large(num_bytes)
        parts += (_HEADER.pack(num_bytes, link), payload)
    return b"".join(parts)


def _too_large(num_bytes: int) -> WireError:
    return WireError(f"a payload of {num_bytes} bytes is over {MAX_FRAME_BYTES}")


class FrameDecoder:
    """Incremental: `feed` takes any bytes and returns the frames that they complete."""

    def __init__(self) -> None:
        self._decoder = LengthDecoder(_HEADER)

    def feed(self, data: bytes | bytearray) -> list[tuple[int, bytes]]:
        """The (link, payload) pairs completed by `data`.

        Raises `WireError` for a length over the frame limit: the stream is lost then.
        """
        return [(link, payload) for (_, link), payload in self._decoder.feed(data)]


def recover_request_id(frame: bytes) -> tuple[bytes, int] | None:
    """The request id and attempt of a frame that begins like a `Submit` or `Relay`, if it shows
    them.
    """
    if peek_tag(frame) not in _REQUESTS:
        return None
    try:
        fields = msgspec.msgpack.decode(frame)
    except FAULTS:
        return None
    match fields:
        case [_, bytes(request_id), int(attempt), *_] if (
            len(request_id) == ID_BYTES and 0 <= attempt < 2**63
        ):
            return request_id, attempt
        case _:
            return None
