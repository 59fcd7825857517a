"""vLLM's batches, packed by another library, as values; anything else is refused with its place."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import WireError
from tests.fakes.vllm_engine import VllmEngine, pack
from workers.external.vllm_events import (
    MAX_PAYLOAD_BYTES,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    decode_batch,
)

STORED = ["BlockStored", [7, 8], None, [1, 2, 3, 4], 2]


@pytest.mark.parametrize("as_maps", [False, True])
@pytest.mark.parametrize("as_bytes", [False, True])
def test_both_encodings_and_both_kinds_of_hash_are_read(as_maps: bool, as_bytes: bool) -> None:
    """Arrays and maps, numbers and bytes say the same."""
    engine = VllmEngine(block_size=2, as_maps=as_maps, as_bytes=as_bytes)
    engine.compute([1, 2, 3, 4])
    names = tuple(copy.name for copy in engine.copies)
    engine.evict(1)
    engine.clear()
    batch = decode_batch(engine.batch(rank=3))
    stored, removed, cleared = batch.events
    assert isinstance(stored, BlockStored)
    assert (stored.block_hashes, stored.parent_block_hash) == (names, None)
    assert (stored.token_ids, stored.block_size, stored.medium) == ([1, 2, 3, 4], 2, "GPU")
    assert removed == BlockRemoved(names[1:], "GPU")
    assert isinstance(cleared, AllBlocksCleared)
    assert (batch.rank, batch.unknown_fields, batch.unknown_kinds) == (3, 0, 0)


def test_the_batch_may_be_a_map_too() -> None:
    """The newest publishers name the batch's fields as well."""
    batch = decode_batch(pack({"ts": 1.5, "events": [["AllBlocksCleared"]]}))
    assert (batch.events, batch.rank) == ((AllBlocksCleared(),), None)


def test_older_batches_have_fewer_fields() -> None:
    """Older batches, in the first published form, have no rank, medium or adapter's name."""
    batch = decode_batch(pack([1, [[*STORED, 5], ["BlockRemoved", [7]]]]))
    assert batch.events == (
        BlockStored((7, 8), None, [1, 2, 3, 4], 2, lora_id=5),
        BlockRemoved((7,)),
    )


def test_what_newer_versions_add_is_skipped_and_counted() -> None:
    """Trailing fields, named fields and whole kinds that we have never heard of."""
    future = [
        ["BlockRemoved", [7], "GPU", 0, "LOCAL", "tier", 9],
        {"type": "BlockRemoved", "block_hashes": [8], "medium": "GPU", "remaining": [0]},
        ["BlockMigrated", [7], {"to": "elsewhere"}],
    ]
    batch = decode_batch(pack([1.5, future, 0, "more"]))
    assert batch.events == (BlockRemoved((7,), "GPU", 0, "LOCAL"), BlockRemoved((8,), "GPU"))
    assert (batch.unknown_fields, batch.unknown_kinds) == (4, 1)


BAD: list[tuple[Any, str]] = [
    (7, "int where an array or a map belongs"),
    ([], "missing required field `ts`"),
    ([1.5], "missing required field `events`"),
    (["soon", []], r"\$.ts"),
    ([1.5, {"no": "list"}], r"\$.events"),
    ([1.5, [], "rank"], r"\$.data_parallel_rank"),
    ([1.5, [7]], "event 0 is neither"),
    ([1.5, [["AllBlocksCleared"], [7]]], "event 1 is neither"),
    ([1.5, [{"type": 7}]], "event 0 is neither"),
    ([1.5, [["BlockStored", [7]]]], r"event 0 \(BlockStored\): .*parent_block_hash"),
    ([1.5, [["BlockStored", ["x"], None, [], 2]]], r"\$.block_hashes\[0\]"),
    ([1.5, [["BlockStored", [True], None, [], 2]]], r"\$.block_hashes\[0\]"),
    ([1.5, [["BlockStored", [7], None, [-1], 1]]], r"\$.token_ids\[0\]"),
    ([1.5, [["BlockStored", [7], None, [2**32], 1]]], r"\$.token_ids\[0\]"),
    ([1.5, [["BlockStored", [7], None, [], 0]]], r"\$.block_size"),
    ([1.5, [["BlockRemoved", 7]]], r"event 0 \(BlockRemoved\): .*\$.block_hashes"),
    ([1.5, [{"type": "BlockRemoved", "hashes": [7]}]], "block_hashes"),
    ([1.5, [{"type": "BlockRemoved", 7: [7]}]], "BlockRemoved"),
]


@pytest.mark.parametrize(("value", "complaint"), BAD)
def test_garbage_is_refused_with_what_and_where(value: Any, complaint: str) -> None:
    """The text names the event and the field."""
    with pytest.raises(WireError, match=complaint):
        decode_batch(pack(value))


def test_oversize_torn_and_deep_payloads_are_refused() -> None:
    """Oversize, torn and deep payloads are refused: nothing is allocated for what is too long;
    nesting does not end the process.
    """
    with pytest.raises(WireError, match="bytes; a batch has at most"):
        decode_batch(bytes(MAX_PAYLOAD_BYTES + 1))
    with pytest.raises(WireError, match="truncated"):
        decode_batch(pack([1.5, [STORED]])[:-1])
    with pytest.raises(WireError):
        decode_batch(b"\x91" * 100_000)


_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text()
    | st.binary()
    | st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared"]),
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.dictionaries(
            st.sampled_from(["type", "ts", "events", "block_hashes"])
            | inner.filter(lambda key: isinstance(key, str | int | bytes)),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.binary(max_size=80) | _values.map(pack) | _values.map(lambda v: pack([1.5, [v]])))
def test_whatever_comes_is_a_batch_or_refused(payload: bytes) -> None:
    """No other exception, whatever the bytes."""
    try:
        decode_batch(payload)
    except WireError as error:
        assert str(error).startswith("KV events: ")


@given(st.data())
def test_a_torn_or_bent_batch_is_a_batch_or_refused(data: st.DataObject) -> None:
    """Every prefix of a real batch is refused; with a byte changed nothing else is raised."""
    engine = VllmEngine(block_size=2, as_maps=data.draw(st.booleans()))
    engine.compute([1, 2, 3, 4, 5, 6], "tuned")
    engine.evict(0)
    payload = engine.batch()
    cut = data.draw(st.integers(0, len(payload) - 1))
    with pytest.raises(WireError):
        decode_batch(payload[:cut])
    bent = bytearray(payload)
    bent[cut] ^= data.draw(st.integers(1, 255))
    try:
        decode_batch(bytes(bent))
    except WireError as error:
        assert str(error).startswith("KV events: ")
