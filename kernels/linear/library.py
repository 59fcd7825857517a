"""The products by torch's matrix library (cuBLAS), with our small kernels around them.

Owns the path of many rows, where the library reaches the tensor cores' rate and a separate pass
over the rows costs little beside it.
"""

import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

from kernels.rms_norm import rms_norm
from kernels.silu_mul import silu_mul


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """See `kernels.linear.linear`."""
    return F.linear(x, weight, bias)


def norm_linear(x: Tensor, norm: Tensor, eps: float, weight: Tensor, bias: Tensor | None) -> Tensor:
    """See `kernels.linear.norm_linear`."""
    return F.linear(rms_norm(x, norm, eps), weight, bias)


def norm_swiglu(x: Tensor, norm: Tensor, eps: float, gate_up: Tensor) -> Tensor:
    """See `kernels.linear.norm_swiglu`."""
    return silu_mul(F.linear(rms_norm(x, norm, eps), gate_up))


def linear_add(x: Tensor, weight: Tensor, residual: Tensor, bias: Tensor | None) -> Tensor:
    """See `kernels.linear.linear_add`; the product's last step adds to `residual` in place."""
    if bias is not None:
        residual.add_(bias)
    return residual.addmm_(x, weight.t())
