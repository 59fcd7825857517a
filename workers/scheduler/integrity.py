"""What must always be true of the block pool.

Owns the invariants, apart from the code that keeps them, so that a fuzz test and an idle engine can
check them. Must not change anything.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import chain
from typing import NamedTuple

from protocol.errors import HermaError
from protocol.ids import BlockDigest
from workers.scheduler.block_table import BlockTable


class IntegrityError(HermaError):
    """The bookkeeping of the engine contradicts itself: a bug of ours, never of a peer."""


Parent = int | BlockDigest
"""The parent of a cached block: the id of the block before it, which is evicted later; for a first
block the root digest.
"""


class CachedBlock(NamedTuple):
    """The content of a block that can be found. `packed_ids` (u32) and `parent` prove a hit."""

    digest: BlockDigest
    packed_ids: bytes
    parent: Parent


def check_blocks(
    num_holders: Sequence[int],
    cached: Sequence[CachedBlock | None],
    by_digest: dict[BlockDigest, int],
    free: Sequence[int],
    tables: Collection[BlockTable],
) -> None:
    """Raise `IntegrityError` naming the first broken invariant of the pool."""
    held = Counter(chain.from_iterable(table.block_ids for table in tables))
    for block_id, count in enumerate(num_holders):
        require(count == held[block_id], f"block {block_id}: {count} != {held[block_id]} holders")
    require(len(set(free)) == len(free), "the free list names a block twice")
    unheld = {block_id for block_id, count in enumerate(num_holders) if count == 0}
    require(set(free) == unheld, f"free list {sorted(free)} != unheld blocks {unheld}")
    for table in tables:
        once = len(set(table.block_ids)) == len(table.block_ids)
        require(once, f"{table!r} holds a block twice")
        stored = [cached[block_id] for block_id in table.block_ids[: table.num_stored]]
        digests = [block.digest if block else None for block in stored]
        require(digests == table.digests[: table.num_stored], f"{table!r} lost a stored block")
    _check_cache(cached, by_digest, free)


def require(holds: bool, otherwise: str) -> None:
    """Raise `IntegrityError` unless `holds`."""
    if not holds:
        raise IntegrityError(otherwise)


def _check_cache(
    cached: Sequence[CachedBlock | None], by_digest: dict[BlockDigest, int], free: Sequence[int]
) -> None:
    found = {block.digest: block_id for block_id, block in enumerate(cached) if block is not None}
    require(found == by_digest, "the index of digests differs from the blocks' contents")
    unheld = set(free)
    for block_id, block in enumerate(cached):
        if block is None or not isinstance(block.parent, int):
            continue
        require(cached[block.parent] is not None, f"prefix has a hole before block {block_id}")
        outlives = block_id not in unheld and block.parent in unheld
        require(not outlives, f"block {block_id} would outlive its parent {block.parent}")
