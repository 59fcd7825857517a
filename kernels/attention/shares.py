"""How the programs of a decode launch share the cached tokens: laid out once per step, on the card.

Owns the layout. All layers of a step read the same contexts, and a captured step finds new ones at
every replay, so a kernel ahead of the first layer cuts them. Must not know keys or heads.

The rows' costs lie one after another: what beginning a row takes, in tiles, then its tiles. Program
q of each key head takes `share` of them from q * share on, across the ends of rows, so all programs
have equally much to do whatever the mix of contexts ("stream-K", Osama et al., 2023).
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.choose import DecodeConfig
from kernels.launch import Launch

SHARE_NUMBERS = 3
"""Of each program: its first row, how much of that row's cost lies before it, and `share`."""


@triton.jit(do_not_specialize=["num_rows", "programs"])
def _shares_kernel(
    positions_ptr, shares_ptr, num_rows, programs, TILE: tl.constexpr, START: tl.constexpr,
    ROWS: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0)
    rows = tl.arange(0, ROWS)
    past = tl.load(positions_ptr + rows, mask=rows < num_rows, other=0)
    costs = tl.where(rows < num_rows, tl.maximum(tl.cdiv(past, TILE), 1) + START, 0)
    share = tl.cdiv(tl.sum(costs, 0), programs)
    begin = number * share
    ends = tl.cumsum(costs, 0)
    before = ends <= begin
    first = tl.sum(before.to(tl.int32), 0)
    shares_ptr += number * NUMBERS
    # Beyond the last tile all ROWS lie before.
    tl.store(shares_ptr, tl.minimum(first, num_rows))
    tl.store(shares_ptr + 1, begin - tl.max(tl.where(before, ends, 0), 0))
    tl.store(shares_ptr + 2, share)


def decode_shares(positions: Tensor, num_rows: int, num_kv: int, config: DecodeConfig) -> Tensor:
    """The shares of rows [0, num_rows) at `positions` int32, each with as many cached tokens.

    int32 [programs per key head, `SHARE_NUMBERS`]. Launch it ahead of a step's first layer.
    """
    programs = config.target // num_kv
    shares = torch.empty((programs, SHARE_NUMBERS), dtype=torch.int32, device=positions.device)
    _launch_of(config.tile, config.start, config.rows)(
        (programs, 1, 1), (positions, shares), (num_rows, programs)
    )
    return shares


@cache
def _launch_of(tile: int, start: int, rows: int) -> Launch:
    constants = {"TILE": tile, "START": start, "ROWS": rows, "NUMBERS": SHARE_NUMBERS}
    return Launch(_shares_kernel, constants, num_warps=4)
