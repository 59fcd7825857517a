"""The products on a CUDA device: our kernel where `choose` names a configuration, or the library.

Owns the way from an operation to its kernel. Must not know why a configuration was chosen.
"""

import torch
from torch import Tensor

from kernels.fp8 import Fp8Weight, parts_of, quantize_rows
from kernels.int4 import Int4Weight
from kernels.linear import int4, library
from kernels.linear.choose import Op, choose
from kernels.linear.config import Config, Gemv, Skinny, Wide
from kernels.linear.gemv import gemv
from kernels.linear.invariant import choose_invariant
from kernels.linear.skinny import skinny
from kernels.linear.wide import is_aligned, suits, wide
from kernels.rms_norm import rms_norm


def linear(
    x: Tensor,
    weight: Tensor | Fp8Weight | Int4Weight,
    bias: Tensor | None,
    invariant: bool = False,
) -> Tensor:
    """See `kernels.linear.linear`."""
    if isinstance(weight, Int4Weight):
        return int4.product(x, weight, bias=bias, invariant=invariant)
    config = _chosen(Op.LINEAR, x, weight, bias, invariant=invariant)
    if config is None:
        return library.linear(x, weight, bias)
    return product(config, x, weight, bias=bias)


def norm_linear(
    x: Tensor,
    norm: Tensor,
    eps: float,
    weight: Tensor | Fp8Weight | Int4Weight,
    bias: Tensor | None,
    invariant: bool = False,
) -> Tensor:
    """See `kernels.linear.norm_linear`."""
    if isinstance(weight, Int4Weight):
        return int4.product(x, weight, norm=norm, eps=eps, bias=bias, invariant=invariant)
    config = _chosen(Op.NORM_LINEAR, x, weight, bias, invariant=invariant)
    if config is None:
        return library.norm_linear(x, norm, eps, weight, bias)
    return product(config, x, weight, norm=norm, eps=eps, bias=bias)


def norm_swiglu(
    x: Tensor,
    norm: Tensor,
    eps: float,
    gate_up: Tensor | Fp8Weight | Int4Weight,
    invariant: bool = False,
    *,
    is_gelu: bool = False,
) -> Tensor:
    """See `kernels.linear.norm_swiglu`."""
    if isinstance(gate_up, Int4Weight):
        return int4.product(
            x, gate_up, norm=norm, eps=eps, swiglu=True, is_gelu=is_gelu, invariant=invariant
        )
    config = _chosen(Op.NORM_SWIGLU, x, gate_up, invariant=invariant, is_gelu=is_gelu)
    if config is None:
        return library.norm_swiglu(x, norm, eps, gate_up, is_gelu=is_gelu)
    return product(config, x, gate_up, norm=norm, eps=eps, swiglu=True, is_gelu=is_gelu)


def linear_add(
    x: Tensor,
    weight: Tensor | Fp8Weight | Int4Weight,
    residual: Tensor,
    bias: Tensor | None,
    invariant: bool = False,
) -> Tensor:
    """See `kernels.linear.linear_add`."""
    if isinstance(weight, Int4Weight):
        return int4.product(x, weight, residual=residual, bias=bias, invariant=invariant)
    config = _chosen(Op.LINEAR_ADD, x, weight, bias, residual, invariant=invariant)
    if config is None:
        return library.linear_add(x, weight, residual, bias)
    return product(config, x, weight, residual=residual, bias=bias)


def rounds_rows(
    op: Op,
    x: Tensor,
    weight: Fp8Weight,
    bias: Tensor | None,
    *,
    is_gelu: bool,
    invariant: bool,
) -> bool:
    """See `kernels.linear.rounds_rows`."""
    config = _chosen(op, x, weight, bias, invariant=invariant, is_gelu=is_gelu)
    if config is None:
        return library.rounds_rows(x, weight)
    return isinstance(config, Wide) or (isinstance(config, Skinny) and config.quantises)


def product(
    config: Config,
    x: Tensor,
    weight: Tensor | Fp8Weight,
    *,
    norm: Tensor | None = None,
    eps: float = 0.0,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    swiglu: bool = False,
    is_gelu: bool = False,
) -> Tensor:
    """`residual + (rms_norm(x) W^T + bias)`, or the SwiGLU of it; a new tensor [T, N]. Weights may
    be on their way before what is ahead of a norm's own kernel has ended.
    """
    if isinstance(config, Gemv):
        return gemv(
            x, weight, config, norm=norm, eps=eps, bias=bias, residual=residual, swiglu=swiglu,
            is_gelu=is_gelu,
        )  # fmt: skip
    if isinstance(config, Wide):
        if bias is not None or is_gelu:
            raise ValueError(f"{config} has neither biases nor gelu")
        if isinstance(weight, Fp8Weight):
            values, scales = quantize_rows(x, norm, eps, is_early=True)
            return wide(values, weight, config, residual=residual, swiglu=swiglu, x_scales=scales)
        x = x if norm is None else rms_norm(x, norm, eps, is_early=True)
        if not is_aligned(x, residual):  # only invariant products come here so
            x, residual = x.clone(), None if residual is None else residual.clone()
        return wide(x, weight, config, residual=residual, swiglu=swiglu)
    if config.quantises:
        values, scales = quantize_rows(x, norm, eps, is_early=not config.waits)
        return skinny(
            values, weight, config, x_scales=scales, dtype=x.dtype,
            bias=bias, residual=residual, swiglu=swiglu, is_gelu=is_gelu,
        )  # fmt: skip
    # In `skinny` the unscaled row is rounded: in float16 it may not fit.
    if norm is not None and (x.dtype == torch.float16 or not config.fuses_norm):
        x, norm = rms_norm(x, norm, eps, is_early=True), None
    return skinny(
        x, weight, config, norm=norm, eps=eps, bias=bias, residual=residual, swiglu=swiglu,
        is_gelu=is_gelu,
    )  # fmt: skip


def _chosen(
    op: Op,
    x: Tensor,
    weight: Tensor | Fp8Weight,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    invariant: bool,
    is_gelu: bool = False,
) -> Config | None:
    _, scales, scale_block = parts_of(weight)
    num_weight_rows, depth = weight.shape
    num_out = num_weight_rows // 2 if op is Op.NORM_SWIGLU else num_weight_rows
    is_fp8 = scale_block == 1
    can_be = scale_block <= 1 and not (is_fp8 and invariant) and bias is None and not is_gelu
    has_wide = can_be and suits(x, depth, num_out, is_fp8=is_fp8)
    if invariant:
        return choose_invariant(op, x.shape[0], num_weight_rows, scale_block, has_wide=has_wide)
    has_wide = has_wide and is_aligned(x, residual, scales)
    return choose(op, x.shape[0], num_weight_rows, depth, x.dtype, scale_block, has_wide=has_wide)
