"""Products with 4-bit weights on a CUDA device: which kernel serves how many rows.

Owns the rule. Must not know layers.
"""

from enum import StrEnum
from typing import Any

from torch import Tensor

from kernels.int4 import Int4Weight, dequantise
from kernels.linear import (
    int4_ampere,
    int4_choose,
    int4_gemv,
    int4_skinny,
    int4_tiles,
    int4_verdict,
    library,
)
from kernels.linear.int4_verdict import CandidateKernel
from kernels.rms_norm import rms_norm


class Kernel(StrEnum):
    """What multiplies rows with a weight in 4 bits."""

    TILES = "int4_tiles"
    AMPERE = "int4_ampere"
    GEMV = "int4_gemv"
    SKINNY = "int4_skinny"
    WIDENED = "widened, the library"


def choose(
    num_rows: int, *, has_tiles: bool, has_ampere: bool, has_order: bool, invariant: bool
) -> Kernel:
    """`has_tiles`: `int4_tiles` suits the product, and was found right on the device; `has_ampere`:
    so does `int4_ampere`. `has_order`: columns of x are brought into the weight's order first.
    """
    if num_rows == 0 or (num_rows > int4_skinny.MAX_ROWS and not invariant):
        return Kernel.WIDENED
    if has_tiles:
        return Kernel.TILES
    if has_ampere:
        return Kernel.AMPERE
    if num_rows <= int4_gemv.MAX_ROWS and not invariant and not has_order:
        return Kernel.GEMV
    return Kernel.SKINNY


def product(
    x: Tensor,
    weight: Int4Weight,
    *,
    norm: Tensor | None = None,
    eps: float = 0.0,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    swiglu: bool = False,
    is_gelu: bool = False,
    invariant: bool = False,
) -> Tensor:
    """`residual + (rms_norm(x) W^T + bias)`, or the SwiGLU of it; may overwrite `residual`."""
    has_wgmma = x.dtype == weight.scales.dtype and int4_verdict.has_wgmma(x.device, x.dtype)
    serving = int4_verdict.serving(x.device, x.dtype)
    kernel = choose(
        x.shape[0],
        has_tiles=serving is CandidateKernel.TILES and int4_tiles.suits(x, weight),
        has_ampere=serving is CandidateKernel.AMPERE and int4_ampere.suits(x, weight),
        has_order=weight.order is not None,
        invariant=invariant,
    )
    keeps_norm = norm is None or kernel is Kernel.GEMV
    if norm is not None and kernel in (Kernel.TILES, Kernel.AMPERE):
        # Where rows must not depend on others their norm is a kernel of its own, however many.
        is_bare = weight.order is None and not invariant
        fuses_norm = (int4_tiles if kernel is Kernel.TILES else int4_ampere).fuses_norm
        keeps_norm = is_bare and fuses_norm(x, norm)
    if norm is not None and not keeps_norm:
        x, norm = rms_norm(x, norm, eps), None
    if weight.order is not None:
        x = x.index_select(1, weight.order)
    parts: dict[str, Any] = {
        "bias": bias, "residual": residual, "swiglu": swiglu, "is_gelu": is_gelu,
    }  # fmt: skip
    match kernel:
        case Kernel.TILES:
            tiles = int4_choose.chosen(
                x.shape[0], *weight.shape, group=weight.group, invariant=invariant,
                has_wgmma=has_wgmma,
            )  # fmt: skip
            return int4_tiles.product(x, weight, tiles, norm=norm, eps=eps, **parts)
        case Kernel.AMPERE:
            card = int4_ampere.card_of(x.device)
            stages = int4_ampere.chosen(
                x.shape[0], *weight.shape, card, group=weight.group, invariant=invariant
            )
            return int4_ampere.product(x, weight, stages, norm=norm, eps=eps, **parts)
        case Kernel.GEMV:
            return int4_gemv.int4_gemv(x, weight, norm=norm, eps=eps, **parts)
        case Kernel.SKINNY:
            return int4_skinny.int4_skinny(x, weight, invariant=invariant, **parts)
        case Kernel.WIDENED:
            return widened(x, weight, **parts)


def widened(
    x: Tensor,
    weight: Int4Weight,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    swiglu: bool = False,
    is_gelu: bool = False,
) -> Tensor:
    """`product` by the library, of rows that are normed and in the weight's order."""
    dense = dequantise(weight, x.dtype)
    if swiglu:
        return library.swiglu(x, dense, is_gelu=is_gelu)
    if residual is not None:
        return library.linear_add(x, dense, residual, bias)
    return library.linear(x, dense, bias)
