"""Plain torch definitions of the fused products; the CPU path."""

import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

from kernels.rms_norm import reference as norms
from kernels.silu_mul import reference as gates


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """See `kernels.linear.linear`."""
    return F.linear(x, weight, bias)


def norm_linear(x: Tensor, norm: Tensor, eps: float, weight: Tensor, bias: Tensor | None) -> Tensor:
    """See `kernels.linear.norm_linear`."""
    return F.linear(norms.rms_norm(x, norm, eps), weight, bias)


def norm_swiglu(x: Tensor, norm: Tensor, eps: float, gate_up: Tensor) -> Tensor:
    """See `kernels.linear.norm_swiglu`."""
    return gates.silu_mul(F.linear(norms.rms_norm(x, norm, eps), gate_up))


def linear_add(x: Tensor, weight: Tensor, residual: Tensor, bias: Tensor | None) -> Tensor:
    """See `kernels.linear.linear_add`."""
    return residual + F.linear(x, weight, bias)
