"""Root-mean-square normalisation, alone, with a bias ahead of it or the residual sum behind it.

Owns the checked entries.
"""

import torch
from torch import Tensor

from kernels.choose import uses_triton
from kernels.rms_norm import reference

__all__ = ["bias_norm", "norm_add", "rms_norm"]


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, is_early: bool = False) -> Tensor:
    """`weight * x / rms(x)` over the last dimension (Zhang and Sennrich, 2019).

    x [..., D] of any float dtype; weight [D], or [H, D] for x [..., H, D] (one weight per head).
    The mean square is taken in float32 and the normalised value rounded to x's dtype before the
    weight, as the published Qwen3 models were trained. The weight may be float32 beside an x of 16
    bits. With `is_early` the kernel behind may start before the one ahead has ended: until its own
    wait it must read only what no kernel of the step writes. Raises `ValueError`.
    """
    _check(x, weight)
    if uses_triton(x):
        from kernels.rms_norm import kernel

        return kernel.rms_norm(x, weight, eps, is_early=is_early)
    return reference.rms_norm(x, weight, eps)


def bias_norm(x: Tensor, bias: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`rms_norm(x + bias, weight, eps)` in one pass, by which x [T, D] becomes `x + bias`, rounded
    to its dtype; bias [D] in that dtype, weight as in `rms_norm`. Raises `ValueError`.
    """
    _check(x, weight)
    if x.ndim != 2 or not x.is_contiguous() or bias.shape != x.shape[1:] or bias.dtype != x.dtype:
        raise ValueError(f"bias {tuple(bias.shape)} {bias.dtype} for x {tuple(x.shape)} {x.dtype}")
    if uses_triton(x):
        from kernels.rms_norm import kernel

        return kernel.bias_norm(x, bias, weight, eps)
    return reference.bias_norm(x, bias, weight, eps)


def norm_add(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor, scale: Tensor | None = None
) -> Tensor:
    """`residual + rms_norm(x, weight, eps)` in one pass, times `scale` [1] of x's dtype if there is
    one; residual is like x, both stay as they are.

    The normed row is rounded to x's dtype before the sum, and the sum before it is multiplied.
    Raises `ValueError`.
    """
    _check(x, weight)
    if scale is not None and (scale.shape != (1,) or scale.dtype != x.dtype):
        raise ValueError(f"scale {tuple(scale.shape)} {scale.dtype} for x {x.dtype}")
    if residual.shape != x.shape or residual.dtype != x.dtype:
        raise ValueError(f"x {tuple(x.shape)} {x.dtype}, residual {tuple(residual.shape)}")
    if uses_triton(x):
        from kernels.rms_norm import kernel

        return kernel.norm_add(x, weight, eps, residual, scale)
    return reference.norm_add(x, weight, eps, residual, scale)


def _check(x: Tensor, weight: Tensor) -> None:
    shape = weight.shape
    if x.shape[-len(shape) :] != shape or weight.dtype not in (x.dtype, torch.float32):
        raise ValueError(f"x {tuple(x.shape)} {x.dtype}, weight {tuple(weight.shape)}")
