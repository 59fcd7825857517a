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
from kernels.linear.epilogue import NOTHING, Epilogue
from kernels.linear.gemv import gemv
from kernels.linear.invariant import choose_invariant
from kernels.linear.skinny import skinny
from kernels.linear.wide import is_aligned, suits, wide
from kernels.rms_norm import rms_norm


def chosen_product(
    op: Op,
    x: Tensor,
    weight: Tensor | Fp8Weight | Int4Weight,
    epilogue: Epilogue,
    *,
    invariant: bool,
) -> Tensor:
    """The product of the entry `op` of `kernels.linear`, by the kernel that serves it here."""
    if isinstance(weight, Int4Weight):
        return int4.product(x, weight, epilogue, invariant=invariant)
    config = _chosen(op, x, weight, epilogue, invariant=invariant)
    if config is None:
        return library.product(x, weight, epilogue)
    return product(config, x, weight, epilogue)


def goes_to_library(
    op: Op, x: Tensor, weight: Tensor | Fp8Weight, epilogue: Epilogue, *, invariant: bool
) -> bool:
    """Whether the library multiplies these rows."""
    return bool(x.shape[0]) and _chosen(op, x, weight, epilogue, invariant=invariant) is None


def rounds_rows(
    op: Op, x: Tensor, weight: Fp8Weight, epilogue: Epilogue, *, invariant: bool
) -> bool:
    """See `kernels.linear.rounds_rows`."""
    config = _chosen(op, x, weight, epilogue, invariant=invariant)
    if config is None:
        return library.rounds_rows(x, weight)
    return isinstance(config, Wide) or (isinstance(config, Skinny) and config.quantises)


def product(
    config: Config, x: Tensor, weight: Tensor | Fp8Weight, epilogue: Epilogue = NOTHING
) -> Tensor:
    """A product as `config` cuts it up; a new tensor [T, N]. Weights may be on their way before
    what is ahead of a norm's own kernel has ended.
    """
    if isinstance(config, Gemv):
        return gemv(x, weight, config, epilogue)
    norm, eps = epilogue.norm, epilogue.eps
    behind = epilogue if norm is None else epilogue.behind_norm()
    if isinstance(config, Wide):
        if isinstance(weight, Fp8Weight):
            values, scales = quantize_rows(x, norm, eps, is_early=True)
            return wide(values, weight, config, behind, x_scales=scales)
        x = x if norm is None else rms_norm(x, norm, eps, is_early=True)
        if not is_aligned(x, behind.bias, behind.residual):  # only invariant products come here so
            x, bias, residual = x.clone(), _cloned(behind.bias), _cloned(behind.residual)
            behind = behind._replace(bias=bias, residual=residual)
        return wide(x, weight, config, behind)
    if config.quantises:
        values, scales = quantize_rows(x, norm, eps, is_early=not config.waits)
        return skinny(values, weight, config, behind, x_scales=scales, dtype=x.dtype)
    # In `skinny` the unscaled row is rounded: in float16 it may not fit.
    if norm is not None and (x.dtype == torch.float16 or not config.fuses_norm):
        return skinny(rms_norm(x, norm, eps, is_early=True), weight, config, behind)
    return skinny(x, weight, config, epilogue)


def _cloned(part: Tensor | None) -> Tensor | None:
    return None if part is None else part.clone()


def _chosen(
    op: Op,
    x: Tensor,
    weight: Tensor | Fp8Weight,
    epilogue: Epilogue,
    *,
    invariant: bool,
) -> Config | None:
    _, scales, scale_block = parts_of(weight)
    num_weight_rows, depth = weight.shape
    num_out = num_weight_rows // 2 if epilogue.swiglu else num_weight_rows
    is_fp8 = scale_block > 0
    can_be = not (epilogue.is_gelu or (is_fp8 and invariant))
    has_wide = can_be and suits(x, depth, num_out, is_fp8=is_fp8)
    if invariant:
        return choose_invariant(op, x.shape[0], num_weight_rows, scale_block, has_wide=has_wide)
    has_wide = has_wide and is_aligned(x, epilogue.bias, epilogue.residual, scales)
    return choose(op, x.shape[0], num_weight_rows, depth, x.dtype, scale_block, has_wide=has_wide)
