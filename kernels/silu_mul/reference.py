"""Plain torch gates; the CPU path."""

import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor


def silu_mul(gate_up: Tensor, *, is_gelu: bool = False) -> Tensor:
    """See `kernels.silu_mul.silu_mul`."""
    gate, up = gate_up.chunk(2, dim=-1)
    return (F.gelu(gate, approximate="tanh") if is_gelu else F.silu(gate)) * up


def sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
    """See `kernels.silu_mul.sigmoid_mul`."""
    return x.mul_(gate.sigmoid())
