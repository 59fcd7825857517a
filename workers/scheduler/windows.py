"""The blocks of layers with a window, of which a sequence holds only those that it can still see.

Owns these blocks, their holders, and which of them a sequence lets go as it advances. Must not know
tensors, nor when a snapshot is made or evicted: it is asked to keep blocks for one, and asks for
blocks of the least one when none are free.

Such a network has two groups of layers. The layers that see everything use the blocks of
`BlockManager`. Those with a window have blocks of a pool of their own, and a sequence has a second
table for them. A prefix can be gone on from only where the last blocks of the window were kept, so
these are the snapshot of a prefix, found and evicted as the recurrent states of a hybrid are
(`snapshots.py`). Nothing is copied: a snapshot and the sequences that go on from it hold the same
blocks, to which no step writes any more.

A block has holders of two kinds. Blocks that a table holds are in use; those that only snapshots
hold are given to tables that need some. Blocks are let go before the chunk that no longer sees them
takes new ones: steps that still read them were planned earlier, and steps take effect in order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple, final

from workers.scheduler.block_table import WindowTable
from workers.scheduler.integrity import require
from workers.scheduler.prompt_budget import LEAST_TOKENS
from workers.scheduler.sequence import NEVER

GRAIN: Final = 128
"""Tokens. What a sequence keeps begins at a multiple of this at or before the first token that it
sees, because attention reads whole tiles of keys. No kernel's tile is longer."""


class WindowSizes(NamedTuple):
    """`num_blocks` blocks for layers that see `window` tokens, the one at their own position
    included.
    """

    num_blocks: int
    window: int


def first_kept(start: int, window: int, grain: int = GRAIN) -> int:
    """The first position whose keys a chunk at `start`, and all behind it, may read."""
    return max(0, start + 1 - window) // grain * grain


def most_kept(window: int, block_size: int, grain: int = GRAIN) -> int:
    """The most blocks that a sequence holds to compute one token."""
    return -(-(window + grain - 1) // block_size) + 1


@final
class NoWindowPool:
    """`WindowPool` of a model whose layers all see everything."""

    has_any: Final = False
    least: Final = NEVER
    kept: Final[tuple[int, ...]] = ()
    promised = 0

    def extend(self, table: WindowTable, num_tokens: int) -> bool:  # noqa: ARG002 - the pool's
        """True: no block is needed."""
        return True

    def fill(self, table: WindowTable, num_tokens: int) -> int:  # noqa: ARG002 - the pool's
        """All of them."""
        return num_tokens

    def pass_by(self, table: WindowTable, start: int) -> None:
        """Let nothing go."""

    def pass_later(self, table: WindowTable, start: int) -> None:
        """Let nothing go."""

    def pass_all(self) -> None:
        """Let nothing go."""

    def clear(self, table: WindowTable) -> None:
        """Let nothing go."""

    def keep(self, slot: int, table: WindowTable, num_blocks: int) -> bool:  # noqa: ARG002 - the pool's
        """True: the slot holds the whole snapshot."""
        return True

    def begin(self, table: WindowTable, slot: int, num_blocks: int) -> None:
        """Hold nothing."""

    def check_integrity(self, tables: Collection[WindowTable], slots: Collection[int]) -> None:
        """Nothing can be wrong."""


@final
class WindowPool:
    """The blocks of `sizes`, of `block_size` tokens each. `evict` frees what the least snapshot
    keeps; it returns whether there was one. `expected` is how many more blocks the tables that hold
    some should come to need, `promised` how many stay free for the sequence that starts next. There
    is room for `least` tokens of each prompt before a step is shared, so that each goes on.
    """

    has_any: Final = True

    def __init__(
        self, sizes: WindowSizes, block_size: int, grain: int = GRAIN, least: int = LEAST_TOKENS
    ) -> None:
        """Raises `ValueError` for a pool in which a sequence could not go on alone."""
        self.window = sizes.window
        self.num_blocks = sizes.num_blocks
        self.most_kept = most_kept(sizes.window, block_size, grain)
        self.least = least
        self._size = block_size
        fewest = self.most_kept + self._num_needed_of(least) + 1
        if grain % block_size or sizes.num_blocks < fewest:
            raise ValueError(f"{sizes} of {block_size} tokens: {fewest} blocks are the fewest")
        self.evict: Callable[[], bool] = lambda: False
        self.expected = 0
        self.promised = 0
        self._grain = grain
        self._free = list(range(sizes.num_blocks))[::-1]
        self._num_tables = [0] * sizes.num_blocks
        self._num_kept = [0] * sizes.num_blocks
        self._kept: dict[int, tuple[int, ...]] = {}
        self._num_held = 0
        self._passing: list[tuple[WindowTable, int]] = []

    def __repr__(self) -> str:
        return f"<WindowPool {self._num_held}/{self.num_blocks} held, {len(self._kept)} snapshots>"

    @property
    def kept(self) -> tuple[int, ...]:
        """Blocks that snapshots keep."""
        return tuple([block for block, count in enumerate(self._num_kept) if count])

    @property
    def num_held(self) -> int:
        """Blocks that tables hold."""
        return self._num_held

    def extend(self, table: WindowTable, num_tokens: int) -> bool:
        """Make `table` reach to `num_tokens` tokens; False, with nothing taken, if that many blocks
        cannot be had.
        """
        count = self._num_needed_of(num_tokens) - len(table.ids)
        if count <= 0:
            return True
        if not self._make_free(count + self.promised):
            return False
        table.extend([self._take() for _ in range(count)])
        return True

    def fill(self, table: WindowTable, num_tokens: int) -> int:
        """Make `table` reach to `num_tokens` tokens, or as near as blocks can be had. Returns to
        how many it reaches.
        """
        count = self._num_needed_of(num_tokens) - len(table.ids)
        if count > 0:
            self._make_free(count + self.promised)
            count = min(count, max(0, len(self._free) - self.promised))
            table.extend([self._take() for _ in range(count)])
        return min(num_tokens, len(table.ids) * self._size)

    def pass_by(self, table: WindowTable, start: int) -> None:
        """Let go what no chunk from `start` on sees."""
        first = min(self._first_block(start), len(table.ids))
        if first > table.first:
            self._let_go(table.ids[table.first : first])
            table.first = first

    def pass_later(self, table: WindowTable, start: int) -> None:
        """Like `pass_by`, but takes effect at `pass_all`: a chunk of this plan still reads these
        blocks.
        """
        self._passing.append((table, start))

    def pass_all(self) -> None:
        """Let go what `pass_later` has put off. The scheduler calls it before each plan."""
        for table, start in self._passing:
            self.pass_by(table, start)
        self._passing.clear()

    def clear(self, table: WindowTable) -> None:
        """Let go all that `table` holds."""
        self._let_go(table.held)
        table.begin(0, ())
        if self._passing:
            self._passing = [each for each in self._passing if each[0] is not table]

    def keep(self, slot: int, table: WindowTable, num_blocks: int) -> bool:
        """Keep for the snapshot in `slot` what a chunk behind `num_blocks` blocks sees. False if
        `table` has let go of a part of that.
        """
        first = self._first_block(num_blocks * self._size)
        if first < table.first or num_blocks > len(table.ids):
            return False
        self._kept[slot] = ids = tuple(table.ids[first:num_blocks])
        for block_id in ids:
            self._num_kept[block_id] += 1
        return True

    def drop(self, slot: int) -> None:
        """The snapshot in `slot` is gone."""
        for block_id in self._kept.pop(slot, ()):
            self._num_kept[block_id] -= 1
            if not self._num_kept[block_id] and not self._num_tables[block_id]:
                self._free.append(block_id)

    def begin(self, table: WindowTable, slot: int, num_blocks: int) -> None:
        """Let an empty `table` go on from the snapshot in `slot`, which is behind `num_blocks`
        blocks.
        """
        ids = self._kept[slot]
        table.begin(num_blocks - len(ids), ids)
        for block_id in ids:
            self._hold(block_id)

    def can_admit(self, slots: Iterable[int], num_new: int, own: int | None) -> bool:
        """Whether there are blocks for `num_new` tokens of a sequence that goes on from the
        snapshot in slot `own`, and for what others are expected to need; while no table holds
        blocks, one may take them all. `slots` are those whose snapshots cannot be evicted now.
        """
        spared = [*slots, *([] if own is None else [own])]
        ids = {block for slot in spared for block in self._kept.get(slot, ())}
        num_busy = self._num_held + sum([not self._num_tables[block] for block in ids])
        self.promised = self._num_needed_of(min(num_new, self.least)) + 1
        reserve = self.expected if self._num_held else 0
        if num_busy + self.promised + reserve <= self.num_blocks:
            return True
        self.promised = 0
        return False

    def check_integrity(self, tables: Collection[WindowTable], slots: Collection[int]) -> None:
        """Raise `IntegrityError` unless each block has the holders that it counts, and each
        snapshot of `slots` its blocks.
        """
        by_table, kept = [0] * self.num_blocks, [0] * self.num_blocks
        for table in tables:
            for block_id in table.held:
                by_table[block_id] += 1
        for ids in self._kept.values():
            for block_id in ids:
                kept[block_id] += 1
        require(by_table == self._num_tables, f"holders of {self!r}")
        require(kept == self._num_kept, f"kept blocks of {self!r}")
        require(sum(map(bool, by_table)) == self._num_held, f"held blocks of {self!r}")
        free = [at for at in range(self.num_blocks) if not by_table[at] and not kept[at]]
        require(sorted(self._free) == free, f"free blocks of {self!r}")
        require(set(self._kept) == set(slots), f"snapshots {sorted(slots)} of {self!r}")
        require(self.promised == 0, f"{self!r} has promised {self.promised} blocks")

    def _num_needed_of(self, num_tokens: int) -> int:
        return -(-num_tokens // self._size)

    def _first_block(self, start: int) -> int:
        return first_kept(start, self.window, self._grain) // self._size

    def _make_free(self, count: int) -> bool:
        while len(self._free) < count:
            if not self.evict():
                return False
        return True

    def _take(self) -> int:
        block_id = self._free.pop()
        self._hold(block_id)
        return block_id

    def _hold(self, block_id: int) -> None:
        self._num_held += not self._num_tables[block_id]
        self._num_tables[block_id] += 1

    def _let_go(self, ids: Iterable[int]) -> None:
        for block_id in ids:
            self._num_tables[block_id] -= 1
            if not self._num_tables[block_id]:
                self._num_held -= 1
                if not self._num_kept[block_id]:
                    self._free.append(block_id)
