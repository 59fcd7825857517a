"""Segments cut into what one program does, once per step, on the host.

Owns how segments become items, which kernel takes which segment, and how many items and merges the
segments of a captured step can need. Must not launch anything.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from kernels.attention.config import FIXED_SLOTS, LIBRARY_GRAIN, PrefillConfig
from kernels.attention.plan import ExtendSegment, PrefillWork

IntArray: TypeAlias = np.ndarray[tuple[int, int], np.dtype[np.int32]]
WordArray: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int32]]
EndArray: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]


_ITEM_WORDS: Final = 8
_MERGE_WORDS: Final = 4

_FIXED_ITEMS: Final = 512
_FIXED_PIECES: Final = 8
"""Items of a captured step with fixed cuts: so many at least, and so many for each of its tiles. A
step with longer contexts is launched kernel by kernel."""


class HostWork(NamedTuple):
    """A `PrefillWork` on the host. Rows count from the first row behind the decodes.

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


def prefill_work(
    prefills: Sequence[ExtendSegment],
    num_decodes: int,
    num_heads: int,
    num_kv: int,
    config: PrefillConfig,
    *,
    library: bool,
) -> HostWork:
    """The work of segments whose rows lie behind `num_decodes` decodes.

    With `library`, the leading multiple of `LIBRARY_GRAIN` rows of a long segment that starts at
    such a multiple is left to the library.
    """
    tokens = config.rows // (num_heads // num_kv)
    theirs: list[ExtendSegment] = []
    tiles = [_single_tiles([s for s in prefills if s.num_rows == 1], num_decodes)]
    for segment in prefills:
        if segment.num_rows == 1:
            continue
        is_long = library and segment.num_rows >= config.library
        taken = segment.num_rows // LIBRARY_GRAIN * LIBRARY_GRAIN if is_long else 0
        if taken and segment.start % LIBRARY_GRAIN == 0:
            theirs.append(segment._replace(num_rows=taken))
        else:
            taken = 0
        tiles.append(_tiles(segment, taken, num_decodes, tokens))
    first, *more = [
        HostWork(*_cut(part, num_kv, config), (), config)
        for part in _passes(np.concatenate(tiles), config)
    ]
    return first._replace(library=tuple(theirs), more=tuple(more))


def to_device(work: HostWork, device: torch.device) -> PrefillWork:
    """The arrays on the card."""
    items, merges = (_sent(array, device) for array in (work.items, work.merges))
    more = tuple([to_device(part, device) for part in work.more])
    return PrefillWork(items, merges, work.num_partials, work.library, work.config, more)


def _sent(array: IntArray, device: torch.device) -> Tensor:
    """Pinned: a copy from pageable memory waits for the steps in flight once it is large."""
    source = torch.from_numpy(array)
    if device.type == "cuda":
        source = source.pin_memory()
    return source.to(device, non_blocking=True)


def _tiles(segment: ExtendSegment, taken: int, num_decodes: int, tokens: int) -> IntArray:
    """Items of `tokens` rows over all keys that they see, of the segment's rows behind `taken`."""
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
    """The same of segments of one row: there may be hundreds."""
    known = [(s.first_row, 1, s.start, s.table_row, 0, s.start + 1, -1, 0) for s in segments]
    tiles = np.array(known, np.int32).reshape(-1, _ITEM_WORDS)
    tiles[:, 0] -= num_decodes
    return tiles


def _passes(tiles: IntArray, config: PrefillConfig) -> Iterator[IntArray]:
    """Runs of tiles; with fixed cuts of no more partial results than fit, or of one tile."""
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
    """Pieces of equal length, so that few tiles behind a long past still fill the card."""
    ends = tiles[:, 5].astype(np.int64)
    counts = -(-ends // (share := _share(ends, num_kv, config)))
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


def _share(ends: EndArray, num_kv: int, config: PrefillConfig) -> int:
    """Keys of a piece, a multiple of `config.tile`: of those that cut up to `config.waves` times as
    many pieces as run at once, the one with which the last ends first. 10 tiles of 8 key heads are
    80 programs uncut and 160 in halves, on 132 places as slow as uncut; in thirds, 240, they take
    three quarters of that. With fixed cuts it is `config.piece`.
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
    """Worth comparing: the longest tile whole, and for each number of rounds as many pieces as
    those hold, if all tiles were that long and as they are.
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
    """When the last program ends, in keys: pieces go round by their lengths, back and forth."""
    whole, rest = np.divmod(ends, share)
    lengths = np.concatenate((np.full(whole.sum(), share), np.sort(rest[rest > 0])[::-1]))
    costs = np.repeat(lengths + config.start, num_kv)
    rounds = np.zeros((-(-len(costs) // config.target), config.target), np.int64)
    rounds.reshape(-1)[: len(costs)] = costs
    rounds[1::2] = rounds[1::2, ::-1]
    return int(rounds.sum(0).max())


def _merges(tiles: IntArray, first_slots: EndArray, counts: EndArray) -> IntArray:
    """The merges of every row of the tiles that are cut."""
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
    """Work at fixed sizes, for a captured step that meets other segments at every replay.

    Up to `num_segments` segments of `num_rows` rows in all, whatever their pasts.

    `num_items` and `num_partials` bound what `prefill_work` makes of them.
    """

    num_rows: int
    num_segments: int
    num_heads: int
    num_kv: int
    config: PrefillConfig
    num_items: int
    num_partials: int

    @property
    def num_words(self) -> int:
        """int32 numbers that hold the items, then the merges: one for each row at most."""
        return _ITEM_WORDS * self.num_items + _MERGE_WORDS * self.num_rows

    def holds(self, segments: Sequence[ExtendSegment]) -> bool:
        """Whether segments that fit by their rows fit by their pieces too: always, unless cuts are
        fixed.
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
        self, segments: Sequence[ExtendSegment], num_decodes: int, words: WordArray
    ) -> None:
        """Write the work of `segments`, which lie behind `num_decodes` decodes, into zeros `words`.

        Raises `ValueError` for segments that the bucket does not hold.
        """
        num_rows = sum([segment.num_rows for segment in segments])
        if len(segments) > self.num_segments or num_rows > self.num_rows:
            raise ValueError(f"{len(segments)} segments of {num_rows} rows do not fit into {self}")
        work = prefill_work(
            segments, num_decodes, self.num_heads, self.num_kv, self.config, library=False
        )
        if work.more or len(work.items) > self.num_items or work.num_partials > self.num_partials:
            raise ValueError(f"the pieces of {len(segments)} segments do not fit: ask `holds`")
        items, merges = work.items.ravel(), work.merges.ravel()
        words[: items.size] = items
        first = _ITEM_WORDS * self.num_items
        words[first : first + merges.size] = merges

    def work(self, words: Tensor) -> PrefillWork:
        """Views of the words on the card, which must lie at a multiple of 16 bytes."""
        first = _ITEM_WORDS * self.num_items
        items, merges = words[:first].view(-1, _ITEM_WORDS), words[first:].view(-1, _MERGE_WORDS)
        return PrefillWork(items, merges, self.num_partials, (), self.config)


def segment_bucket(
    num_rows: int, num_segments: int, num_heads: int, num_kv: int, config: PrefillConfig
) -> SegmentBucket:
    """The bucket with its bounds. Raises `ValueError` where the library would take a segment.

    A tile has up to t tokens, so n segments of R rows have at most (R + n (t - 1)) // t tiles.
    Pieces are at least 1 / X of all tiles' keys, X = waves x target / key heads, and a tile of x
    pieces' keys is cut into fewer than x + 1: no more than X items beside one per tile, no more
    than t X slots beside one per row. With fixed cuts the bounds are chosen: ask `holds`.
    """
    if num_rows >= config.library:
        raise ValueError(
            f"{num_rows} rows of segments: from {config.library} on the library takes them"
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
        num_items=num_cuts + num_tiles,
        num_partials=config.cut_slots(num_heads, num_kv) + num_rows,
    )
