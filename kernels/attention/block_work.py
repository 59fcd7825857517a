"""The work of blocks: segments of equal length whose positions only the card knows.

Owns how they become items and merges, by one kernel ahead of a pass. Must not know keys or heads.
The host's `kernels.attention.work` needs each segment's start; here the start depends on tokens
that the card has just sampled.

A block's context is cut into up to `pieces` pieces of equal length. Items without rows come last,
as the kernels expect.
"""

from functools import cache
from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.config import PrefillConfig
from kernels.attention.plan import PrefillWork
from kernels.attention.words import store_items, store_merges
from kernels.attention.work import ITEM_WORDS, MERGE_WORDS
from kernels.launch import Launch

_MOST_PIECES: Final = 32
"""A context of 60k tokens is then cut into pieces of 2k: 256 programs with 8 key heads."""


@triton.jit
def _num_pieces(positions, ROWS: tl.constexpr, PIECES: tl.constexpr, TILE: tl.constexpr):
    """(end of the keys, keys of a piece, pieces) of blocks that begin at `positions`."""
    ends = tl.where(positions < 0, 0, positions + ROWS)
    shares = tl.maximum(tl.cdiv(tl.cdiv(ends, PIECES), TILE), 1) * TILE
    return ends, shares, tl.cdiv(ends, shares)


@triton.jit(do_not_specialize=["num_blocks"])
def _block_work_kernel(
    positions_ptr,  # int32 [blocks], the first of each block
    table_rows_ptr,  # int32 [blocks]
    items_ptr,  # int32 [items, 8], see `HostWork`
    ahead_ptr,  # int32 [items, 8], for layers whose rows see ahead
    merges_ptr,  # int32 [rows, 4]
    num_blocks,  # blocks of rows
    ROWS: tl.constexpr,  # rows of a block
    TILES: tl.constexpr,  # tiles of a block
    TOKENS: tl.constexpr,  # rows of a tile
    PIECES: tl.constexpr,  # the most pieces of a block's keys
    PIECES_2: tl.constexpr,  # the power of two from PIECES on
    TILE: tl.constexpr,  # keys at once
    BLOCKS: tl.constexpr,  # the power of two from `num_blocks` on
    ROWS_2: tl.constexpr,  # the power of two from ROWS on
):
    """One tile of one block: program (block, tile)."""
    block, tile = tl.program_id(0), tl.program_id(1)
    others = tl.arange(0, BLOCKS)
    found = tl.load(positions_ptr + others, mask=others < num_blocks, other=-1)
    _, _, counts = _num_pieces(found, ROWS, PIECES, TILE)
    total = tl.sum(counts, 0) * TILES
    first = tl.sum(tl.where(others < block, counts, 0), 0) * TILES
    end, share, count = _num_pieces(tl.load(positions_ptr + block), ROWS, PIECES, TILE)
    table_row = tl.load(table_rows_ptr + block)
    position = end - ROWS + tile * TOKENS
    num_rows = tl.minimum(TOKENS, ROWS - tile * TOKENS)
    piece = tl.arange(0, PIECES_2)
    used = piece < count
    # The pieces that this program does not use are written behind all pieces in use.
    before_unused = (block * TILES + tile) * PIECES - first - tile * count
    index = tl.where(used, first + tile * count + piece, total + before_unused + piece - count)
    begin = tl.where(used, piece * share, 0)
    stop = tl.where(used, tl.minimum(begin + share, end), 0)
    row = block * ROWS + tile * TOKENS
    slot = tl.where(used & (count > 1), block * PIECES * ROWS + piece * ROWS + tile * TOKENS, -1)
    there = piece < PIECES
    zero = tl.zeros([PIECES_2], tl.int32)
    for which in tl.static_range(2):
        ptr = items_ptr if which == 0 else ahead_ptr
        seen = position if which == 0 else end
        own_rows = tl.where(used, num_rows, 0)
        store_items(
            ptr,
            index,
            zero + row,
            own_rows,
            zero + seen,
            zero + table_row,
            begin,
            stop,
            slot,
            there,
        )
    rows = tl.arange(0, ROWS_2)
    own = (rows >= tile * TOKENS) & (rows < tile * TOKENS + num_rows)
    merges = block * ROWS + rows
    first_slots = block * PIECES * ROWS + rows
    num_pieces = tl.where(count > 1, count, 0) + rows * 0
    store_merges(merges_ptr, merges, merges, first_slots, num_pieces, rows * 0 + ROWS, own)


def block_work(
    positions: Tensor,
    table_rows: Tensor,
    num_rows: int,
    heads: tuple[int, int],
    config: PrefillConfig,
) -> PrefillWork:
    """The work of blocks of `num_rows` rows, one after another, for layers whose rows see ahead and
    for others. `positions` int32 [blocks] has the position of each block's first row, `NO_ROW` for
    padding; `table_rows` int32 [blocks]; `heads`: the numbers of query heads and key heads.
    """
    num_blocks, (num_heads, num_kv) = positions.shape[0], heads
    tokens = config.rows // (num_heads // num_kv)
    fitting = max(1, config.target // (num_blocks * num_kv))
    # A power of two, like the blocks of a launch: then there are few kernels to compile.
    pieces = min(_MOST_PIECES, 1 << (fitting.bit_length() - 1))
    tiles = -(-num_rows // tokens)
    room = (num_blocks * tiles * pieces, ITEM_WORDS)
    items, ahead = (positions.new_empty(room) for _ in range(2))
    merges = positions.new_empty((num_blocks * num_rows, MERGE_WORDS))
    launch = _launch_of(num_rows, tokens, pieces, config.tile, triton.next_power_of_2(num_blocks))
    launch((num_blocks, tiles, 1), (positions, table_rows, items, ahead, merges), (num_blocks,))
    none = merges[:0]
    num_partials = num_blocks * pieces * num_rows if pieces > 1 else 0
    return PrefillWork(items, merges if pieces > 1 else none, num_partials, (), config, ahead=ahead)


@cache
def _launch_of(num_rows: int, tokens: int, pieces: int, tile: int, blocks: int) -> Launch:
    constants = {
        "ROWS": num_rows, "TILES": -(-num_rows // tokens), "TOKENS": tokens, "PIECES": pieces,
        "PIECES_2": triton.next_power_of_2(pieces), "TILE": tile, "BLOCKS": blocks,
        "ROWS_2": triton.next_power_of_2(num_rows),
    }  # fmt: skip
    return Launch(_block_work_kernel, constants, num_warps=1)
