"""Root-mean-square normalisation, alone or after the residual sum before it.

Owns the checked entries.
"""

from torch import Tensor

from kernels.choose import uses_triton
from kernels.rms_norm import reference

__all__ = ["add_rms_norm", "rms_norm"]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`weight * x / rms(x)` over the last dimension (Zhang and Sennrich, 2019).

    x [..., D] of any float dtype; weight [D], or [H, D] for x [..., H, D] (one weight per head).
    The mean square is taken in float32 and the normalised value rounded to x's dtype before the
    weight, as the published Qwen3 models were trained. Raises `ValueError`.
    """
    _check(x, weight)
    if uses_triton(x):
        from kernels.rms_norm import kernel

        return kernel.rms_norm(x, weight, eps)
    return reference.rms_norm(x, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`(rms_norm(residual + x), residual + x)` in one pass; the sum is rounded to x's dtype.

    residual is like x; both stay as they are. Otherwise as `rms_norm`. Raises `ValueError`.
    """
    _check(x, weight)
    if residual.shape != x.shape or residual.dtype != x.dtype:
        raise ValueError(f"x {tuple(x.shape)} {x.dtype}, residual {tuple(residual.shape)}")
    if uses_triton(x):
        from kernels.rms_norm import kernel

        return kernel.add_rms_norm(x, residual, weight, eps)
    return reference.add_rms_norm(x, residual, weight, eps)


def _check(x: Tensor, weight: Tensor) -> None:
    shape = weight.shape
    if x.shape[-len(shape) :] != shape or x.dtype != weight.dtype:
        raise ValueError(f"x {tuple(x.shape)} {x.dtype}, weight {tuple(weight.shape)}")
