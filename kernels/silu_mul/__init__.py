"""The gate of a SwiGLU feed-forward layer.

Owns the checked entry. A fused kernel for CUDA tensors joins here, beside its reference.
"""

from torch import Tensor

from kernels.silu_mul import reference

__all__ = ["silu_mul"]


def silu_mul(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up` (Shazeer, 2020) of gate_up [..., 2 I], gate first. Raises `ValueError`."""
    if gate_up.shape[-1] % 2:
        raise ValueError(f"gate_up {tuple(gate_up.shape)} has an odd last dimension")
    return reference.silu_mul(gate_up)
