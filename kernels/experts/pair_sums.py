"""Triton's sums of a row's pairs, whose products are written first.

Owns the kernel and its launch. Must not know where products came from.
"""

from functools import cache
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl
from kernels.launch import Launch

_BYTES: Final = 2048
"""The bytes of each pair in a program: 16 for a thread."""


@triton.jit
def _sum_pairs_kernel(
    products_ptr,  # [rows ACTIVE, HIDDEN]
    weights_ptr,  # float32 [rows, ACTIVE]
    residual_ptr,  # [rows, HIDDEN]
    out_ptr,  # out: [rows, HIDDEN]
    HIDDEN: tl.constexpr,  # columns of a row
    ACTIVE: tl.constexpr,  # pairs of a row
    OUTPUTS: tl.constexpr,  # columns of a program
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    """Program (row, tile of columns). The sum has the order of `kernels.experts.many`."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    outputs = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    inside = outputs < HIDDEN
    total = tl.zeros([OUTPUTS], tl.float32)
    for place in tl.static_range(ACTIVE):
        pair = row * ACTIVE + place
        part = tl.load(products_ptr + pair * HIDDEN + outputs, inside, 0.0)
        total += part.to(tl.float32) * tl.load(weights_ptr + pair)
    at = row * HIDDEN + outputs
    total += tl.load(residual_ptr + at, inside, 0.0).to(tl.float32)
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), inside)


def add_pairs(products: Tensor, weights: Tensor, residual: Tensor, out: Tensor) -> None:
    """`out` becomes `residual` [T, hidden] plus products [T K, hidden] of each row's pairs, times
    their weights float32 [T, K], in the order of pairs.
    """
    num_rows, hidden = residual.shape
    if not num_rows:
        return
    outputs = _BYTES // products.element_size()
    launch = _launch(out.device, hidden, weights.shape[1], outputs)
    grid = num_rows, triton.cdiv(hidden, outputs), 1
    launch(grid, (products, weights, residual, out))


@cache
def _launch(device: torch.device, hidden: int, active: int, outputs: int) -> Launch:
    constants = {"HIDDEN": hidden, "ACTIVE": active, "OUTPUTS": outputs, "PDL": has_pdl(device)}
    return Launch(_sum_pairs_kernel, constants, num_warps=4)
