"""Which kernels compute a mixture on a card, by its sizes and the form of its stacks.

Owns the rule. Must not know how any of them works. What is not in CUDA C++ is Triton's.
"""

from enum import StrEnum
from typing import Final

import torch
from torch import Tensor

from kernels.experts import listed, mxfp4, rounded, row_tiles, verdict, wide, widened
from kernels.experts.tiles import stored
from kernels.fp8 import Weight
from kernels.mxfp4 import Mxfp4Weight

_PAIRS_OF_EXPERT: Final = 4
_WIDE_PAIRS_OF_EXPERT: Final = 2
"""A list is built where pairs share experts: of more pairs than a fourth of the experts, or than
half where these are in 16 bits. On an H200 8 rows of 128 experts in bfloat16 take 124 us without a
list and 128 with one, in 8 bits 99 and 93.
"""

JOINED_ROWS: Final = 4
"""The most rows whose launches are joined: their norm with the router, a shared expert with the
others, the first reads of what is down with gates and ups. On an H200 a step of the 30B at one row
went from 2.98 to 2.87 ms by the first and the last of them, but one of 8 rows, joined too, from
7.92 to 8.15.
"""

_LEAST_LISTED: Final = {"rows": 3}
"""The fewest rows that programs count themselves, else 2. In steps of the 30B by scales of rows two
rows took 2.75 ms so, where those for few rows take 2.63, and four 3.64 where they take 3.76; layers
by scales of blocks 34 and 42 us at two rows, 26 and 26 at one (H200). A shared expert among the
pairs, which only those for few rows have, saves three launches."""


class Way(StrEnum):
    """Kernels for few rows, a program a pair, or for many, by a list of pairs; on ordinary lanes or
    by Triton's products, the latter also of experts that are widened or of rows that are rounded
    first, or in CUDA C++, where programs count the pairs themselves, some of rows that they round,
    or take many by the list.
    """

    FEW = "few"
    MANY = "many"
    WIDENED = "widened"
    ROUNDED = "rounded"
    FEW_MXFP4 = "few mxfp4"
    LISTED = "listed"
    WIDE = "wide"
    ROUNDED_LISTED = "rounded and listed"

    @property
    def rounds(self) -> bool:
        """Whether rows and what is between both products are rounded to 8 bits, one scale each."""
        return self in {Way.ROUNDED, Way.ROUNDED_LISTED}


def way(
    x: Tensor,
    gate_up: Weight,
    down: Weight,
    num_pairs: int,
    num_experts: int,
    *,
    invariant: bool,
    with_shared: bool = False,
    in_cuda: bool | None = None,
) -> Way:
    """The kernels for so many pairs, of few rows `with_shared` expert among them; `in_cuda` None:
    where `kernels.experts.verdict` has found those in CUDA C++ right, which experts in MXFP4 that
    are placed show.
    """
    share = _WIDE_PAIRS_OF_EXPERT if isinstance(gate_up, Tensor) else _PAIRS_OF_EXPERT
    is_few = invariant or num_pairs * share <= num_experts
    form = stored(gate_up).form
    if in_cuda is None and isinstance(gate_up, Mxfp4Weight) and not x.is_meta:
        in_cuda = gate_up.is_placed  # only what they read is
    elif in_cuda is None:
        in_cuda = verdict.serves(x.device, gate_up.shape[1], down.shape[1], form)
    if isinstance(gate_up, Mxfp4Weight) and isinstance(down, Mxfp4Weight) and is_few and in_cuda:
        return Way.FEW_MXFP4 if mxfp4.suits(x, gate_up, down) else Way.FEW
    least = JOINED_ROWS + 1 if with_shared else _LEAST_LISTED.get(form, 2)
    is_lone = x.shape[0] < least
    can_list = in_cuda and not (invariant or is_lone)
    if can_list and rounded.suits(x, gate_up, down, num_experts, num_pairs):
        return Way.ROUNDED_LISTED
    if can_list and listed.suits(x, gate_up, down, num_experts, num_pairs):
        return Way.LISTED
    if is_few:
        return Way.FEW
    if (
        in_cuda
        and isinstance(gate_up, Mxfp4Weight)
        and isinstance(down, Mxfp4Weight)
        and wide.suits(x, gate_up, down)
    ):
        return Way.WIDE
    if widened.widens(x, gate_up, num_pairs, num_experts):
        return Way.WIDENED
    is_rounded = row_tiles.rounds(x, gate_up, down, num_pairs, num_experts)
    return Way.ROUNDED if is_rounded else Way.MANY


def reads_placed(
    gate_up: Weight, down: Weight, num_active: int, num_experts: int, dtype: torch.dtype
) -> bool:
    """Whether kernels in CUDA C++ serve such experts in MXFP4 whatever the number of rows: then
    they may be placed, which no other kernel reads.
    """
    if not isinstance(gate_up, Mxfp4Weight) or not isinstance(down, Mxfp4Weight):
        return False
    x = torch.empty(1, gate_up.shape[1], dtype=dtype, device=gate_up.pairs.device)
    return (
        verdict.serves(x.device, x.shape[1], down.shape[1], stored(gate_up).form)
        and mxfp4.suits(x, gate_up, down)
        and listed.suits(x, gate_up, down, num_experts, num_active)
        and wide.suits(x, gate_up, down)
    )
