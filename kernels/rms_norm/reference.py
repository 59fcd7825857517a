"""Plain torch root-mean-square normalisation; the CPU path."""

import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `kernels.rms_norm.rms_norm`. torch computes the mean square in float32 by itself."""
    return (F.rms_norm(x, x.shape[-1:], eps=eps) * weight).to(x.dtype)


def bias_norm(x: Tensor, bias: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `kernels.rms_norm.bias_norm`."""
    return rms_norm(x.add_(bias), weight, eps)


def norm_add(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor, scale: Tensor | None = None
) -> Tensor:
    """See `kernels.rms_norm.norm_add`."""
    total = residual + rms_norm(x, weight, eps)
    return total if scale is None else total * scale
