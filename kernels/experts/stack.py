"""Experts' matrices as one weight: the rows of all experts, one expert's after the other's.

Owns the way to one expert's part. So all that holds of a weight holds of a stack: how it is read,
quantised and measured.
"""

from torch import Tensor

from kernels.fp8 import BLOCK, Fp8Weight
from kernels.int4 import Int4Weight
from kernels.mxfp4 import Mxfp4Weight

Stack = Tensor | Fp8Weight | Int4Weight | Mxfp4Weight
"""What the rows of all experts may be."""


def expert_of(stack: Stack, index: int, count: int) -> Stack:
    """The matrix [N, K] of expert `index` of the `count` in a stack [count N, K]. Raises
    `ValueError` for a block of scales that two experts share.
    """
    num_rows = stack.shape[0] // count
    part = slice(index * num_rows, (index + 1) * num_rows)
    if isinstance(stack, Tensor):
        return stack[part]
    if isinstance(stack, Int4Weight | Mxfp4Weight) or not stack.is_blocked:
        return stack.rows(part)
    if num_rows % BLOCK:
        raise ValueError(f"a block of {BLOCK} rows holds rows of two experts of {num_rows}")
    blocks = slice(part.start // BLOCK, part.stop // BLOCK)
    return Fp8Weight(stack.values[part], stack.scales[blocks])
