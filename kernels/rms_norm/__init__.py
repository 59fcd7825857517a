"""Root-mean-square normalisation.

Owns the checked entry. A fused kernel for CUDA tensors joins here, beside its reference.
"""

from torch import Tensor

from kernels.rms_norm import reference

__all__ = ["rms_norm"]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`weight * x / rms(x)` over the last dimension (Zhang and Sennrich, 2019).

    x [..., D] of any float dtype; weight [D], or [..., D] that broadcasts against x (one weight
    per head). The mean square is taken in float32 and the normalised value rounded to x's dtype
    before the weight, as the published Qwen3 models were trained. Raises `ValueError`.
    """
    if x.shape[-1] != weight.shape[-1] or x.dtype != weight.dtype:
        raise ValueError(f"x {tuple(x.shape)} {x.dtype}, weight {tuple(weight.shape)}")
    return reference.rms_norm(x, weight, eps)
