"""The gate of a SwiGLU feed-forward layer.

Owns the checked entry.
"""

from torch import Tensor

from kernels.choose import uses_triton
from kernels.silu_mul import reference

__all__ = ["silu_mul"]


def silu_mul(gate_up: Tensor, *, is_gelu: bool = False) -> Tensor:
    """`silu(gate) * up` (Shazeer, 2020) of gate_up [..., 2 I], gate first; with `is_gelu` the tanh
    form of gelu in place of silu.

    The gate is rounded to the dtype before the product. Raises `ValueError`.
    """
    if gate_up.shape[-1] % 2:
        raise ValueError(f"gate_up {tuple(gate_up.shape)} has an odd last dimension")
    if uses_triton(gate_up):
        from kernels.silu_mul import kernel

        return kernel.silu_mul(gate_up, is_gelu=is_gelu)
    return reference.silu_mul(gate_up, is_gelu=is_gelu)
