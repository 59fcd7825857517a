"""Memory becomes blocks of keys and values, or an error that says what is missing."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ConfigError
from workers.engine.memory.kv_size import CARD_SHARE, CPU_CONTEXTS, KvDemand, choose_blocks
from workers.memory_room import MemoryRoom

GIB = 2**30
QWEN3_8B = KvDemand(
    token_bytes=147_456,
    block_size=32,
    peak_bytes=2 * GIB,
    context_length=40_960,
    needs_context=False,
    wanted_tokens=None,
)


def _room(num_bytes: int) -> MemoryRoom:
    return MemoryRoom(num_bytes, "the driver")


def _blocks(room: int, *, is_card: bool = True, **changes: int | bool) -> int:
    demand = dataclasses.replace(QWEN3_8B, **changes)  # type: ignore[arg-type]
    return choose_blocks(_room(room), demand, is_card=is_card)


def _refusal(room: int, **changes: int | bool) -> str:
    with pytest.raises(ConfigError) as caught:
        _blocks(room, **changes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_card_gives_what_the_largest_step_leaves() -> None:
    """95 % of it; a CPU gives a few windows, whatever it has."""
    block_bytes = 32 * 147_456
    assert _blocks(100 * GIB) == int(CARD_SHARE * 98 * GIB) // block_bytes
    assert _blocks(4000 * GIB, is_card=False) == CPU_CONTEXTS * 1280


def test_what_is_asked_for_is_taken_exactly() -> None:
    """`kv_tokens` is rounded up to whole blocks, and no more is taken."""
    assert _blocks(100 * GIB, wanted_tokens=1000) == 32


def test_the_error_names_the_memory_and_the_setting() -> None:
    """The number that is missing, the limit that holds, and what would fit."""
    text = _refusal(6 * GIB, wanted_tokens=100_000)
    assert text.startswith("9.93 GiB of memory are missing: kv_tokens = 100000 takes 13.73 GiB, ")
    assert "the driver leaves" in text
    assert f"lower kv_tokens to at most {int(CARD_SHARE * 4 * GIB) // (32 * 147_456) * 32}" in text
    assert "lower context_length to at most" in _refusal(6 * GIB, needs_context=True)
    nothing = _refusal(GIB)
    assert "take a smaller model, lower token_budget" in nothing
    assert "of the 1.00 GiB " in nothing


@given(
    room=st.integers(0, 2**41),
    peak=st.integers(0, 2**38),
    wanted=st.none() | st.integers(1, 2**31 - 1),
    needs_context=st.booleans(),
    is_card=st.booleans(),
)
def test_no_more_is_taken_than_there_is(
    room: int, peak: int, wanted: int | None, needs_context: bool, is_card: bool
) -> None:
    """Blocks and the largest step fit the room; what was asked for is there in whole."""
    demand = dataclasses.replace(
        QWEN3_8B, peak_bytes=peak, wanted_tokens=wanted, needs_context=needs_context
    )
    try:
        blocks = choose_blocks(_room(room), demand, is_card=is_card)
    except ConfigError as error:
        number, unit, *_ = str(error).split()
        assert float(number) > 0
        assert unit in ("B", "KiB", "MiB", "GiB")
        return
    assert blocks >= 1
    assert blocks * 32 * demand.token_bytes + peak <= room
    if wanted is not None:
        assert blocks == -(-wanted // 32)
    elif needs_context:
        assert blocks * 32 >= demand.context_length
