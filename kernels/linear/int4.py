"""Products with 4-bit weights on a CUDA device: which kernel serves how many rows.

Owns the rule, and how Triton's kernels cut up such a product. Must not know layers.
"""

from enum import StrEnum
from functools import cache
from typing import Final

import torch
import triton
from torch import Tensor

from kernels.choose import is_card, shared_bytes
from kernels.int4 import PER_WORD, Int4Weight, dequantise
from kernels.linear import int4_ampere, int4_choose, int4_tiles, int4_verdict, library
from kernels.linear.config import Gemv, Skinny, fitted
from kernels.linear.epilogue import NOTHING, Epilogue
from kernels.linear.gemv import gemv
from kernels.linear.int4_verdict import CandidateKernel
from kernels.linear.loaders import WeightForm, parts_for
from kernels.linear.skinny import MEASURED_BYTES, skinny, stage_bytes
from kernels.rms_norm import rms_norm

GEMV_ROWS: Final = 2
"""The most rows of x by `gemv`; more take the tensor cores."""

SKINNY_ROWS: Final = 256
"""The most rows of x by `skinny`. Beyond it a widened weight is multiplied sooner: 0.2 ms per layer
of an 8B to widen it.
"""

_GEMV_BYTES: Final = 16 * 1024
"""Bytes of words in one program."""
_GEMV_WORDS: Final = 512
"""The most words of a row at once."""

_TILE: Final = Skinny(
    block_n=64,
    block_k=256,
    splits=1,
    num_warps=4,
    num_stages=4,
    fuses_norm=False,
    prefetched_bytes=0,
    block_rows=64,
)
"""A tile of `skinny`, if shared memory holds it. Where no row may depend on others it always has 64
rows."""
_LEAST_COLUMNS: Final = 128
_MOST_SPLITS: Final = 8
_PROGRAMS: Final = 264
"""Two for each multiprocessor of an H200."""


class Kernel(StrEnum):
    """What multiplies rows with a weight in 4 bits."""

    TILES = "int4_tiles"
    AMPERE = "int4_ampere"
    GEMV = "gemv"
    SKINNY = "skinny"
    WIDENED = "widened, the library"


def choose(
    num_rows: int, *, has_tiles: bool, has_ampere: bool, has_order: bool, invariant: bool
) -> Kernel:
    """`has_tiles`: `int4_tiles` suits the product, and was found right on the device; `has_ampere`:
    so does `int4_ampere`. `has_order`: columns of x are brought into the weight's order first.
    """
    if num_rows == 0 or (num_rows > SKINNY_ROWS and not invariant):
        return Kernel.WIDENED
    if has_tiles:
        return Kernel.TILES
    if has_ampere:
        return Kernel.AMPERE
    if num_rows <= GEMV_ROWS and not invariant and not has_order:
        return Kernel.GEMV
    return Kernel.SKINNY


def product(
    x: Tensor, weight: Int4Weight, epilogue: Epilogue = NOTHING, *, invariant: bool = False
) -> Tensor:
    """The product and its epilogue; may overwrite the residual."""
    has_wgmma = x.dtype == weight.scales.dtype and int4_verdict.has_wgmma(x.device, x.dtype)
    serving = int4_verdict.serving(x.device, x.dtype)
    kernel = choose(
        x.shape[0],
        has_tiles=serving is CandidateKernel.TILES and int4_tiles.suits(x, weight),
        has_ampere=serving is CandidateKernel.AMPERE and int4_ampere.suits(x, weight),
        has_order=weight.order is not None,
        invariant=invariant,
    )
    norm = epilogue.norm
    keeps_norm = norm is None or kernel is Kernel.GEMV
    if norm is not None and kernel in (Kernel.TILES, Kernel.AMPERE):
        # Where rows must not depend on others their norm is a kernel of its own, however many.
        is_bare = weight.order is None and not invariant
        fuses_norm = (int4_tiles if kernel is Kernel.TILES else int4_ampere).fuses_norm
        keeps_norm = is_bare and fuses_norm(x, norm)
    if norm is not None and not keeps_norm:
        x, epilogue = rms_norm(x, norm, epilogue.eps), epilogue.behind_norm()
    if weight.order is not None:
        x = x.index_select(1, weight.order)
    match kernel:
        case Kernel.TILES:
            tiles = int4_choose.chosen(
                x.shape[0], *weight.shape, group=weight.group, invariant=invariant,
                has_wgmma=has_wgmma,
            )  # fmt: skip
            return int4_tiles.product(x, weight, tiles, epilogue)
        case Kernel.AMPERE:
            card = int4_ampere.card_of(x.device)
            stages = int4_ampere.chosen(
                x.shape[0], *weight.shape, card, group=weight.group, invariant=invariant
            )
            return int4_ampere.product(x, weight, stages, epilogue)
        case Kernel.GEMV:
            return by_gemv(x, weight, epilogue)
        case Kernel.SKINNY:
            return by_skinny(x, weight, epilogue, invariant=invariant)
        case Kernel.WIDENED:
            return library.product(x, dequantise(weight, x.dtype), epilogue)


def by_gemv(x: Tensor, weight: Int4Weight, epilogue: Epilogue = NOTHING) -> Tensor:
    """`product` of up to `GEMV_ROWS` rows by `gemv`; columns of x as the weight has them."""
    return gemv(x, weight, _gemv_tiles(x.shape[1]), epilogue)


def by_skinny(
    x: Tensor, weight: Int4Weight, epilogue: Epilogue = NOTHING, *, invariant: bool = False
) -> Tensor:
    """`product` of normed rows by `skinny`; columns of x as the weight has them."""
    form, num_rows = parts_for(weight)[0], x.shape[0]
    config = _skinny_tiles(x.device, num_rows, *weight.shape, form, x.itemsize, invariant)
    return skinny(x, weight, config, epilogue)


@cache
def _gemv_tiles(depth: int) -> Gemv:
    """Tiles of as many weight rows, up to 16, as a program may have bytes for."""
    words = min(_GEMV_WORDS, triton.next_power_of_2(depth // PER_WORD))
    row_bytes = 4 * words * triton.cdiv(depth // PER_WORD, words)
    block_n = 2
    while block_n < 16 and 2 * block_n * row_bytes <= _GEMV_BYTES:
        block_n *= 2
    return Gemv(block_n=block_n, block_k=PER_WORD * words, num_warps=4)


@cache
def _skinny_tiles(
    device: torch.device,
    num_rows: int,
    num_weight_rows: int,
    depth: int,
    form: WeightForm,
    row_bytes: int,
    invariant: bool,
) -> Skinny:
    """What fits into the card's shared memory, and as many splits as run at once; with `invariant`
    none, and tiles that do not depend on the number of rows.
    """
    config = _TILE._replace(pads_rows=invariant)
    tile_rows = config.tile_rows(num_rows)
    limit = shared_bytes(device) if is_card(device) else MEASURED_BYTES
    config = fitted(config, stage_bytes(config, tile_rows, form, row_bytes), limit)
    block_k = min(config.block_k, max(_LEAST_COLUMNS, triton.next_power_of_2(depth)))
    config = config._replace(block_k=block_k)
    if invariant:
        return config
    tiles = triton.cdiv(num_weight_rows, config.block_n) * triton.cdiv(num_rows, tile_rows)
    splits = min(_PROGRAMS // tiles, depth // (4 * block_k), _MOST_SPLITS)
    return config._replace(splits=max(1, splits))
