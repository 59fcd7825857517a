"""Which kernels compute a mixture on a card, by its sizes and the form of its stacks.

Owns the rule. Must not know how any of them works. What is not in CUDA C++ is Triton's.
"""

from enum import StrEnum
from typing import Final

from torch import Tensor

from kernels.experts import mxfp4, mxfp4_verdict, widened
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


class Way(StrEnum):
    """Kernels for few rows, a program a pair, or for many, by a list of pairs; on ordinary lanes or
    by Triton's products, the latter also of experts that are widened first, or in CUDA C++.
    """

    FEW = "few"
    MANY = "many"
    WIDENED = "widened"
    FEW_MXFP4 = "few mxfp4"
    MANY_MXFP4 = "many mxfp4"

    @property
    def in_cuda(self) -> bool:
        """Whether these kernels are in CUDA C++."""
        return self in {Way.FEW_MXFP4, Way.MANY_MXFP4}


def way(
    x: Tensor,
    gate_up: Weight,
    down: Weight,
    num_pairs: int,
    num_experts: int,
    *,
    invariant: bool,
    in_cuda: bool | None = None,
) -> Way:
    """The kernels for so many pairs; `in_cuda` None: where `kernels.experts.mxfp4_verdict` has
    found those in CUDA C++ right.
    """
    share = _WIDE_PAIRS_OF_EXPERT if isinstance(gate_up, Tensor) else _PAIRS_OF_EXPERT
    is_few = invariant or num_pairs * share <= num_experts
    if isinstance(gate_up, Mxfp4Weight) and isinstance(down, Mxfp4Weight):
        hidden, width = gate_up.shape[1], down.shape[1]
        if in_cuda is None:
            in_cuda = mxfp4_verdict.serves(x.device, hidden, width)
        can_be = is_few or mxfp4.lists(num_pairs, num_experts)
        if in_cuda and can_be and mxfp4.suits(x, gate_up, down):
            return Way.FEW_MXFP4 if is_few else Way.MANY_MXFP4
    if is_few:
        return Way.FEW
    is_wide = widened.widens(x, gate_up, num_pairs, num_experts)
    return Way.WIDENED if is_wide else Way.MANY
