"""Token ids packed as little-endian u32."""

import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import WireError
from protocol.tokens import count_tokens, pack_token, pack_tokens, unpack_tokens

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=50)


@given(IDS)
def test_ids_round_trip(ids: list[int]) -> None:
    """What was packed is unpacked, and counted without unpacking."""
    packed = pack_tokens(ids)
    assert list(unpack_tokens(packed)) == ids
    assert count_tokens(packed) == len(ids)


@given(IDS)
def test_the_layout_is_little_endian_u32(ids: list[int]) -> None:
    """The bytes are those that the struct module makes, on every machine."""
    assert pack_tokens(ids) == struct.pack(f"<{len(ids)}I", *ids)


@given(st.integers(0, 2**32 - 1))
def test_one_id_is_packed_like_several(token_id: int) -> None:
    """The short way makes the same bytes."""
    assert pack_token(token_id) == pack_tokens([token_id])


@given(st.binary(max_size=64).filter(lambda packed: len(packed) % 4))
def test_a_broken_length_is_a_wire_error(packed: bytes) -> None:
    """Bytes that are no whole ids are the peer's fault."""
    with pytest.raises(WireError, match=str(len(packed))):
        unpack_tokens(packed)


def test_other_byte_orders_are_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the machine's order is not the wire's, each id is swapped, both ways."""
    here = pack_tokens([1, 2**24])
    monkeypatch.setattr(sys, "byteorder", "big" if sys.byteorder == "little" else "little")
    swapped = pack_tokens([1, 2**24])
    assert swapped == here[3::-1] + here[:3:-1]
    assert list(unpack_tokens(swapped)) == [1, 2**24]


@pytest.mark.parametrize("token_id", [-1, 2**32])
def test_ids_that_do_not_fit_are_refused(token_id: int) -> None:
    """An id outside 32 bits is our own mistake and is not cut."""
    with pytest.raises(OverflowError):
        pack_tokens([token_id])
