"""Products with 4-bit weights on a CUDA device: which kernel serves how many rows.

Owns the rule. Must not know layers.
"""

from torch import Tensor

from kernels.int4 import Int4Weight, dequantise
from kernels.linear import int4_gemv, int4_skinny, library
from kernels.rms_norm import rms_norm


def product(
    x: Tensor,
    weight: Int4Weight,
    *,
    norm: Tensor | None = None,
    eps: float = 0.0,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    swiglu: bool = False,
    is_gelu: bool = False,
    invariant: bool = False,
) -> Tensor:
    """`residual + (rms_norm(x) W^T + bias)`, or the SwiGLU of it; may overwrite `residual`."""
    few = x.shape[0] <= int4_gemv.MAX_ROWS and not invariant and weight.order is None
    if norm is not None and not few:
        x, norm = rms_norm(x, norm, eps), None
    if weight.order is not None:
        x = x.index_select(1, weight.order)
    if few and x.shape[0]:
        return int4_gemv.int4_gemv(
            x, weight, norm=norm, eps=eps, bias=bias, residual=residual, swiglu=swiglu,
            is_gelu=is_gelu,
        )  # fmt: skip
    if x.shape[0] and (invariant or x.shape[0] <= int4_skinny.MAX_ROWS):
        return int4_skinny.int4_skinny(
            x, weight, bias=bias, residual=residual, swiglu=swiglu, is_gelu=is_gelu,
            invariant=invariant,
        )  # fmt: skip
    dense = dequantise(weight, x.dtype)
    if swiglu:
        return library.swiglu(x, dense, is_gelu=is_gelu)
    if residual is not None:
        return library.linear_add(x, dense, residual, bias)
    return library.linear(x, dense, bias)
