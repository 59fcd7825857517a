"""Which decodes of a step begin with the same blocks, and which of these attend to them together.

Owns the decodes in the order of their blocks, kept from step to step, and the choice by cost. Must
not know tensors or kernels. The block tables alone say what is shared.

Sequences are sorted by their blocks, so those with a common prefix are neighbours. The common
prefix of a range is the shortest one of two neighbours in it, so the ranges form a tree (Kasai et
al., 2001, on suffix arrays). A step in which no sequence came, went or changed its leading blocks
costs one comparison for each.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias, final

from kernels.attention import MAX_LEVELS, SharedRun, SharingCosts
from workers.scheduler import Chunk

_Key: TypeAlias = tuple[int, ...]


class SharedOrder(NamedTuple):
    """The order of a step's rows, as indices of chunks, and the runs of rows that share a prefix.
    In `runs` the `table_row` is a row of this order; `on_card` replaces it.
    """

    rows: tuple[int, ...]
    runs: tuple[SharedRun, ...]

    def on_card(self, table_rows: Sequence[int]) -> tuple[SharedRun, ...]:
        """The runs, for rows whose block tables lie in `table_rows` of the card's tables."""
        return tuple([run._replace(table_row=table_rows[run.table_row]) for run in self.runs])


@final
class SharedPrefixes:
    """The decodes of the last step, sorted by their blocks. `costs` None: nothing is shared."""

    def __init__(self, costs: SharingCosts | None, block_size: int) -> None:
        self._costs = costs
        self._block_size = block_size
        self._held: dict[int, tuple[int, ...]] = {}
        self._keys: dict[int, _Key] = {}
        self._sorted: list[tuple[_Key, int]] = []
        self._common: list[int] = []
        self._seqs: tuple[int, ...] = ()
        self._found: SharedOrder | None = None

    def forget(self, seqs: Iterable[int]) -> None:
        """Forget ended sequences: other sequences may get their numbers."""
        for seq in seqs:
            self._remove(seq)

    def order(self, chunks: Sequence[Chunk]) -> SharedOrder | None:
        """What the decodes `chunks` share: the same object as long as it does not change, or None
        if sharing does not pay.
        """
        if self._costs is None:
            return None
        seqs = tuple([chunk.seq for chunk in chunks])
        changed = [chunk for chunk in chunks if self._held.get(chunk.seq) is not chunk.block_ids]
        if not changed and seqs == self._seqs:
            return self._found
        is_new = seqs != self._seqs
        for chunk in changed:
            is_new |= self._take(chunk)
        if len(seqs) != len(self._held):
            self.forget(self._held.keys() - set(seqs))
        if is_new:
            self._seqs = seqs
            found = self._arranged(self._costs)
            if found != self._found:
                self._found = found
        return self._found

    def _take(self, chunk: Chunk) -> bool:
        """Enter a sequence. Returns whether it is new or its leading blocks have changed. Only the
        blocks that it held at its first decode are compared; those that it has filled since are
        its own.
        """
        seq, ids = chunk.seq, chunk.block_ids
        key = self._keys.get(seq)
        if (
            key is not None
            and ids[: len(key)] == key
            and chunk.start >= len(key) * self._block_size
        ):
            self._held[seq] = ids
            return False
        self._remove(seq)
        key = ids[: chunk.start // self._block_size]
        self._held[seq], self._keys[seq] = ids, key
        at = bisect_left(self._sorted, (key, seq))
        self._sorted.insert(at, (key, seq))
        self._common.insert(at, 0)
        self._compare(at)
        self._compare(at + 1)
        return True

    def _remove(self, seq: int) -> None:
        key = self._keys.pop(seq, None)
        if key is None:
            return
        del self._held[seq]
        self._seqs = ()
        at = bisect_left(self._sorted, (key, seq))
        del self._sorted[at], self._common[at]
        self._compare(at)

    def _compare(self, at: int) -> None:
        """Set what an entry has in common with the one before it."""
        if 0 < at < len(self._sorted):
            self._common[at] = common_blocks(self._sorted[at - 1][0], self._sorted[at][0])
        elif at == 0 and self._common:
            self._common[0] = 0

    def _arranged(self, costs: SharingCosts) -> SharedOrder | None:
        runs = shared_runs([count * self._block_size for count in self._common], costs)
        if not runs:
            return None
        index_of = {seq: index for index, seq in enumerate(self._seqs)}
        return SharedOrder(tuple([index_of[seq] for _, seq in self._sorted]), runs)


def common_blocks(first: _Key, second: _Key) -> int:
    """How many leading blocks two tables have in common."""
    same, end = 0, min(len(first), len(second))
    if first[:end] == second[:end]:
        return end
    while end - same > 1:
        middle = (same + end) // 2
        if first[same:middle] == second[same:middle]:
            same = middle
        else:
            end = middle
    return same


def shared_runs(common: Sequence[int], costs: SharingCosts) -> tuple[SharedRun, ...]:
    """The runs that pay, for rows that each have `common[row]` tokens in common with the row
    before. Empty if they do not save `costs.step`, the extra time of a step with runs.

    Goes from the outermost ranges inwards. A range becomes a run, which reads its common tokens
    once, in tiles of rows, if that takes less time than its parts do; each of these reads the
    tokens once at best.
    """
    runs: list[SharedRun] = []
    saved, left = 0.0, len(common)
    ranges = [(0, len(common), 0, 0)] if len(common) > 1 and max(common) else []
    while ranges:
        first, end, begin, level = ranges.pop()
        shared = min(common[first + 1 : end])
        cuts = [first, *[row for row in range(first + 1, end) if common[row] == shared], end]
        parts = list(itertools.pairwise(cuts))
        count = end - first
        apart = sum([costs.reading(part[1] - part[0]) for part in parts])
        gain = (apart - costs.tiles(count)) * (shared - begin) - costs.row * count
        num_tiles = -(-count // costs.tile_rows)
        if gain > 0 and num_tiles <= left:
            runs.append(SharedRun(first, count, begin, shared, first))
            saved, left = saved + gain, left - num_tiles
            begin, level = shared, level + 1
        if level < MAX_LEVELS:
            deeper = [part for part in reversed(parts) if part[1] - part[0] > 1]
            ranges += [(*part, begin, level) for part in deeper]
    return tuple(runs) if saved > costs.step else ()
