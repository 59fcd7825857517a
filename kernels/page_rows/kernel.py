"""Triton copies of blocks to and from rows: a program takes up to 1,024 words of one block.

Owns the launches.
"""

from functools import cache

import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import Launch
from kernels.page_rows.reference import SUM_WORDS

_NUM_WARPS = 4


@triton.jit(do_not_specialize=["row_words", "sum_words", "num_blocks"])
def _copy_rows_kernel(
    words_ptr,  # int64 [planes, num_blocks, SIZE], a card's blocks
    block_ids_ptr,  # int32 [rows], block of each row
    rows_ptr,  # int64 [rows, row_words], a block's planes one behind the other
    weights_ptr,  # int64 [planes * SIZE], what words are multiplied with in sums
    sums_ptr,  # int64 [rows, sum_words], a sum of each program
    row_words,  # words from row to row
    sum_words,  # sums from row to row
    num_blocks,  # blocks of a plane
    SIZE: tl.constexpr,  # words of a block in a plane
    PARTS: tl.constexpr,  # programs of a block's plane
    BLOCK: tl.constexpr,  # words of a program
    IS_LOAD: tl.constexpr,  # whether rows go to blocks, not blocks to rows
):
    row = tl.program_id(1).to(tl.int64)
    piece = tl.program_id(0)
    plane, part = piece // PARTS, piece % PARTS
    inside = part * BLOCK + tl.arange(0, BLOCK)
    there = inside < SIZE
    block = tl.load(block_ids_ptr + row).to(tl.int64)
    own = words_ptr + (plane.to(tl.int64) * num_blocks + block) * SIZE + inside
    at = plane * SIZE + inside
    other = rows_ptr + row * row_words + at
    if IS_LOAD:
        words = tl.load(other, mask=there, other=0)
        tl.store(own, words, mask=there)
    else:
        words = tl.load(own, mask=there, other=0)
        tl.store(other, words, mask=there)
    weights = tl.load(weights_ptr + at, mask=there, other=0)
    tl.store(sums_ptr + row * sum_words + piece, tl.sum(words * weights, 0))


def copy_rows(
    words: Tensor, block_ids: Tensor, rows: Tensor, weights: Tensor, sums: Tensor, *, is_load: bool
) -> None:
    """See `kernels.page_rows.copy_rows`."""
    planes, num_blocks, size = words.shape
    launch = _copy_launch(size, is_load)
    grid = planes * triton.cdiv(size, SUM_WORDS), block_ids.shape[0], 1
    numbers = rows.stride(0), sums.stride(0), num_blocks
    launch(grid, (words, block_ids, rows, weights, sums), numbers)


@cache
def _copy_launch(size: int, is_load: bool) -> Launch:
    constants = {
        "SIZE": size,
        "PARTS": triton.cdiv(size, SUM_WORDS),
        "BLOCK": min(SUM_WORDS, triton.next_power_of_2(size)),
        "IS_LOAD": is_load,
    }
    return Launch(_copy_rows_kernel, constants, num_warps=_NUM_WARPS)
