"""Plain torch definitions of the fused products; the CPU path.

A weight of 8 bits is widened for every product: exact, and slow.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

from kernels.fp8 import Weight
from kernels.fp8 import reference as fp8
from kernels.rms_norm import reference as norms
from kernels.silu_mul import reference as gates


def linear(x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
    """See `kernels.linear.linear`."""
    return F.linear(x, _dense(weight, x.dtype), bias)


def norm_linear(x: Tensor, norm: Tensor, eps: float, weight: Weight, bias: Tensor | None) -> Tensor:
    """See `kernels.linear.norm_linear`."""
    return F.linear(norms.rms_norm(x, norm, eps), _dense(weight, x.dtype), bias)


def norm_swiglu(x: Tensor, norm: Tensor, eps: float, gate_up: Weight) -> Tensor:
    """See `kernels.linear.norm_swiglu`."""
    return gates.silu_mul(F.linear(norms.rms_norm(x, norm, eps), _dense(gate_up, x.dtype)))


def linear_add(x: Tensor, weight: Weight, residual: Tensor, bias: Tensor | None) -> Tensor:
    """See `kernels.linear.linear_add`."""
    return residual + F.linear(x, _dense(weight, x.dtype), bias)


def _dense(weight: Weight, dtype: torch.dtype) -> Tensor:
    return weight if isinstance(weight, Tensor) else fp8.dequantise(weight, dtype)
