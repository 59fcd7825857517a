"""Gates of a layer: that of a SwiGLU feed-forward network, and that of attention's output.

Owns the checked entries.
"""

from torch import Tensor

from kernels.choose import uses_triton
from kernels.silu_mul import reference

__all__ = ["sigmoid_mul", "silu_mul"]


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


def sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
    """`x * sigmoid(gate)`, both [..., I] of one dtype, in place of x.

    The sigmoid is rounded to the dtype before the product. Raises `ValueError`.
    """
    if x.shape != gate.shape or x.dtype != gate.dtype:
        raise ValueError(f"x {tuple(x.shape)} {x.dtype}, gate {tuple(gate.shape)} {gate.dtype}")
    if uses_triton(x) and x.is_contiguous() and gate.is_contiguous():
        from kernels.silu_mul import kernel

        return kernel.sigmoid_mul(x, gate)
    return reference.sigmoid_mul(x, gate)
