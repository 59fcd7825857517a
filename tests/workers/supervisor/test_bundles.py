"""What an engine says at one moment leaves in few frames, whole and in order."""

import msgpack
from hypothesis import given
from hypothesis import strategies as st

from protocol.messages import Bundle
from protocol.wire import decode_from_worker, encode
from tests.fakes.messages import FROM_WORKER
from workers.supervisor.gateway_link import MAX_BUNDLED_BYTES, bundled


def parts_of(frames: list[bytes]) -> list[bytes]:
    """The frames that a gateway finds in what it was sent, read by another library than ours."""
    parts: list[bytes] = []
    for frame in frames:
        tag, *fields = msgpack.unpackb(frame, raw=False)
        parts += fields[0] if tag == Bundle.__struct_config__.tag else [frame]
    return parts


@given(st.lists(FROM_WORKER.filter(lambda message: not isinstance(message, Bundle)), max_size=6))
def test_nothing_is_lost_or_reordered(messages: list[object]) -> None:
    """An independent decoder finds the same frames in the same order, in one frame at the most."""
    frames = [encode(message) for message in messages]  # type: ignore[arg-type]
    packed = bundled(frames)
    assert parts_of(packed) == frames
    assert len(packed) == min(1, len(frames))


@given(st.lists(st.integers(1, MAX_BUNDLED_BYTES + 9), max_size=8))
def test_a_bundle_has_a_bound(sizes: list[int]) -> None:
    """What is too much for one goes into several; what is large goes alone, unchanged."""
    frames = [bytes([index]) * size for index, size in enumerate(sizes)]
    found: list[bytes] = []
    for frame in bundled(frames):
        if frame in frames:
            found.append(frame)
            continue
        message = decode_from_worker(frame)
        assert isinstance(message, Bundle)
        assert len(message.frames) > 1
        assert sum(map(len, message.frames)) <= MAX_BUNDLED_BYTES
        found += message.frames
    assert found == frames


def test_a_lone_frame_stays_as_it_is() -> None:
    """A lone frame stays as it is, without a second encoding."""
    frame = b"any"
    assert bundled([frame])[0] is frame
    assert bundled([]) == []
