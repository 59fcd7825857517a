"""Segments cut into items, each the work of one program; once per step, on the host.

Owns how segments become items, which kernel serves which segment, and how many items and merges the
segments of a captured step can need. Must not launch anything.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from kernels import pinned
from kernels.attention.config import FIXED_SLOTS, LIBRARY_GRAIN, PrefillConfig
from kernels.attention.plan import ExtendSegment, PrefillWork, SharedRun
from kernels.attention.runs import MAX_LEVELS, SHARED_WORDS, IntArray, num_tiles, run_slots

WordArray: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int32]]
EndArray: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]


ITEM_WORDS: Final = 8
MERGE_WORDS: Final = 4

_FIXED_ITEMS: Final = 512
_FIXED_PIECES: Final = 8
"""Room of a captured step with fixed cuts: at least `_FIXED_ITEMS` items, and `_FIXED_PIECES` for
each of its tiles. A step with longer contexts is launched kernel by kernel."""


class HostWork(NamedTuple):
    """A `PrefillWork` on the host. Rows count from the first row behind the decodes, or from the
    first one where decodes can share.

    `items` int32 [items, 8]: row, rows, position of the first, table row, first key, end of the
    keys, slot of the first partial result or -1, 0; the longest first. `merges` int32 [rows, 4]:
    row, first slot, pieces, slots from piece to piece. `more` are passes behind this one.
    """

    items: IntArray
    merges: IntArray
    num_partials: int
    library: tuple[ExtendSegment, ...]
    config: PrefillConfig
    more: tuple["HostWork", ...] = ()
    shared: IntArray | None = None


def prefill_work(
    prefills: Sequence[ExtendSegment],
    num_decodes: int,
    num_heads: int,
    num_kv: int,
    config: PrefillConfig,
    *,
    library: bool,
    runs: Sequence[SharedRun] | None = None,
) -> HostWork:
    """The work of segments behind `num_decodes` decodes, which share `runs`; `runs` is None where
    decodes cannot share.

    With `library`, a long segment that starts at a multiple of `LIBRARY_GRAIN` leaves the largest
    multiple of `LIBRARY_GRAIN` leading rows to the library.
    """
    tokens = config.rows // (num_heads // num_kv)
    theirs: list[ExtendSegment] = []
    before = num_decodes if runs is None else 0
    tiles = [_single_tiles([s for s in prefills if s.num_rows == 1], before)]
    for segment in prefills:
        if segment.num_rows == 1:
            continue
        is_long = library and segment.num_rows >= config.library
        taken = segment.num_rows // LIBRARY_GRAIN * LIBRARY_GRAIN if is_long else 0
        if taken and segment.start % LIBRARY_GRAIN == 0:
            theirs.append(segment._replace(num_rows=taken))
        else:
            taken = 0
        tiles.append(_tiles(segment, taken, before, tokens))
    own = np.concatenate(tiles)
    if runs:
        room = num_partials_of(int(own[:, 1].sum()), num_decodes, num_heads, num_kv, config)
        work = _cut_beside(own, runs, tokens, num_decodes, num_kv, config, room)
        return work._replace(library=tuple(theirs))
    first, *more = [
        HostWork(*_cut(part, num_kv, config), (), config) for part in _passes(own, config)
    ]
    shared = None if runs is None else np.zeros((num_decodes, SHARED_WORDS), np.int32)
    return first._replace(library=tuple(theirs), more=tuple(more), shared=shared)


def to_device(work: HostWork, device: torch.device) -> PrefillWork:
    """The arrays on the card."""
    items, merges = (pinned.to_device(array, device) for array in (work.items, work.merges))
    more = tuple([to_device(part, device) for part in work.more])
    shared = None if work.shared is None else pinned.to_device(work.shared, device)
    return PrefillWork(items, merges, work.num_partials, work.library, work.config, more, shared)


def _tiles(segment: ExtendSegment, taken: int, num_decodes: int, tokens: int) -> IntArray:
    """Uncut items of the segment's rows behind the first `taken`: `tokens` rows each, over all keys
    that they see.
    """
    offsets = np.arange(taken, segment.num_rows, tokens)
    tiles = np.zeros((len(offsets), 8), np.int32)
    tiles[:, 0] = segment.first_row - num_decodes + offsets
    tiles[:, 1] = np.minimum(tokens, segment.num_rows - offsets)
    tiles[:, 2] = segment.start + offsets
    tiles[:, 3] = segment.table_row
    tiles[:, 5] = tiles[:, 1] + tiles[:, 2]
    tiles[:, 6] = -1
    return tiles


def _single_tiles(segments: Sequence[ExtendSegment], num_decodes: int) -> IntArray:
    """The uncut items of segments of one row, of which there may be hundreds."""
    known = [(s.first_row, 1, s.start, s.table_row, 0, s.start + 1, -1, 0) for s in segments]
    tiles = np.array(known, np.int32).reshape(-1, ITEM_WORDS)
    tiles[:, 0] -= num_decodes
    return tiles


def _passes(tiles: IntArray, config: PrefillConfig) -> Iterator[IntArray]:
    """The tiles in passes. With fixed cuts a pass has no more partial results than there is room
    for, or a single tile; otherwise there is one pass.
    """
    if not config.fixed:
        yield tiles
        return
    counts = -(-tiles[:, 5] // config.piece)
    slots = np.where(counts > 1, counts * tiles[:, 1], 0)
    begin = used = 0
    for index, needed in enumerate(slots.tolist()):
        if used + needed > FIXED_SLOTS and index > begin:
            yield tiles[begin:index]
            begin, used = index, 0
        used += needed
    yield tiles[begin:]


def _cut(tiles: IntArray, num_kv: int, config: PrefillConfig) -> tuple[IntArray, IntArray, int]:
    """Cut tiles into pieces of equal length, so that few tiles behind a long past fill the card."""
    ends = tiles[:, 5].astype(np.int64)
    return _pieces(tiles, -(-ends // (share := _share(ends, num_kv, config))), share)


def _pieces(tiles: IntArray, counts: EndArray, share: int) -> tuple[IntArray, IntArray, int]:
    """Cut each tile into `counts` pieces of `share` keys. Returns items, merges and the number of
    slots for partial results.
    """
    pieces = np.repeat(tiles, counts, axis=0)
    if len(pieces) == len(tiles):
        return _longest_first(tiles), np.empty((0, 4), np.int32), 0
    number = np.arange(len(pieces)) - np.repeat(np.cumsum(counts) - counts, counts)
    pieces[:, 4] = number * share
    pieces[:, 5] = np.minimum(pieces[:, 5], pieces[:, 4] + share)
    # A cut tile of n rows owns n slots per piece.
    slots = np.where(counts > 1, counts * tiles[:, 1], 0)
    first_slots = np.cumsum(slots) - slots
    is_cut = np.repeat(counts > 1, counts)
    numbered = np.repeat(first_slots, counts) + number * pieces[:, 1]
    pieces[:, 6] = np.where(is_cut, numbered, -1)
    return _longest_first(pieces), _merges(tiles, first_slots, counts), int(slots.sum())


def _cut_beside(
    own: IntArray,
    runs: Sequence[SharedRun],
    tokens: int,
    num_decodes: int,
    num_kv: int,
    config: PrefillConfig,
    room: int,
) -> HostWork:
    """Cut the tiles `own` of segments and those of `runs` into pieces of one length, whose partial
    results fit into `room` slots.
    """
    tiles, of_run, offsets = _run_tiles(runs, tokens)
    lengths = np.concatenate((own[:, 5], tiles[:, 5] - tiles[:, 4])).astype(np.int64)
    share = _share(lengths, num_kv, config)
    while True:
        counts = -(-lengths // share)
        own_counts, counts = counts[: len(own)], counts[len(own) :]
        items, merges, num_own = _pieces(own, own_counts, share)
        slots = run_slots(runs, share, num_decodes, num_own)
        if num_own + slots.num_slots <= room or share >= lengths.max():
            break
        share *= 2  # pieces of nested runs may leave slots unused
    pieces = np.repeat(tiles, counts, axis=0)
    number = np.arange(len(pieces)) - np.repeat(np.cumsum(counts) - counts, counts)
    pieces[:, 4] += number * share
    pieces[:, 5] = np.minimum(pieces[:, 5], pieces[:, 4] + share)
    first_slots, steps = (
        np.array(slots.first_slots)[of_run] + offsets,
        np.array(slots.steps)[of_run],
    )
    pieces[:, 6] = np.repeat(first_slots, counts) + number * np.repeat(steps, counts)
    items = _longest_first(np.concatenate((items, pieces)))
    return HostWork(items, merges, num_own + slots.num_slots, (), config, shared=slots.shared)


def _run_tiles(runs: Sequence[SharedRun], tokens: int) -> tuple[IntArray, EndArray, EndArray]:
    """Uncut items of runs, whose rows see all keys of the run; for each item the index of its run,
    and the place of its first row in that run.
    """
    all_runs = np.array(runs, np.int32)
    counts = -(-all_runs[:, 1] // tokens)
    of_run = np.repeat(np.arange(len(runs)), counts)
    offsets = (np.arange(len(of_run)) - np.repeat(np.cumsum(counts) - counts, counts)) * tokens
    first_row, num_rows, begin, end, table_row = all_runs[of_run].T
    tiles = np.zeros((len(of_run), ITEM_WORDS), np.int32)
    tiles[:, 0] = first_row + offsets
    tiles[:, 1] = np.minimum(tokens, num_rows - offsets)
    tiles[:, 2] = tiles[:, 5] = end
    tiles[:, 3] = table_row
    tiles[:, 4] = begin
    return tiles, of_run, offsets


def num_partials_of(
    num_rows: int, num_decodes: int, num_heads: int, num_kv: int, config: PrefillConfig
) -> int:
    """How many slots for partial results a step needs, by its numbers of segment rows and of
    decodes that share tokens. Pieces of runs become longer until their results fit, down to one
    piece for each run.
    """
    num_slots = config.cut_slots(num_heads, num_kv) + num_rows + num_decodes
    return max(num_slots, MAX_LEVELS * num_decodes)


def _share(ends: EndArray, num_kv: int, config: PrefillConfig) -> int:
    """How many keys a piece has, a multiple of `config.tile`; with fixed cuts `config.piece`.

    Among the lengths that make up to `config.waves` times as many programs as run at once, the
    function returns the length at which the last program ends first. An example on 132 places: 10
    tiles of 8 key heads are 80 programs uncut; in halves they are 160, as slow as uncut; in thirds
    they are 240 and take three quarters of that time.
    """
    if config.fixed:
        return config.piece
    shares = {
        -(-max(length, config.piece) // config.tile) * config.tile
        for length in _lengths(ends, num_kv, config)
    }
    if len(shares) == 1:
        return shares.pop()
    return min(sorted(shares, reverse=True), key=lambda x: _last_end(ends, x, num_kv, config))


def _lengths(ends: EndArray, num_kv: int, config: PrefillConfig) -> Iterator[int]:
    """The lengths of pieces worth comparing: the longest tile uncut; and for each number of rounds
    the length that fills these rounds, for the tiles as they are, and as if all were the longest.
    """
    total, longest = int(ends.sum()) * num_kv, int(ends.max(initial=1))
    uncut, places = len(ends) * num_kv, config.target
    if uncut >= config.waves * places or not uncut:
        yield (share := -(-total // places))
        if share < longest:
            yield longest
    elif 4 * uncut <= places:
        yield -(-longest // (places // uncut))
    else:
        yield longest
        for programs in range(places, config.waves * places + 1, places):
            yield -(-total // programs)
            yield -(-longest // max(1, programs // uncut))


def _last_end(ends: EndArray, share: int, num_kv: int, config: PrefillConfig) -> int:
    """When the last program ends, in keys: the pieces, the longest first, are dealt to the places
    in rounds, back and forth.
    """
    whole, rest = np.divmod(ends, share)
    lengths = np.concatenate((np.full(whole.sum(), share), np.sort(rest[rest > 0])[::-1]))
    costs = np.repeat(lengths + config.start, num_kv)
    rounds = np.zeros((-(-len(costs) // config.target), config.target), np.int64)
    rounds.reshape(-1)[: len(costs)] = costs
    rounds[1::2] = rounds[1::2, ::-1]
    return int(rounds.sum(0).max())


def _merges(tiles: IntArray, first_slots: EndArray, counts: EndArray) -> IntArray:
    """The merges of the rows of tiles that were cut."""
    is_cut = counts > 1
    rows, of_tile = tiles[is_cut, 1], np.repeat(np.flatnonzero(is_cut), tiles[is_cut, 1])
    steps = np.arange(len(of_tile)) - np.repeat(np.cumsum(rows) - rows, rows)
    columns = (
        tiles[of_tile, 0] + steps, first_slots[of_tile] + steps, counts[of_tile], tiles[of_tile, 1]
    )  # fmt: skip
    return np.stack(columns, axis=1).astype(np.int32)


def _longest_first(items: IntArray) -> IntArray:
    return items[np.argsort(items[:, 4] - items[:, 5], kind="stable")]


class SegmentBucket(NamedTuple):
    """Work at fixed sizes, for a captured step whose segments change at every replay.

    It has room for up to `num_segments` segments of `num_rows` rows together, behind contexts of
    any length, and for up to `num_sharing` decodes, whose runs have up to as many tiles.
    `num_items` and `num_partials` bound what `prefill_work` makes of them.
    """

    num_rows: int
    num_segments: int
    num_heads: int
    num_kv: int
    config: PrefillConfig
    num_items: int
    num_partials: int
    num_sharing: int = 0

    @property
    def num_words(self) -> int:
        """How many int32 hold the items, a merge for each row, and `shared` of each decode."""
        return self._first_shared + SHARED_WORDS * self.num_sharing

    @property
    def _first_merge(self) -> int:
        return ITEM_WORDS * self.num_items

    @property
    def _first_shared(self) -> int:
        return self._first_merge + MERGE_WORDS * self.num_rows

    def holds(self, segments: Sequence[ExtendSegment]) -> bool:
        """Whether segments that fit by their rows also fit by their pieces. Without fixed cuts they
        always do.
        """
        config = self.config
        if not config.fixed:
            return True
        num_items = num_partials = 0
        tokens = config.rows // (self.num_heads // self.num_kv)
        for _, num_rows, start, _ in segments:
            for first in range(start, start + num_rows, tokens):
                end = min(first + tokens, start + num_rows)
                pieces = -(-end // config.piece)
                num_items += pieces
                num_partials += pieces * (end - first) if pieces > 1 else 0
        return num_items <= self.num_items and num_partials <= self.num_partials

    def lay_out(
        self,
        segments: Sequence[ExtendSegment],
        num_decodes: int,
        words: WordArray,
        runs: Sequence[SharedRun] = (),
    ) -> None:
        """Write into `words`, which are zeros, the work of `segments` behind `num_decodes` decodes,
        and that of `runs` in a bucket for sharing decodes, where `num_decodes` is their number.

        Raises `ValueError` for what the bucket does not hold.
        """
        num_rows = sum([segment.num_rows for segment in segments])
        tokens = self.config.rows // (self.num_heads // self.num_kv)
        if (
            len(segments) > self.num_segments
            or num_rows > self.num_rows
            or num_tiles(runs, tokens) > self.num_sharing
        ):
            raise ValueError(
                f"{len(segments)} segments of {num_rows} rows and {len(runs)} shared runs do not "
                f"fit into {self}"
            )
        sizes = num_decodes, self.num_heads, self.num_kv, self.config
        all_runs = tuple(runs) if self.num_sharing else None
        work = prefill_work(segments, *sizes, library=False, runs=all_runs)
        if work.more or len(work.items) > self.num_items or work.num_partials > self.num_partials:
            raise ValueError(f"the pieces of {len(segments)} segments do not fit: ask `holds`")
        parts = (0, work.items), (self._first_merge, work.merges), (self._first_shared, work.shared)
        for first, part in parts:
            if part is not None:
                words[first : first + part.size] = part.ravel()

    def follow(self, words: WordArray, owners: WordArray, moves: WordArray) -> None:
        """For segments that may begin later: write to `moves` which words of `lay_out` grow then,
        as the entry of `owners` int32 [tables] for the segment's table row. These are the positions
        of its rows and the end of its keys, so only last pieces become longer.
        """
        items = words[: self._first_merge].reshape(-1, ITEM_WORDS)
        found = moves[: self._first_merge].reshape(-1, ITEM_WORDS)
        own = owners[items[:, 3]]
        is_last = items[:, 5] == items[:, 1] + items[:, 2]
        there = items[:, 1] > 0
        found[there, 2] = own[there]
        found[there & is_last, 5] = own[there & is_last]

    def work(self, words: Tensor) -> PrefillWork:
        """Views of the words on the card, which must lie at a multiple of 16 bytes."""
        sizes = self._first_merge, self._first_shared - self._first_merge
        items, merges, shared = words.split((*sizes, SHARED_WORDS * self.num_sharing))
        return PrefillWork(
            items.view(-1, ITEM_WORDS),
            merges.view(-1, MERGE_WORDS),
            self.num_partials,
            (),
            self.config,
            shared=shared.view(-1, SHARED_WORDS) if self.num_sharing else None,
        )


def segment_bucket(
    num_rows: int,
    num_segments: int,
    num_heads: int,
    num_kv: int,
    config: PrefillConfig,
    num_sharing: int = 0,
    longest: int | None = None,
) -> SegmentBucket:
    """The bucket with its bounds, for segments of up to `longest` rows, None: of any number. Raises
    `ValueError` where the library would take a segment.

    A tile has up to t tokens, so n segments of R rows have at most (R + n (t - 1)) // t tiles.
    Pieces are at least 1 / X of all tiles' keys, X = waves x target / key heads, and a tile of x
    pieces' keys is cut into fewer than x + 1: no more than X items beside one per tile, no more
    than t X slots beside one per row. With fixed cuts the bounds are chosen: ask `holds`.
    """
    longest = num_rows if longest is None else min(num_rows, longest)
    if longest >= config.library:
        raise ValueError(
            f"{longest} rows of a segment: from {config.library} on the library takes them"
        )
    tokens = config.rows // (num_heads // num_kv)
    num_tiles = (num_rows + num_segments * (tokens - 1)) // tokens
    if config.fixed:
        num_items = max(_FIXED_ITEMS, _FIXED_PIECES * num_tiles)
        return SegmentBucket(
            num_rows, num_segments, num_heads, num_kv, config, num_items, FIXED_SLOTS
        )
    num_cuts = config.waves * config.target // num_kv
    return SegmentBucket(
        num_rows,
        num_segments,
        num_heads,
        num_kv,
        config,
        num_items=num_cuts + num_tiles + num_sharing,
        num_partials=num_partials_of(num_rows, num_sharing, num_heads, num_kv, config),
        num_sharing=num_sharing,
    )
