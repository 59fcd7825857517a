"""Blocks that running sequences will compute, so that no other sequence needs to.

Owns the digests that are under way, and the sequences that compute them. Must not know what is
computed already, nor which sequences wait. In a model with recurrent states a sequence may compute
cached blocks again for the state behind them; others wait for that state.

A sequence announces the full blocks of its prompt when it starts. It announces work, not content: a
block can be read, and is reported to the gateways, when the step that computes it is committed. The
announcement ends then, or when the sequence ends or loses its blocks for any reason; sequences that
waited for the block then look again.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence
from typing import final

from protocol.ids import BlockDigest
from workers.scheduler.block_table import BlockTable
from workers.scheduler.integrity import require


@final
class PlannedBlocks:
    """Each digest with the table of the first sequence that announced it."""

    __slots__ = ("_by_digest",)

    def __init__(self) -> None:
        self._by_digest: dict[BlockDigest, BlockTable] = {}

    def __len__(self) -> int:
        return len(self._by_digest)

    def __contains__(self, digest: BlockDigest) -> bool:
        return digest in self._by_digest

    def announce(self, table: BlockTable, num_blocks: int, cached: Container[BlockDigest]) -> None:
        """The holder of `table` will compute its blocks up to `num_blocks`; those that are `cached`
        are not announced. (A block is cached behind one that is not only if digests collide.)
        """
        table.num_announced = num_blocks
        by_digest = self._by_digest
        for digest in table.digests[table.num_stored : num_blocks]:
            if digest not in cached:
                by_digest.setdefault(digest, table)

    def computed(self, digests: Iterable[BlockDigest]) -> None:
        """These blocks are in the prefix cache now, whichever sequence computed them."""
        by_digest = self._by_digest
        if by_digest:
            for digest in digests:
                by_digest.pop(digest, None)

    def withdraw(self, table: BlockTable) -> None:
        """The holder of `table` computes no more of what it has announced."""
        by_digest = self._by_digest
        for digest in table.digests[table.num_stored : table.num_announced]:
            if by_digest.get(digest) is table:
                del by_digest[digest]
        table.num_announced = table.num_awaited = 0
        table.awaited_states.clear()

    def end_of_coming(
        self, digests: Sequence[BlockDigest], num_found: int, num_matched: int
    ) -> int:
        """How many leading blocks a sequence can find if it waits. The first `num_matched` blocks
        are cached; behind them it counts blocks under way until one is not. The last counted block
        must be under way; the result is `num_found`, what it finds now, if there is none.
        """
        by_digest, end = self._by_digest, num_matched
        while end < len(digests) and digests[end] in by_digest:
            end += 1
        while end > num_found and digests[end - 1] not in by_digest:
            end -= 1
        return end

    def await_until(
        self, digests: Sequence[BlockDigest], num_blocks: int, *, needs_state: bool = False
    ) -> None:
        """A sequence waits for the first `num_blocks` of `digests`, the last of which is under way,
        and for the state behind them if it `needs_state`.
        """
        table = self._by_digest[digests[num_blocks - 1]]
        table.num_awaited = max(table.num_awaited, num_blocks)
        if needs_state:
            table.awaited_states.add(num_blocks)

    def check_integrity(
        self, tables: Collection[BlockTable], cached: Container[BlockDigest]
    ) -> None:
        """Raise `IntegrityError` unless the announcer of each block runs and will compute it."""
        held = {id(table): table for table in tables}
        for digest, table in self._by_digest.items():
            require(id(table) in held, f"{table!r} is gone and has announced a block")
            open_ = table.digests[table.num_stored : table.num_announced]
            require(digest in open_, f"{table!r} will not compute what it has announced")
            require(digest not in cached, f"a block of {table!r} is cached and announced")
