"""Triton root-mean-square normalisation: one program per row.

Owns the launch. Must not know who normalises what.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl


@triton.jit
def _rms_norm_kernel(
    x_ptr, weight_ptr, out_ptr, num_columns, eps, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < num_columns
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
    x = tl.load(x_ptr + row * num_columns + columns, mask=inside, other=0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    scale = tl.rsqrt(tl.sum(x * x, 0) / num_columns + eps)
    # The reference rounds before the weight. Arithmetic stays in float32: the interpreter knows
    # bfloat16 as storage only.
    normed = (x * scale).to(out_ptr.dtype.element_ty).to(tl.float32)
    tl.store(out_ptr + row * num_columns + columns, normed * weight, mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `kernels.rms_norm.rms_norm`; weight [D]."""
    x = x.contiguous()
    out = torch.empty_like(x)
    num_columns = x.shape[-1]
    pdl = has_pdl(x.device)
    _rms_norm_kernel[(x.numel() // num_columns,)](
        x,
        weight,
        out,
        num_columns,
        eps,
        BLOCK=triton.next_power_of_2(num_columns),
        PDL=pdl,
        launch_pdl=pdl,
        num_warps=4,
    )
    return out
