"""The block pool by example."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import pytest

from protocol.hashing import block_digests, chained_digests, root_digest
from protocol.ids import BlockDigest
from protocol.messages import BlocksDropped, BlocksStored
from protocol.tokens import pack_tokens
from workers.scheduler.block_manager import BlockManager
from workers.scheduler.block_table import BlockTable
from workers.scheduler.integrity import IntegrityError

ROOT = root_digest("tiny")
OTHER_ROOT = root_digest("tiny", salt=b"own")


def tokens(*ids: int) -> array[int]:
    """Token ids as the scheduler holds them."""
    return array("I", ids)


def hold(blocks: BlockManager, ids: array[int], root: BlockDigest = ROOT) -> BlockTable:
    """A table that holds `ids`, all computed."""
    table = BlockTable(root)
    hit = blocks.match(table, ids)
    assert blocks.can_admit(hit, len(ids), 0)
    blocks.admit(table, hit, len(ids))
    blocks.store(table, ids, len(ids))
    return table


def num_hit(blocks: BlockManager, ids: array[int], root: BlockDigest = ROOT) -> int:
    """How many blocks of `ids` are cached."""
    return len(blocks.match(BlockTable(root), ids).block_ids)


def digests_of(ids: array[int]) -> list[BlockDigest]:
    """The digests in blocks of two."""
    return block_digests(ROOT, pack_tokens(ids), 2)


def test_a_prefix_is_shared_and_counted() -> None:
    """Two holders of one prefix hold the same blocks; the blocks are free once both let go."""
    blocks = BlockManager(8, 2)
    first = hold(blocks, tokens(1, 2, 3, 4, 5))
    second = hold(blocks, tokens(1, 2, 3, 4, 6))
    assert second.block_ids[:2] == first.block_ids[:2]
    assert blocks.num_free == 4
    blocks.check_integrity([first, second])
    blocks.release(first)
    blocks.check_integrity([second])
    assert blocks.num_free == 5
    blocks.release(second)
    blocks.check_integrity([])
    assert blocks.num_free == 8


@pytest.mark.parametrize(("num_tokens", "expected"), [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2)])
def test_a_hit_leaves_the_last_token_to_compute(num_tokens: int, expected: int) -> None:
    """A fully cached prompt still has its last token computed, for there must be logits."""
    blocks = BlockManager(8, 2)
    ids = tokens(1, 2, 3, 4, 5)
    blocks.release(hold(blocks, ids))
    assert num_hit(blocks, ids[:num_tokens]) == expected


def test_partial_blocks_are_not_cached() -> None:
    """Only full blocks whose every position was computed can be found."""
    blocks = BlockManager(8, 2)
    table = BlockTable(ROOT)
    ids = tokens(1, 2, 3, 4, 5)
    blocks.admit(table, blocks.match(table, ids), len(ids))
    blocks.store(table, ids, 3)
    assert num_hit(blocks, ids) == 1
    blocks.store(table, ids, 4)
    assert num_hit(blocks, ids) == 2


def test_roots_share_nothing() -> None:
    """Equal prompts under different salts hold different blocks."""
    blocks = BlockManager(8, 2)
    hold(blocks, tokens(1, 2, 3))
    assert num_hit(blocks, tokens(1, 2, 3)) == 1
    assert num_hit(blocks, tokens(1, 2, 3), OTHER_ROOT) == 0


def test_blocks_without_content_are_reused_first() -> None:
    """A block that nobody can find is reused before any cached one is evicted."""
    blocks = BlockManager(3, 2)
    blocks.release(hold(blocks, tokens(1, 2, 3)))
    assert blocks.grow(BlockTable(ROOT), 4)
    assert num_hit(blocks, tokens(1, 2, 3)) == 1


def test_eviction_takes_the_tail_of_the_oldest_first() -> None:
    """The longest unused prefix loses its blocks from the end, so that no hole arises."""
    blocks = BlockManager(4, 2)
    old, new = tokens(1, 2, 3, 4), tokens(5, 6, 7, 8)
    blocks.release(hold(blocks, old))
    blocks.release(hold(blocks, new))
    left = []
    table = BlockTable(ROOT)
    for num_blocks in range(1, 5):
        assert blocks.grow(table, num_blocks * 2)
        left.append((num_hit(blocks, old + tokens(0)), num_hit(blocks, new + tokens(0))))
        blocks.check_integrity([table])
    assert left == [(1, 2), (0, 2), (0, 1), (0, 0)]


def test_a_hit_makes_a_prefix_young_again() -> None:
    """A prefix that is used again is evicted last."""
    blocks = BlockManager(4, 2)
    old, new = tokens(1, 2, 3, 4), tokens(5, 6, 7, 8)
    blocks.release(hold(blocks, old))
    blocks.release(hold(blocks, new))
    table = BlockTable(ROOT)
    hit = blocks.match(table, old + tokens(0))
    blocks.admit(table, hit, 4)
    blocks.release(table)
    assert blocks.grow(BlockTable(ROOT), 4)
    assert num_hit(blocks, old + tokens(0)) == 2
    assert num_hit(blocks, new + tokens(0)) == 0


def test_a_twin_takes_the_cached_block_in_its_place() -> None:
    """Two sequences that computed the same block at the same time end up with one."""
    blocks = BlockManager(8, 2)
    ids = tokens(1, 2, 3)
    tables = [BlockTable(ROOT), BlockTable(ROOT)]
    for table in tables:
        blocks.admit(table, blocks.match(table, ids), len(ids))
    for table in tables:
        blocks.store(table, ids, len(ids))
    assert tables[0].block_ids[0] == tables[1].block_ids[0]
    assert tables[1].leading(2) == tuple(tables[1].block_ids)
    assert blocks.num_free == 5
    blocks.check_integrity(tables)


def test_digests_may_collide() -> None:
    """When two blocks have one digest, the ids decide: no wrong hit, and no chain below it."""

    def colliding(parent: BlockDigest, contents: Iterable[bytes]) -> list[BlockDigest]:
        one, other = pack_tokens([5, 6]), pack_tokens([1, 2])
        return chained_digests(parent, [content.replace(one, other) for content in contents])

    blocks = BlockManager(8, 2, digests=colliding)
    blocks.release(hold(blocks, tokens(1, 2, 3, 4, 0)))
    assert num_hit(blocks, tokens(5, 6, 3, 4, 0)) == 0
    table = hold(blocks, tokens(5, 6, 7, 8, 0))
    assert num_hit(blocks, tokens(5, 6, 7, 8, 0)) == 0
    assert num_hit(blocks, tokens(1, 2, 7, 8, 0)) == 1
    assert num_hit(blocks, tokens(1, 2, 3, 4, 0)) == 2
    blocks.check_integrity([table])


def test_a_constant_digest_is_only_useless() -> None:
    """Even when every block has the same digest, nothing wrong is found."""

    def constant(_parent: BlockDigest, contents: Iterable[bytes]) -> list[BlockDigest]:
        return [BlockDigest(bytes(16)) for _ in contents]

    blocks = BlockManager(8, 2, digests=constant)
    table = hold(blocks, tokens(1, 1, 1, 1, 1, 1, 1))
    assert len(set(table.block_ids)) == 4
    assert num_hit(blocks, tokens(1, 1, 1, 1, 1)) == 1
    assert num_hit(blocks, tokens(1, 1, 2), OTHER_ROOT) == 0
    blocks.check_integrity([table])


def test_growing_is_all_or_nothing() -> None:
    """Without enough free blocks nothing is taken."""
    blocks = BlockManager(3, 2)
    table = BlockTable(ROOT)
    assert not blocks.grow(table, 7)
    assert blocks.num_free == 3
    assert blocks.grow(table, 6)
    assert blocks.grow(table, 5)
    assert blocks.num_free == 0


def test_a_free_hit_is_not_counted_as_room() -> None:
    """Cached blocks that nobody holds are not free any more once they are hit."""
    blocks = BlockManager(3, 2)
    ids = tokens(1, 2, 3, 4)
    blocks.release(hold(blocks, ids))
    hit = blocks.match(BlockTable(ROOT), tokens(1, 2, 3, 4, 5))
    assert (len(hit.block_ids), hit.num_free) == (2, 2)
    assert blocks.can_admit(hit, 6, 0)
    assert not blocks.can_admit(hit, 6, 1)
    assert not blocks.can_admit(hit, 7, 0)


def test_events_are_numbered_and_joined() -> None:
    """Each run of stored or dropped digests is one event; the numbers have no gap."""
    blocks = BlockManager(2, 2)
    first, second = tokens(1, 2, 3, 4), tokens(5, 6)
    blocks.release(hold(blocks, first))
    hold(blocks, second)
    digests = digests_of(first)
    assert blocks.take_events() == (
        BlocksStored(1, digests[0] + digests[1]),
        BlocksDropped(2, digests[1]),
        BlocksStored(3, digests_of(second)[0]),
    )
    assert blocks.take_events() == ()
    snapshot = blocks.snapshot()
    assert snapshot.seq == 3
    assert snapshot.digests == digests[0] + digests_of(second)[0]


def test_a_snapshot_counts_events_not_taken_yet() -> None:
    """The number of a snapshot is that of the last change in it."""
    blocks = BlockManager(2, 2)
    hold(blocks, tokens(1, 2))
    assert blocks.snapshot().seq == 1
    assert [event.seq for event in blocks.take_events()] == [1]


@pytest.mark.parametrize("shape", [(0, 2), (2, 0)])
def test_an_empty_pool_is_refused(shape: tuple[int, int]) -> None:
    """A pool that holds nothing is an error at once."""
    with pytest.raises(ValueError, match="holds nothing"):
        BlockManager(*shape)


def test_broken_books_are_found() -> None:
    """A leaked holder, a forgotten table and a hole in a prefix are each named."""
    blocks = BlockManager(4, 2)
    table = hold(blocks, tokens(1, 2, 3, 4))
    with pytest.raises(IntegrityError, match="holders"):
        blocks.check_integrity([])
    parent = blocks._cached[table.block_ids[0]]
    assert parent is not None
    table.num_stored = 0
    del blocks._by_digest[parent.digest]
    blocks._cached[table.block_ids[0]] = None
    with pytest.raises(IntegrityError, match="hole"):
        blocks.check_integrity([table])
