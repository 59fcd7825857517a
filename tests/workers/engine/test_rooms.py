"""Which rooms there are for mixed steps, and what a step needs of one."""

import pytest

from workers.core.plan import Chunk
from workers.engine.rooms import Room, need_of, rooms

QWEN_0_6B, QWEN_8B, QWEN_32B = 15_728_640, 192_937_984, 487_587_840


def test_large_models_have_small_rooms() -> None:
    """Padding must not cost the card more than launching costs the host."""
    sizes = {size: [room.num_rows for room in rooms(256, size)] for size in (QWEN_8B, QWEN_32B)}
    assert sizes == {QWEN_8B: [32, 64, 128, 128, 256, 384, 256, 256], QWEN_32B: [32, 64, 128, 128]}
    assert max(room.num_rows for room in rooms(256, QWEN_0_6B)) == 1024
    assert rooms(256, 10**10) == ()


@pytest.mark.parametrize("max_rows", [1, 2, 8, 16, 100, 300])
def test_rooms_fit_the_batch(max_rows: int) -> None:
    """None holds more sequences of a kind than can run, and none is another one with more rows."""
    found = rooms(max_rows, 1)
    assert all(room.num_decodes <= max_rows and room.num_spans <= max_rows for room in found)
    assert all(not a.holds(b) for b in found for a in found if a.num_rows < b.num_rows)
    assert found[0] == Room(0, 32, 1)
    assert len(set(found)) == len(found)


def test_what_chunks_need() -> None:
    """Single tokens are decodes, wherever their token comes from."""
    chunks = [Chunk(seq, 3, length, (0,), samples=True) for seq, length in enumerate((1, 5, 1, 2))]
    assert need_of(chunks) == Room(2, 7, 2)
    assert need_of(chunks[:1]) == Room(1, 0, 0)
    assert Room(2, 7, 2).num_rows == 9
    assert Room(2, 7, 2).num_sampled == 4
