"""Triton picking of tokens, in two launches and without waiting.

The first finds the best bound of every tile of the vocabulary; the second, a program per row,
goes through tiles and tokens by falling bound and calculates true scores until no bound is above
the best of them: mostly one tile and one token. So the choice is exact, though nearly all scores
are only bounded.
"""

from functools import cache
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl, is_card
from kernels.launch import Launch
from kernels.philox.kernel import philox_words
from kernels.sample.bounds import row_draw, take, tile_bounds, top_of
from kernels.sample.cut import UNUSED_BITS, find_cut
from kernels.sample.reference import Draws

TILE: Final = 2048
_NUM_WARPS: Final = 4


@triton.jit
def _tile_tops_kernel(
    logits_ptr,  # [T, vocab_size]
    seeds_ptr,  # int64 [T], of the draws
    temperature_ptr,  # float32 [T]; 0 takes the best token
    positions_ptr,  # int32 or int64 [T], of the drawn tokens
    tops_ptr,  # float32 [T, num_tiles], the best bound of each tile
    keys_ptr,  # int32 [T], of the row's `Cut`, as the three behind
    ties_ptr,  # int32 [T]
    floors_ptr,  # float32 [T]
    equals_ptr,  # int32 [T, num_tiles]
    vocab_size,  # tokens
    num_tiles,  # tiles of a row
    FILTERED: tl.constexpr,  # whether there is a `Cut`
    UNUSED: tl.constexpr,  # low bits that are 0 in every key
    TILES: tl.constexpr,  # the power of two from `num_tiles` on
    TILE: tl.constexpr,  # tokens of a tile
    FAST: tl.constexpr,  # whether the logarithm is the card's
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    tile, row = tl.program_id(0), tl.program_id(1)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    draw = row_draw(seeds_ptr, temperature_ptr, positions_ptr, row)
    cut_ptrs = (keys_ptr, ties_ptr, floors_ptr, equals_ptr)
    b0, b1, b2, b3 = tile_bounds(
        logits_ptr,
        row,
        tile,
        vocab_size,
        num_tiles,
        draw,
        cut_ptrs,
        FILTERED,
        UNUSED,
        TILES,
        TILE,
        FAST,
    )
    tl.store(tops_ptr + row * num_tiles + tile, top_of(b0, b1, b2, b3))


@triton.jit
def _score(logit, token, draw):
    """The true score, as `kernels.sample.reference` defines it."""
    temperature, position, key_low, key_high = draw
    score = logit
    if temperature > 0.0:
        w0, w1, w2, w3 = philox_words(token // 4, position, key_low, key_high)
        lane = token % 4
        word = tl.where(lane < 2, tl.where(lane == 0, w0, w1), tl.where(lane == 2, w2, w3))
        uniform = ((word >> 9).to(tl.float64) + 0.5) * 1.1920928955078125e-07
        noise = -tl.log(-tl.log(uniform))
        score = tl.div_rn(logit, temperature) + noise.to(tl.float32)
    return score


@triton.jit
def _may_win(bound, best, temperature):
    """Whether a token of this bound can score above `best`: bounds are rounded, logits are not."""
    bound = tl.maximum(bound, -1e38)
    slack = tl.where(temperature > 0.0, 4e-5 + 2e-6 * tl.abs(bound), 0.0)
    return bound + slack > best


@triton.jit
def _remember(last_token_ptr, table_row, num_tables, token):
    is_there = (table_row >= 0) & (table_row < num_tables)
    tl.store(last_token_ptr + table_row, token, mask=is_there)


@triton.jit
def _search_tile(
    logits_ptr,
    row,
    tile,
    vocab_size,
    num_tiles,
    draw,
    cut_ptrs,
    best,
    chosen,
    FILTERED: tl.constexpr,
    UNUSED: tl.constexpr,
    TILES: tl.constexpr,
    TILE: tl.constexpr,
    FAST: tl.constexpr,
):
    """(best, chosen) after the tokens of one more tile."""
    b0, b1, b2, b3 = tile_bounds(
        logits_ptr,
        row,
        tile,
        vocab_size,
        num_tiles,
        draw,
        cut_ptrs,
        FILTERED,
        UNUSED,
        TILES,
        TILE,
        FAST,
    )
    tokens = tile * TILE + 4 * tl.arange(0, TILE // 4)
    bound = top_of(b0, b1, b2, b3)
    while (bound > float("-inf")) & _may_win(bound, best, draw[0]):
        token, b0, b1, b2, b3 = take(b0, b1, b2, b3, tokens, bound, vocab_size)
        logit = tl.load(logits_ptr + row.to(tl.int64) * vocab_size + token).to(tl.float32)
        score = _score(logit, token, draw)
        wins = (score > best) | ((score == best) & (token < chosen))
        chosen = tl.where(wins, token, chosen)
        best = tl.where(wins, score, best)
        bound = top_of(b0, b1, b2, b3)
    return best, chosen


@triton.jit
def _decide_kernel(
    logits_ptr,  # [T, vocab_size]
    seeds_ptr,  # int64 [T], of the draws
    temperature_ptr,  # float32 [T]; 0 takes the best token
    positions_ptr,  # int32 or int64 [T], of the drawn tokens
    tops_ptr,  # float32 [T, num_tiles], the best bound of each tile
    keys_ptr,  # int32 [T], of the row's `Cut`, as the three behind
    ties_ptr,  # int32 [T]
    floors_ptr,  # float32 [T]
    equals_ptr,  # int32 [T, num_tiles]
    ids_ptr,  # int64 [T], what is drawn; -1: no logit is a number
    last_token_ptr,  # int32 [num_tables], the token behind each sequence
    table_rows_ptr,  # int32 [T], place of each row's sequence
    vocab_size,  # tokens
    num_tiles,  # tiles of a row
    num_tables,  # places of sequences
    FILTERED: tl.constexpr,  # whether there is a `Cut`
    UNUSED: tl.constexpr,  # low bits that are 0 in every key
    TILES: tl.constexpr,  # the power of two from `num_tiles` on
    TILE: tl.constexpr,  # tokens of a tile
    FAST: tl.constexpr,  # whether the logarithm is the card's
    REMEMBERS: tl.constexpr,  # whether drawn tokens go to `last_token_ptr`, too
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    row = tl.program_id(0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    draw = row_draw(seeds_ptr, temperature_ptr, positions_ptr, row)
    cut_ptrs = (keys_ptr, ties_ptr, floors_ptr, equals_ptr)
    tiles = tl.arange(0, TILES)
    nothing = float("-inf")
    tops = tl.load(tops_ptr + row * num_tiles + tiles, mask=tiles < num_tiles, other=nothing)
    top = tl.max(tops, 0)
    is_number = (top > nothing) & (top < float("inf"))
    best = tl.full((), float("-inf"), tl.float32)
    chosen = tl.full((), -1, tl.int32)
    while is_number & (top > nothing) & _may_win(top, best, draw[0]):
        tile = tl.min(tl.where(tops == top, tiles, TILES), 0)
        best, chosen = _search_tile(
            logits_ptr,
            row,
            tile,
            vocab_size,
            num_tiles,
            draw,
            cut_ptrs,
            best,
            chosen,
            FILTERED,
            UNUSED,
            TILES,
            TILE,
            FAST,
        )
        tops = tl.where(tiles == tile, nothing, tops)
        top = tl.max(tops, 0)
    tl.store(ids_ptr + row, chosen.to(tl.int64))
    if REMEMBERS:
        _remember(last_token_ptr, tl.load(table_rows_ptr + row), num_tables, chosen)


def pick(
    logits: Tensor,
    draws: Draws,
    positions: Tensor,
    last_token: Tensor | None = None,
    table_rows: Tensor | None = None,
    *,
    tile: int = TILE,
    num_warps: int = _NUM_WARPS,
) -> Tensor:
    """See `kernels.sample.pick`."""
    num_rows, vocab_size = logits.shape
    num_tiles = triton.cdiv(vocab_size, tile)
    ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if not num_rows:
        return ids
    tops = torch.empty(num_rows, num_tiles, dtype=torch.float32, device=logits.device)
    # Without filters nothing reads the places of the cut.
    cut = find_cut(logits, draws, tile, num_warps) if draws.filtered else (tops,) * 4
    inputs = logits, draws.seeds, draws.temperature, positions, tops, *cut
    num_tables = 0 if last_token is None else last_token.shape[0]
    find, decide = _launches(
        logits.device, logits.dtype, vocab_size, num_tables, tile, num_warps,
        draws.filtered, last_token is not None,
    )  # fmt: skip
    find((num_tiles, num_rows, 1), inputs)
    targets = [ids if tensor is None else tensor for tensor in (last_token, table_rows)]
    decide((num_rows, 1, 1), (*inputs, ids, *targets))
    return ids


@cache
def _launches(
    device: torch.device,
    dtype: torch.dtype,
    vocab_size: int,
    num_tables: int,
    tile: int,
    num_warps: int,
    filtered: bool,
    remembers: bool,
) -> tuple[Launch, Launch]:
    """The launches of the tiles' tops and of the decision."""
    num_tiles = triton.cdiv(vocab_size, tile)
    sizes = {"vocab_size": vocab_size, "num_tiles": num_tiles}
    constants = {
        "FILTERED": filtered, "UNUSED": UNUSED_BITS[dtype],
        "TILES": triton.next_power_of_2(num_tiles), "TILE": tile, "FAST": is_card(device),
        "PDL": has_pdl(device),
    }  # fmt: skip
    find = Launch(_tile_tops_kernel, sizes | constants, num_warps=num_warps)
    constants |= {"num_tables": num_tables, "REMEMBERS": remembers}
    decide = Launch(_decide_kernel, sizes | constants, num_warps=num_warps)
    return find, decide
