"""The best token in two Triton launches: tiles of the vocabulary, then a program per row.

Owns both kernels. A row is read once, in its own dtype.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl
from kernels.launch import Launch

_TILE = 4096
_NUM_WARPS = 4


@triton.jit
def _ground(top):
    """The number that is subtracted before exponentiation: 0 where there is no finite maximum."""
    return tl.where(tl.abs(top) == float("inf"), 0.0, top)


@triton.jit(do_not_specialize=["num_tiles"])
def _tiles_kernel(
    logits_ptr,  # [T, vocab_size]
    tops_ptr,  # float32 [T, num_tiles], the best logit of each tile
    ids_ptr,  # int32 [T, num_tiles], its token
    sums_ptr,  # float32 [T, num_tiles], sum of exp(logit - best)
    num_tiles,  # tiles of a row
    vocab_size,  # tokens
    TILE: tl.constexpr,  # tokens of a program
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    tile, row = tl.program_id(0), tl.program_id(1)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    tokens = tile * TILE + tl.arange(0, TILE)
    row_ptr = logits_ptr + row.to(tl.int64) * vocab_size
    nothing = -float("inf")
    x = tl.load(row_ptr + tokens, mask=tokens < vocab_size, other=nothing).to(tl.float32)
    numbers = tl.where(x != x, nothing, x)  # noqa: PLR0124 - NaN
    top, place = tl.max(numbers, 0, return_indices=True, return_indices_tie_break_left=True)
    at = row.to(tl.int64) * num_tiles + tile
    tl.store(tops_ptr + at, top)
    tl.store(ids_ptr + at, tile * TILE + place)
    tl.store(sums_ptr + at, tl.sum(tl.exp(x - _ground(top)), 0))


@triton.jit(do_not_specialize=["num_tiles"])
def _rows_kernel(
    tops_ptr,  # float32 [T, num_tiles], the best logit of each tile
    ids_ptr,  # int32 [T, num_tiles], its token
    sums_ptr,  # float32 [T, num_tiles], sum of exp(logit - best)
    best_ptr,  # int64 [T], the best token
    probability_ptr,  # float32 [T], its probability; NaN if no logit is finite
    num_tiles,  # tiles of a row
    TILES: tl.constexpr,  # the power of two from `num_tiles` on
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    row = tl.program_id(0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    tiles = tl.arange(0, TILES)
    inside = tiles < num_tiles
    at = row.to(tl.int64) * num_tiles + tiles
    tops = tl.load(tops_ptr + at, mask=inside, other=-float("inf"))
    ids = tl.load(ids_ptr + at, mask=inside, other=0)
    sums = tl.load(sums_ptr + at, mask=inside, other=0.0)
    top, place = tl.max(tops, 0, return_indices=True, return_indices_tie_break_left=True)
    total = tl.sum(sums * tl.exp(_ground(tops) - _ground(top)), 0)
    total = tl.where(total == 0.0, 1.0, total)  # of a row of nothing
    tl.store(best_ptr + row, tl.sum(tl.where(tiles == place, ids, 0), 0).to(tl.int64))
    is_number = tl.abs(top) < float("inf")
    tl.store(probability_ptr + row, tl.where(is_number, 1.0 / total, float("nan")))


def best_tokens(logits: Tensor) -> tuple[Tensor, Tensor]:
    """See `kernels.sample.best_tokens`."""
    num_rows, vocab_size = logits.shape
    num_tiles = triton.cdiv(vocab_size, _TILE)
    ids = logits.new_empty(num_rows, dtype=torch.int64)
    probabilities = logits.new_empty(num_rows, dtype=torch.float32)
    if not num_rows:
        return ids, probabilities
    tops, sums = (logits.new_empty((num_rows, num_tiles), dtype=torch.float32) for _ in range(2))
    places = logits.new_empty((num_rows, num_tiles), dtype=torch.int32)
    by_tile, by_row = _launches(logits.device, vocab_size, triton.next_power_of_2(num_tiles))
    parts = tops, places, sums
    by_tile((num_tiles, num_rows, 1), (logits, *parts), (num_tiles,))
    by_row((num_rows, 1, 1), (*parts, ids, probabilities), (num_tiles,))
    return ids, probabilities


@cache
def _launches(device: torch.device, vocab_size: int, tiles: int) -> tuple[Launch, Launch]:
    """The launches for one vocabulary. Where its size is a multiple of 16, logits are read
    eight at once.
    """
    pdl = has_pdl(device)
    constants = {"vocab_size": vocab_size, "TILE": _TILE, "PDL": pdl}
    by_tile = Launch(_tiles_kernel, constants, num_warps=_NUM_WARPS)
    by_row = Launch(_rows_kernel, {"TILES": tiles, "PDL": pdl}, num_warps=_NUM_WARPS)
    return by_tile, by_row
