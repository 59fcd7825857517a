"""What a product takes as its weight: a matrix in x's dtype, or one in 8 bits with scales.

Owns the union and how the kernels are told of it. The other places that tell the two apart are
`reference` and `library`.
"""

from torch import Tensor

from kernels.fp8 import BLOCK, Fp8Weight

Weight = Tensor | Fp8Weight
"""[N, K], row-major."""


def parts_of(weight: Weight) -> tuple[Tensor, Tensor | None, int]:
    """(values, scales, rows and columns that share a scale: 0 without scales, 1 by row)."""
    if isinstance(weight, Fp8Weight):
        return weight.values, weight.scales, BLOCK if weight.is_blocked else 1
    return weight, None, 0
