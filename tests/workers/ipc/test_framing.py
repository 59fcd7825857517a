"""Frames between supervisor and engine survive any split; a broken stream is one clear error."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import WireError
from protocol.wire import MAX_FRAME_BYTES
from workers.ipc.framing import FrameDecoder, encode_frame, encode_frames

FRAMES = st.lists(st.tuples(st.integers(0, 0xFFFF), st.binary(max_size=300)), max_size=8)


@given(frames=FRAMES, data=st.data())
def test_frames_survive_any_split(frames: list[tuple[int, bytes]], data: st.DataObject) -> None:
    """Whatever the chunks, the same frames come out in the same order."""
    stream = b"".join(encode_frame(link, payload) for link, payload in frames)
    decoder, out, start = FrameDecoder(), [], 0
    while start < len(stream):
        size = data.draw(st.integers(1, len(stream) - start))
        out += decoder.feed(stream[start : start + size])
        start += size
    assert out == frames
    assert encode_frames(frames) == stream


def test_oversize_frames_are_refused_on_both_sides() -> None:
    """Neither side buffers a length that cannot be a frame."""
    with pytest.raises(WireError, match="over"):
        encode_frame(1, bytes(MAX_FRAME_BYTES + 1))
    with pytest.raises(WireError, match="over"):
        encode_frames([(1, b"small"), (1, bytes(MAX_FRAME_BYTES + 1))])
    with pytest.raises(WireError, match="over"):
        FrameDecoder().feed(struct.pack("<IH", MAX_FRAME_BYTES + 1, 1))
