"""Rotary position embedding.

Owns the checked entry. A fused kernel for CUDA tensors joins here, beside its reference.
"""

from torch import Tensor

from kernels.attention import reference_rope as reference
from kernels.attention.reference_rope import rope_angles

__all__ = ["rope", "rope_angles"]


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate every head by its position's angles (Su et al., 2021; halves, not pairs).

    x [T, H, D] of any float dtype; cos and sin [T, D / 2] float32 from `rope_angles`. Computed
    in float32 and rounded once. Raises `ValueError`.
    """
    if x.dim() != 3 or cos.shape != (x.shape[0], x.shape[2] // 2) or sin.shape != cos.shape:
        raise ValueError(f"x {tuple(x.shape)}, cos {tuple(cos.shape)}, sin {tuple(sin.shape)}")
    return reference.rope(x, cos, sin)
