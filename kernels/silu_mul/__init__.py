"""The gate of a SwiGLU feed-forward layer.

Owns the checked entry.
"""

from torch import Tensor

from kernels.choose import uses_triton
from kernels.silu_mul import reference

__all__ = ["silu_mul"]


def silu_mul(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up` (Shazeer, 2020) of gate_up [..., 2 I], gate first.

    silu(gate) is rounded to the dtype before the product. Raises `ValueError`.
    """
    if gate_up.shape[-1] % 2:
        raise ValueError(f"gate_up {tuple(gate_up.shape)} has an odd last dimension")
    if uses_triton(gate_up):
        from kernels.silu_mul import kernel

        return kernel.silu_mul(gate_up)
    return reference.silu_mul(gate_up)
