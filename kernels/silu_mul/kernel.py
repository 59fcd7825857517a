"""Triton gates: SwiGLU's by one program per row and tile of columns, that of an output by one per
tile of numbers. A gate of torch's own would be two kernels, for which the kernels around them have
to end and begin.

Owns the launches. Must not know layers.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl
from kernels.launch import Launch

_BLOCK = 1024


@triton.jit
def _silu_mul_kernel(
    gate_up_ptr,  # [T, 2 inner], gates, then ups
    out_ptr,  # [T, inner]
    inner,  # columns of the result
    BLOCK: tl.constexpr,  # columns of a program
    GELU: tl.constexpr,  # whether gates open by GELU, not SiLU
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < inner
    at = gate_up_ptr + row * 2 * inner + columns
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + inner, mask=inside, other=0.0).to(tl.float32)
    dtype = out_ptr.dtype.element_ty
    # The reference rounds the gate before it multiplies.
    gated = opened(gate, GELU).to(dtype).to(tl.float32) * up
    tl.store(out_ptr + row * inner + columns, gated.to(dtype), mask=inside)


@triton.jit(do_not_specialize=["numbers"])
def _sigmoid_mul_kernel(
    x_ptr,  # [numbers], changed in place
    gate_ptr,  # [numbers]
    numbers,  # numbers of each
    BLOCK: tl.constexpr,  # numbers of a program
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < numbers
    if PDL:
        # The product behind has its first weights on their way before this one may begin.
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    gate = tl.load(gate_ptr + at, mask=inside, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    dtype = x_ptr.dtype.element_ty
    # The reference rounds the sigmoid before it multiplies.
    share = 1.0 / (1.0 + tl.exp(-tl.maximum(gate, -80.0)))  # the exponential stays a number
    share = share.to(dtype).to(tl.float32)
    tl.store(x_ptr + at, (x * share).to(dtype), mask=inside)


@triton.jit
def opened(gate, GELU: tl.constexpr):
    """silu of float32 values, or gelu in its tanh form: both are x * sigmoid(y)."""
    y = gate
    if GELU:  # 0.5 (1 + tanh(z)) = sigmoid(2 z), z = sqrt(2 / pi) (x + 0.044715 x^3)
        y = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
        y = tl.maximum(y, -80.0)  # the exponential stays a number
    return gate / (1.0 + tl.exp(-y))


def silu_mul(
    gate_up: Tensor, *, is_gelu: bool = False, block: int = _BLOCK, num_warps: int = 4
) -> Tensor:
    """See `kernels.silu_mul.silu_mul`."""
    gate_up = gate_up.contiguous()
    inner = gate_up.shape[-1] // 2
    out = gate_up.new_empty(*gate_up.shape[:-1], inner)
    numbers = out.numel()
    if numbers:
        launch, tiles = _launch_of(gate_up.device, inner, block, num_warps, is_gelu)
        launch((numbers // inner, tiles, 1), (gate_up, out))
    return out


@cache
def _launch_of(
    device: torch.device, inner: int, block: int, num_warps: int, is_gelu: bool
) -> tuple[Launch, int]:
    """The launch, and the number of programs per row."""
    constants = {"inner": inner, "BLOCK": block, "GELU": is_gelu, "PDL": has_pdl(device)}
    launch = Launch(_silu_mul_kernel, constants, num_warps=num_warps)
    return launch, triton.cdiv(inner, block)


def sigmoid_mul(x: Tensor, gate: Tensor, *, block: int = _BLOCK, num_warps: int = 4) -> Tensor:
    """See `kernels.silu_mul.sigmoid_mul`."""
    numbers = x.numel()
    if numbers:
        launch = _gate_launch(x.device, block, num_warps)
        launch((triton.cdiv(numbers, block), 1, 1), (x, gate), (numbers,))
    return x


@cache
def _gate_launch(device: torch.device, block: int, num_warps: int) -> Launch:
    constants = {"BLOCK": block, "PDL": has_pdl(device)}
    return Launch(_sigmoid_mul_kernel, constants, num_warps=num_warps)
