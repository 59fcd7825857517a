"""Messages and frames: every message round-trips, everything else is a `WireError`."""

import struct
from collections.abc import Callable
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import wire
from protocol.errors import WireError
from protocol.messages import (
    FromWorker,
    Load,
    Ping,
    Pong,
    Progress,
    TokenItem,
    Tokens,
    ToWorker,
)
from protocol.wire import (
    MAX_FRAME_BYTES,
    MAX_SEARCHED_BYTES,
    decode_from_worker,
    decode_to_worker,
    encode,
    named_ids,
    peek_tag,
)
from tests.fakes.messages import FROM_WORKER, FROM_WORKER_TYPES, TO_WORKER, TO_WORKER_TYPES

Decode = Callable[[bytes], msgspec.Struct]
BOTH_WAYS = pytest.mark.parametrize("decode", [decode_to_worker, decode_from_worker])

_UINT32_MAX = 2**32 - 1


def _outcome(decode: Decode, frame: bytes) -> msgspec.Struct | None:
    """The message of `frame`, or None for a WireError; any other exception escapes."""
    try:
        return decode(frame)
    except WireError as error:
        assert str(error)
        return None


def _plain(value: Any) -> Any:
    """A struct as the lists that MessagePack makes of it."""
    if isinstance(value, msgspec.Struct):
        tag = value.__struct_config__.tag
        fields = [_plain(getattr(value, name)) for name in value.__struct_fields__]
        return fields if tag is None else [tag, *fields]
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value


@given(TO_WORKER)
def test_messages_to_a_worker_round_trip(message: ToWorker) -> None:
    """What a gateway says arrives as it was said."""
    assert decode_to_worker(encode(message)) == message


@given(FROM_WORKER)
def test_messages_from_a_worker_round_trip(message: FromWorker) -> None:
    """What a worker says arrives as it was said."""
    assert decode_from_worker(encode(message)) == message


@given(TO_WORKER | FROM_WORKER)
def test_an_independent_decoder_reads_the_same(message: ToWorker | FromWorker) -> None:
    """A frame is plain MessagePack: the msgpack package finds the tag and the fields in order."""
    assert msgpack.unpackb(encode(message), raw=False) == _plain(message)


@given(TO_WORKER)
def test_an_independent_encoder_is_understood(message: ToWorker) -> None:
    """A peer that encodes the same lists with another library is understood."""
    assert decode_to_worker(msgpack.packb(_plain(message))) == message


@given(TO_WORKER | FROM_WORKER)
def test_the_tag_can_be_peeked(message: ToWorker | FromWorker) -> None:
    """The relay sees the tag of every message without decoding it."""
    assert peek_tag(encode(message)) == wire.tag_of(type(message))


@given(st.lists(st.binary(min_size=16, max_size=16), max_size=8), st.data())
def test_a_cut_frame_names_the_ids_before_the_cut(ids: list[bytes], data: st.DataObject) -> None:
    """A frame that cannot be decoded names its requests, whatever else is in it."""
    items = tuple(TokenItem(one, 1, 0, bytes(4)) for one in ids)
    frame = encode(Tokens(1, items))
    cut = data.draw(st.integers(0, len(frame)))
    at = 0
    whole = set()
    for one in ids:
        at = frame.index(b"\xc4\x10" + one, at) + 18
        if at <= cut:
            whole.add(one)
    assert whole <= set(named_ids(frame[:cut]))


@given(st.binary(max_size=100), st.binary(min_size=16, max_size=16), st.binary(max_size=100))
def test_an_id_is_found_wherever_it_stands(before: bytes, one: bytes, after: bytes) -> None:
    """Behind a byte that looks like the begin of another one, too."""
    for start in (before, before + b"\xc4\x10", before + b"\xc4"):
        assert one in set(named_ids(start + b"\xc4\x10" + one + after))


def test_the_search_for_ids_is_bounded() -> None:
    """Nothing is found, nor looked at, behind the bound."""
    one = b"\xc4\x10" + bytes(16)
    assert list(named_ids(bytes(MAX_SEARCHED_BYTES - 18) + one))
    assert not list(named_ids(bytes(MAX_SEARCHED_BYTES - 17) + one))


def test_tags_are_unique() -> None:
    """No tag is used twice, in neither direction."""
    tags = [wire.tag_of(kind) for kind in (*TO_WORKER_TYPES, *FROM_WORKER_TYPES)]
    assert len(set(tags)) == len(tags)


def test_only_messages_have_tags() -> None:
    """Asking for the tag of an untagged struct is a mistake that is named."""

    class Untagged(msgspec.Struct):
        pass

    with pytest.raises(TypeError, match="Untagged"):
        wire.tag_of(Untagged)


@given(TO_WORKER, FROM_WORKER)
def test_the_directions_do_not_mix(down: ToWorker, up: FromWorker) -> None:
    """A frame of the other direction is refused, not misread."""
    assert _outcome(decode_from_worker, encode(down)) is None
    assert _outcome(decode_to_worker, encode(up)) is None


@BOTH_WAYS
@given(frame=st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_wire_error(decode: Decode, frame: bytes) -> None:
    """Random bytes never raise anything but WireError, and what decodes can be peeked."""
    message = _outcome(decode, frame)
    if message is not None:
        assert peek_tag(frame) == wire.tag_of(type(message))


@BOTH_WAYS
@given(tag=st.integers(0, 127), rest=st.binary(max_size=100), size=st.integers(0, 15))
def test_any_bytes_after_a_tag_are_a_message_or_a_wire_error(
    decode: Decode, tag: int, rest: bytes, size: int
) -> None:
    """Garbage behind a valid start never raises anything but WireError."""
    _outcome(decode, bytes([0x90 | size, tag]) + rest)


@given(FROM_WORKER, st.data())
def test_changed_frames_are_a_message_or_a_wire_error(
    message: FromWorker, data: st.DataObject
) -> None:
    """Flipping bytes of a valid frame never raises anything but WireError."""
    frame = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    changed = _outcome(decode_from_worker, bytes(frame))
    if changed is not None:
        assert peek_tag(bytes(frame)) == wire.tag_of(type(changed))


@given(TO_WORKER | FROM_WORKER, st.data())
def test_truncated_frames_are_wire_errors(
    message: ToWorker | FromWorker, data: st.DataObject
) -> None:
    """No proper prefix of a frame is a message."""
    frame = encode(message)
    prefix = frame[: data.draw(st.integers(0, len(frame) - 1))]
    assert _outcome(decode_to_worker, prefix) is None
    assert _outcome(decode_from_worker, prefix) is None


@given(TO_WORKER, st.binary(min_size=1, max_size=8))
def test_trailing_bytes_are_a_wire_error(message: ToWorker, rest: bytes) -> None:
    """A frame is exactly one message."""
    assert _outcome(decode_to_worker, encode(message) + rest) is None


@given(FROM_WORKER)
def test_a_further_field_is_a_wire_error(message: FromWorker) -> None:
    """Unknown fields are refused: versions are told apart by the handshake, not by guessing."""
    assert _outcome(decode_from_worker, msgpack.packb([*_plain(message), None])) is None


@BOTH_WAYS
@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x91", id="header only"),
        pytest.param(b"\x91" * 100_000, id="deep arrays"),
        pytest.param(b"\x93\x24\x00" + b"\x91" * 100_000, id="deep behind a tag"),
        pytest.param(b"\x93\x24\x00" + b"\x81\xa1a" * 100_000, id="deep maps behind a tag"),
        pytest.param(b"\x93\x24\x00\xdd" + struct.pack(">I", _UINT32_MAX), id="huge array"),
        pytest.param(b"\xdd" + struct.pack(">I", _UINT32_MAX) + b"\x05", id="huge message"),
        pytest.param(
            b"\x93\x21\xc4\x10" + b"a" * 16 + b"\xdf" + struct.pack(">I", _UINT32_MAX),
            id="huge map",
        ),
        pytest.param(b"\x93\x27\x00\xc6" + struct.pack(">I", _UINT32_MAX), id="huge bytes"),
        pytest.param(b"\x95\x22\x00\xdb" + struct.pack(">I", _UINT32_MAX), id="huge text"),
        pytest.param(b"\x94\x22\x00\xa2\xff\xfe\xcb" + bytes(8), id="bad UTF-8"),
        pytest.param(b"\x92\x05\xcf" + b"\xff" * 8, id="number over 63 bits"),
        pytest.param(b"\x92\x05\xff", id="negative count"),
        pytest.param(b"\x92\x2b\xc1", id="a byte that MessagePack never uses"),
        pytest.param(b"\x92\xcc\x2b\x01", id="tag in a longer spelling"),
        pytest.param(b"\xdc\x00\x02\x05\x01", id="header in a longer spelling"),
        pytest.param(b"\x92\x7f\x01", id="unknown tag"),
        pytest.param(b"\x82\xa4type\x05\xa5nonce\x01", id="a map"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="HTTP"),
    ],
)
def test_crafted_frames_are_wire_errors(decode: Decode, frame: bytes) -> None:
    """Deep nesting, huge announced lengths, bad text and odd spellings are refused in one way."""
    with pytest.raises(WireError):
        decode(frame)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -1.0])
def test_numbers_that_would_poison_routing_are_refused(number: float) -> None:
    """A load report holds finite, non-negative measurements or is no message."""
    load = Load(1, 1, 1, 1, 1, 1, 1, step_ms=number, prefill_tokens_per_s=1.0)
    with pytest.raises(WireError, match="float"):
        decode_from_worker(encode(load))


def test_progress_is_finite() -> None:
    """A fraction that is not a number is refused."""
    with pytest.raises(WireError):
        decode_from_worker(encode(Progress(0, "loading", float("nan"))))


@BOTH_WAYS
def test_oversize_frames_are_refused_unread(decode: Decode) -> None:
    """A frame over the limit is refused by its size alone."""
    with pytest.raises(WireError, match="limit"):
        decode(bytes(MAX_FRAME_BYTES + 1))


def test_oversize_messages_are_not_encoded() -> None:
    """A message that no peer would take is refused where it is made, and named."""
    from protocol.messages import Files

    with pytest.raises(WireError, match="Files"):
        encode(Files(bytes(16), {"tokenizer.json": bytes(MAX_FRAME_BYTES)}))


@pytest.mark.parametrize("frame", [b"", b"\x92", b"\x82\x01", b"\x92\x80", b"\xdc\x00"])
def test_peeking_at_garbage_finds_no_tag(frame: bytes) -> None:
    """What cannot be a message has no tag."""
    assert peek_tag(frame) is None


def test_frames_of_known_messages_never_change() -> None:
    """Protocol v2 is these bytes; a change of them is a new version."""
    assert encode(Ping(nonce=7)) == b"\x93\x05\x07\x00"
    assert encode(Pong(nonce=300)) == b"\x92\x2b\xcd\x01\x2c"
