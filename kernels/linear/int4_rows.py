"""Products of one to four rows with a 4-bit weight in CUDA C++, for Hopper: `int4_rows.cu`.

Owns the kernel's constants, where it suits, and the launch. Must not know layers.

The copy engine brings `int4_tiles` a step of 256 columns in 0.3 us, however few weight rows it has,
so that 4096 x 12288 took 14 us instead of 6. Here lanes load words straight into registers, as the
products of 16 bits do: programs of 16 weight rows, two to four on a multiprocessor, each with 32 KB
on their way before the kernel ahead has ended.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from kernels.cuda.hopper import ALIGNED, SHARED_BYTES, header, runs_on
from kernels.cuda.source import CudaSource
from kernels.linear.config import Int4Rows
from kernels.linear.int4_tiles import HALVES, NUMBERS

if TYPE_CHECKING:
    from kernels.cuda.driver import Function
    from kernels.int4 import Int4Weight

MAX_ROWS: Final = 4

CHUNK: Final = 128
"""Columns that one warp multiplies at once; so many share a scale."""

TILE: Final = 16
"""Weight rows of a program."""

_EIGHT: Final = 8
"""Scales of so many weight rows are copied by eight bytes."""


def _headers(_: Mapping[str, int]) -> dict[str, str]:
    return {**header(), **NUMBERS}


int4_rows: Final = CudaSource(
    __name__, "int4_rows", Path(__file__).with_name("int4_rows.cu"), _headers
)


def suits(
    x: Tensor, weight: Int4Weight, *, has_norm: bool, has_residual: bool, swiglu: bool
) -> bool:
    """Whether this card runs it, for such a product."""
    num_weight_rows, depth = weight.shape
    fits = x.dtype in HALVES and weight.scales.dtype in HALVES and weight.group == CHUNK
    is_whole = num_weight_rows % (_EIGHT * (1 + swiglu)) == 0 and depth % CHUNK == 0
    is_few = x.shape[0] <= MAX_ROWS and _fits(_held(x.shape[0]), depth, has_norm=has_norm)
    return fits and is_whole and is_few and not (swiglu and has_residual) and runs_on(x.device)


def product(
    x: Tensor,
    weight: Int4Weight,
    config: Int4Rows,
    *,
    norm: Tensor | None = None,
    eps: float = 0.0,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    swiglu: bool = False,
    is_gelu: bool = False,
    ahead: Int4Weight | None = None,
) -> Tensor:
    """`residual + (rms_norm(x) W^T + bias)`, or the SwiGLU of it: x [T, K], its columns as the
    weight stores them -> [T, N] or [T, N / 2]. Of gates and ups `ahead` the first are asked for.

    Ask `suits`, and with `norm` `int4_tiles.fuses_norm`, first. The result is the same every time.
    Raises `CompileError` and `DriverError`.
    """
    num_rows, depth = x.shape
    num_out = weight.shape[0] // 2 if swiglu else weight.shape[0]
    out = x.new_empty(num_rows, num_out)
    if num_out * (1 + swiglu) % TILE:
        config = config._replace(tiles=1)
    constants = constants_of(
        config, _held(num_rows), depth, is_half=x.dtype == torch.float16,
        is_scale_half=weight.scales.dtype == torch.float16, has_zeros=weight.zeros is not None,
        has_norm=norm is not None, has_bias=bias is not None, has_residual=residual is not None,
        swiglu=swiglu, is_gelu=is_gelu,
    )  # fmt: skip
    if x.is_meta:
        int4_rows.record(constants)
        return out
    from kernels.cuda.driver import launch

    if x.data_ptr() % ALIGNED:
        x = x.clone()
    next_words = None if ahead is None else ahead.words
    operands = (weight.words, weight.scales, weight.zeros, x, norm, bias, residual, next_words)
    programs = -(-num_out * (1 + swiglu) // (TILE * constants["TILES"]))
    next_half = 0 if next_words is None else next_words.nbytes // 2
    next_bytes = share_of(config.ahead_mb << 19, next_half, programs)
    launch(
        _loaded(tuple(constants.items()), x.get_device()),
        programs,
        torch.cuda.current_stream(x.device).cuda_stream,
        (),
        (*[x if part is None else part for part in operands], out),
        (num_rows, num_out, _bits(eps), next_bytes, next_half),
    )
    return out


@cache
def constants_of(
    config: Int4Rows,
    held_rows: int,
    depth: int,
    *,
    is_half: bool = False,
    is_scale_half: bool = False,
    has_zeros: bool = True,
    has_norm: bool = False,
    has_bias: bool = False,
    has_residual: bool = False,
    swiglu: bool = False,
    is_gelu: bool = False,
) -> Mapping[str, int]:
    """The kernel's macros."""
    each = -(-depth // (CHUNK * config.warps))
    at_once = min(config.at_once, each)
    is_even = depth % (CHUNK * config.warps * at_once) == 0 and not has_residual
    return {
        "WARPS": config.warps, "AT_ONCE": at_once, "BLOCKS": config.blocks,
        "TILES": config.tiles if is_even else 1,
        "ROWS": held_rows, "DEPTH": depth, "GROUP": CHUNK,
        "HALF": int(is_half), "SCALE_HALF": int(is_scale_half), "ZEROS": int(has_zeros),
        "NORM": int(has_norm), "BIAS": int(has_bias), "RESIDUAL": int(has_residual),
        "SWIGLU": int(swiglu), "GELU": int(is_gelu),
    }  # fmt: skip


def shared_bytes(constants: Mapping[str, int]) -> int:
    """What a program takes: x, the norm, its scales twice, what its warps found, a residual."""
    units, groups = constants["DEPTH"] // 8, constants["DEPTH"] // constants["GROUP"]
    rows, warps, tiles = constants["ROWS"], constants["WARPS"], constants["TILES"]
    x = 16 * (rows * (units + 4) + units * constants["NORM"])
    scales = tiles * TILE * (4 * (groups | 1) + 3 * groups)
    return x + scales + 4 * rows * (warps * (TILE * min(tiles, 2) + 1) + TILE)


def share_of(wanted_bytes: int, num_bytes: int, programs: int) -> int:
    """What each program asks for of so many bytes, of which all want `wanted_bytes` at most."""
    return min(wanted_bytes, num_bytes) // (programs * ALIGNED) * ALIGNED


def _bits(value: float) -> int:
    return int(struct.unpack("i", struct.pack("f", value))[0])


def _held(num_rows: int) -> int:
    """Rows of x that a program has room for."""
    return 1 << max(0, num_rows - 1).bit_length()


@cache
def _fits(held_rows: int, depth: int, *, has_norm: bool) -> bool:
    """Whether two programs do, of the most warps."""
    constants = constants_of(Int4Rows(16, 4, 2), held_rows, depth, has_norm=has_norm)
    return 2 * (shared_bytes(constants) + 1024) <= SHARED_BYTES


@cache
def _loaded(constants: tuple[tuple[str, int], ...], device: int) -> Function:
    from kernels.cuda.driver import load

    macros = dict(constants)
    code = int4_rows.cubin(macros)
    return load(code, int4_rows.name, 32 * macros["WARPS"], shared_bytes(macros), device)
