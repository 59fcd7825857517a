"""What decodes share: each token is read once for each of them, and together where it pays."""

from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.attention import MAX_LEVELS, SharedRun, SharingCosts
from workers.engine.step.shared_prefixes import (
    SharedOrder,
    SharedPrefixes,
    common_blocks,
    shared_runs,
)
from workers.scheduler import Chunk

BLOCK = 4
ALWAYS = SharingCosts(tile_rows=4, tile=1.0, row=0.0, step=0.0)
REAL = SharingCosts(tile_rows=32, tile=1.6, row=100, step=28_000)

Change = tuple[str, int, int, int]
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["come", "come", "go", "grow", "move", "swap"]),
        st.integers(0, 30),
        st.integers(0, 12),
        st.integers(0, 9),
    ),
    max_size=25,
)


class Fleet:
    """Sequences whose blocks begin like those of others."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self._prompts: dict[int, tuple[int, ...]] = {}
        self._away: tuple[int, int] | None = None
        self._numbers = count()
        self._blocks = count()

    def change(self, change: Change) -> None:
        """A sequence comes behind another one's prompt, goes, fills blocks, is preempted and comes
        back elsewhere, or holds another block in place of an equal one.
        """
        kind, which, num_blocks, tokens = change
        if self._away is not None:
            seq, start = self._away
            self._away = None
            self._add(seq, (), start)
        if kind == "come" or not self.chunks:
            seqs = [chunk.seq for chunk in self.chunks]
            parent = self._prompts[seqs[which % len(seqs)]] if seqs else ()
            self._add(next(self._numbers), parent[:num_blocks], tokens)
            return
        index = which % len(self.chunks)
        chunk = self.chunks[index]
        if kind == "go":
            del self.chunks[index]
        elif kind == "grow":
            blocks = chunk.block_ids
            if (chunk.start + 1) % BLOCK == 0:
                blocks += (next(self._blocks),)
            self.chunks[index] = Chunk(chunk.seq, chunk.start + 1, 1, blocks, samples=True)
        elif kind == "move":
            del self.chunks[index]
            self._away = chunk.seq, chunk.start
        elif chunk.start >= BLOCK:
            at = num_blocks % (chunk.start // BLOCK)
            swapped = list(chunk.block_ids)
            swapped[at] = next(self._blocks)
            self.chunks[index] = Chunk(chunk.seq, chunk.start, 1, tuple(swapped), samples=True)
            self._prompts[chunk.seq] = ()

    def _add(self, seq: int, shared: tuple[int, ...], tokens: int) -> None:
        start = len(shared) * BLOCK + tokens
        own = start // BLOCK + 1 - len(shared)
        blocks = shared + tuple([next(self._blocks) for _ in range(own)])
        self.chunks.append(Chunk(seq, start, 1, blocks, samples=True))
        self._prompts[seq] = blocks[: start // BLOCK]


def _check(chunks: Sequence[Chunk], found: SharedOrder | None, costs: SharingCosts) -> None:
    """Runs are nested, in order, and of blocks that all their rows hold and have filled."""
    if found is None:
        return
    assert sorted(found.rows) == list(range(len(chunks)))
    ordered = [chunks[index] for index in found.rows]
    reached, levels = [0] * len(chunks), [0] * len(chunks)
    for run in found.runs:
        assert run.num_rows > 1
        assert run.table_row == run.first_row
        blocks = slice(run.begin // BLOCK, run.end // BLOCK)
        for row in range(run.first_row, run.first_row + run.num_rows):
            assert reached[row] == run.begin < run.end <= ordered[row].start
            assert ordered[row].block_ids[blocks] == ordered[run.table_row].block_ids[blocks]
            reached[row] = run.end
            levels[row] += 1
    assert max(levels) <= MAX_LEVELS
    assert sum(-(-run.num_rows // costs.tile_rows) for run in found.runs) <= len(chunks)


def _groups(chunks: Sequence[Chunk], found: SharedOrder | None) -> set[tuple[object, int, int]]:
    """The runs, whatever the order of rows."""
    if found is None:
        return set()
    seqs = [chunks[index].seq for index in found.rows]
    return {
        (frozenset(seqs[run.first_row : run.first_row + run.num_rows]), run.begin, run.end)
        for run in found.runs
    }


@given(CHANGES, st.sampled_from([ALWAYS, ALWAYS._replace(tile=1.4, row=3.0, step=10.0)]))
def test_each_token_is_read_once_for_each(changes: list[Change], costs: SharingCosts) -> None:
    """Kept from step to step, the groups are those of the same sequences seen at once."""
    fleet, kept = Fleet(), SharedPrefixes(costs, BLOCK)
    for change in changes:
        fleet.change(change)
        if not fleet.chunks:
            continue
        found = kept.order(fleet.chunks)
        _check(fleet.chunks, found, costs)
        assert kept.order(fleet.chunks) is found
        fresh = SharedPrefixes(costs, BLOCK).order(fleet.chunks)
        assert _groups(fleet.chunks, found) == _groups(fleet.chunks, fresh)


@given(CHANGES)
def test_all_that_is_shared_is_read_together(changes: list[Change]) -> None:
    """All that is shared is read together where sharing costs nothing: a row has in common with its
    runs what it has with any row.
    """
    fleet = Fleet()
    for change in changes:
        fleet.change(change)
    if len(fleet.chunks) < 2:
        return
    found = SharedPrefixes(ALWAYS._replace(tile_rows=99), BLOCK).order(fleet.chunks)
    _check(fleet.chunks, found, ALWAYS)
    keys = [chunk.block_ids[: chunk.start // BLOCK] for chunk in fleet.chunks]
    reached = dict.fromkeys(range(len(keys)), 0)
    levels = dict.fromkeys(range(len(keys)), 0)
    for run in found.runs if found else ():
        for index in found.rows[run.first_row : run.first_row + run.num_rows] if found else ():
            reached[index] = run.end // BLOCK
            levels[index] += 1
    if sum(levels.values()) and max(levels.values()) == MAX_LEVELS:
        return  # what lies deeper is read apart
    for index, key in enumerate(keys):
        others = [common_blocks(key, other) for i, other in enumerate(keys) if i != index]
        assert reached[index] == max(others)


@pytest.mark.parametrize(
    ("common", "runs"),
    [
        ([0] + [12_288] * 31, (SharedRun(0, 32, 0, 12_288, 0),)),
        ([0, 4096], ()),  # one launch more takes longer
        ([0, 32_768, 32_768], (SharedRun(0, 3, 0, 32_768, 0),)),
        ([0, 320, 320, 320], ()),
        # A block more of two rows is not worth merging.
        ([0, *[8192] * 3, 8224, *[8192] * 3], (SharedRun(0, 8, 0, 8192, 0),)),
        # Nested: a fleet, a project, a session.
        (
            [0, 6144, 4096, 4096, *[8192] * 7, 4096],
            (
                SharedRun(0, 12, 0, 4096, 0),
                SharedRun(0, 2, 4096, 6144, 0),
                SharedRun(3, 8, 4096, 8192, 3),
            ),
        ),
        # Rows that have little in common with the last, but much with each other.
        ([0, 30_000, 30_000, 32], (SharedRun(0, 3, 0, 30_000, 0),)),
        ([], ()),
        ([0], ()),
    ],
)
def test_runs_are_worth_it(common: list[int], runs: tuple[SharedRun, ...]) -> None:
    """Runs are worth it, at the costs of an H200."""
    assert shared_runs(common, REAL) == runs


def test_nothing_is_shared_without_costs() -> None:
    """Nothing is shared without costs, on a device whose kernels cannot."""
    chunks = [Chunk(seq, 9, 1, (1, 2, 3 + seq), samples=True) for seq in range(3)]
    assert SharedPrefixes(None, BLOCK).order(chunks) is None
    assert SharedPrefixes(ALWAYS, BLOCK).order(chunks) is not None


def test_a_number_is_given_to_another_sequence() -> None:
    """A number is given to another sequence, whose blocks may be the same tuple."""
    prefixes = SharedPrefixes(ALWAYS, BLOCK)
    ids = (1, 2, 3)
    chunks = [Chunk(seq, 9, 1, ids, samples=True) for seq in range(2)]
    assert prefixes.order(chunks) is not None
    prefixes.forget([1, 5])
    early = [chunks[0], Chunk(1, 3, 1, ids, samples=True)]
    assert prefixes.order(early) is None
