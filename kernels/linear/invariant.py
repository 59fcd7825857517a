"""Products whose rows do not depend on each other: how they are cut up.

Owns the rule. A row's result is the same among any rows if each of its sums is added up in the same
order, so how the columns of a weight are cut follows from the weight alone. What may follow from
the number of rows is which sums a program has: how many rows of x, and of the weight. The norm
before a product is a kernel of its own, one program per row. Must not know tensors.
"""

from typing import Final

from kernels.linear.choose import Op, of_few_rows
from kernels.linear.config import MAX_WIDE_ROWS, Config, Skinny, Wide

_BAND: Final = 8

_DENSE: Final = Skinny(
    block_n=64,
    block_k=64,
    splits=1,
    num_warps=4,
    num_stages=4,
    fuses_norm=False,
    block_rows=64,
    pads_rows=True,
)
_FP8: Final = Skinny(
    block_n=64,
    block_k=128,
    splits=1,
    num_warps=4,
    num_stages=3,
    fuses_norm=False,
    block_rows=64,
    pads_rows=True,
)
"""The tiles where the kernel in CUDA C++ does not serve: one kernel for any number of rows. Weights
in 8 bits are widened, and rows are not quantised: 64 columns of float32 still fit into an older
card."""


def choose_invariant(
    op: Op, num_rows: int, num_weight_rows: int, scale_block: int, *, has_wide: bool
) -> Config | None:
    """How to multiply rows by a weight [num_weight_rows, ...]; None: there are no rows.

    `scale_block` and `has_wide` as in `kernels.linear.choose.choose`.
    """
    if not num_rows:
        return None
    if not has_wide:
        return _FP8 if scale_block else _DENSE
    few = of_few_rows(op, num_weight_rows)
    if num_rows <= MAX_WIDE_ROWS:
        return few
    # Larger tiles read less; the splits stay.
    return Wide(groups=3 if few.splits == 1 else 2, splits=few.splits, band=_BAND)
