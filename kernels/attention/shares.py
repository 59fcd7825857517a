"""The division of a decode launch's work among programs: once per step, on the card.

Owns the layout. All layers of a step read the same contexts, and a captured step finds new ones at
every replay, so a kernel ahead of the first layer cuts them. Must not know keys or heads.

The rows' costs form one line: for each row the cost of beginning it, in tiles, then its tiles.
Program q of each key head takes `share` of this line from q * share on, across the ends of rows. So
all programs have the same amount of work for any mix of contexts ("stream-K", Osama et al., 2023).
A row that is cut is begun twice, so a cut near one of its ends moves there.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.config import DecodeConfig
from kernels.attention.runs import SHARED_WORDS
from kernels.attention.words import load_shared_end, store_share
from kernels.launch import Launch

SHARE_NUMBERS = 5
"""Words of each program; `words.load_share` names them."""


@triton.jit
def row_cost(position, TILE: tl.constexpr, START: tl.constexpr):
    """The cost of a row that reads `position` cached tokens; 0 for a negative position, which is
    padding.
    """
    return tl.where(position < 0, 0, tl.maximum(tl.cdiv(position, TILE), 1) + START)


@triton.jit
def row_parts(row_begin, cost, share, START: tl.constexpr, SLACK: tl.constexpr):
    """The first program that has tiles of a row, and how many have; see `_beginning`."""
    first = (row_begin + START + SLACK) // share
    last = (row_begin + cost - SLACK - 1) // share
    return first, tl.maximum(last - first, 0) + 1


@triton.jit
def _beginning(ends, at, START: tl.constexpr, SLACK: tl.constexpr):
    """Where a program begins whose equal share would begin at `at`: (place, row, the part of the
    row's cost before the place). It begins outside a row's START, and outside its first and last
    SLACK tiles.
    """
    total = tl.max(ends, 0)
    at = tl.minimum(at, total)
    before = ends <= at
    row = tl.sum(before.to(tl.int32), 0)
    row_begin = tl.max(tl.where(before, ends, 0), 0)
    row_end = tl.min(tl.where(before, total, ends), 0)
    is_early = at - row_begin <= START + SLACK
    is_late = (row_end - at <= SLACK) & (is_early == 0)
    place = tl.where(is_early, row_begin, tl.where(is_late, row_end, at))
    return place, row + is_late.to(tl.int32), tl.where(is_early | is_late, 0, at - row_begin)


@triton.jit(do_not_specialize=["num_rows", "programs"])
def _shares_kernel(
    positions_ptr,  # int32 [T]
    shared_ptr,  # int32 [T, SHARED_WORDS], see `PrefillWork`
    shares_ptr,  # int32 [programs, NUMBERS], see `decode_shares`
    num_rows,  # decodes
    programs,  # programs of each key head
    TILE: tl.constexpr,  # tokens at once
    START: tl.constexpr,  # tiles that beginning a row costs
    SLACK: tl.constexpr,  # tiles that a cut moves by
    ROWS: tl.constexpr,  # a power of two, at least `num_rows`
    NUMBERS: tl.constexpr,  # words of a share
    SHARED_WORDS: tl.constexpr,  # words of what a row shares; 0: nothing
    REACH: tl.constexpr,  # tokens that a row sees, its own among them; 0: all
):
    number = tl.program_id(0)
    rows = tl.arange(0, ROWS)
    past = tl.load(positions_ptr + rows, mask=rows < num_rows, other=-1)
    if SHARED_WORDS:
        past -= load_shared_end(shared_ptr + rows * SHARED_WORDS, rows < num_rows)
    if REACH:
        past = tl.minimum(past, REACH - 1)
    costs = row_cost(past, TILE, START)
    share = tl.maximum(tl.cdiv(tl.sum(costs, 0), programs), 1)
    ends = tl.cumsum(costs, 0)
    place, row, passed = _beginning(ends, number * share, START, SLACK)
    end, _, _ = _beginning(ends, (number + 1) * share, START, SLACK)
    first = tl.minimum(row, num_rows)  # beyond the last tile all ROWS lie before
    store_share(shares_ptr + number * NUMBERS, first, passed, place, end - place, share)


def decode_shares(
    positions: Tensor,
    num_rows: int,
    num_kv: int,
    config: DecodeConfig,
    shared: Tensor | None = None,
    reach: int = 0,
) -> Tensor:
    """The shares of rows [0, num_rows) at `positions` int32. A row at position p reads p cached
    tokens, without those that `shared` (`PrefillWork.shared`) leaves to items, or the last of them
    if it sees only `reach` tokens, its own among them.

    Returns int32 [programs per key head, `SHARE_NUMBERS`]. Launch it ahead of a step's first layer.
    """
    programs = config.programs(num_kv)
    shares = torch.empty((programs, SHARE_NUMBERS), dtype=torch.int32, device=positions.device)
    words = 0 if shared is None else SHARED_WORDS
    _launch_of(config.tile, config.start, config.slack, config.rows, words, reach)(
        (programs, 1, 1),
        (positions, positions if shared is None else shared, shares),
        (num_rows, programs),
    )
    return shares


@cache
def _launch_of(tile: int, start: int, slack: int, rows: int, words: int, reach: int) -> Launch:
    constants = {
        "TILE": tile, "START": start, "SLACK": slack, "ROWS": rows, "NUMBERS": SHARE_NUMBERS,
        "SHARED_WORDS": words, "REACH": reach,
    }  # fmt: skip
    return Launch(_shares_kernel, constants, num_warps=4)
