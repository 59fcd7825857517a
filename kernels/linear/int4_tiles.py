"""Products of rows with a 4-bit weight in CUDA C++, for Hopper: `int4_tiles.cu`.

Owns the kernel's constants, how a product is cut up, and the launch. Must not know layers.

A layer of an 8B has 97 MB of words: 23 us at the card's rate. Their way into fragments takes 15
instructions per eight numbers, half of what the lanes could do in that time, for up to 16 rows of
x. A single row is a product of bytes, a third of that: its time is that of what waits for the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from kernels.cuda.hopper import ALIGNED, SHARED_BYTES, header, runs_on, wgmma
from kernels.cuda.source import CudaSource
from kernels.linear.config import Int4Tiles
from kernels.linear.epilogue import NOTHING, Epilogue, EpilogueForm

if TYPE_CHECKING:
    from kernels.int4 import Int4Weight

MAX_NORM_ROWS: Final = 16
"""The norm of more rows is a kernel of its own, done once instead of in every program."""

COLUMNS: Final = 256
"""Columns of a stage, or of each part of a wide one: 128 bytes of a weight row."""

_BLOCK: Final = 64
"""Columns of x side by side in shared memory."""

_BARRIER_BYTES: Final = 16
_DIGIT_BYTES: Final = 4
"""The bytes of one number, in a row of x that is kept whole in shared memory."""
_FOUND_BYTES: Final = 8
"""The bytes of a warp's result for its part of such a row."""
_OTHER_SUMS: Final = 5
"""Float32 numbers that a row of x has in shared memory beside the sums of the tile: one for its sum
of squares, and four that keep rows out of each other's banks.
"""
_RESERVED_BYTES: Final = 1024
"""Bytes of shared memory that the card reserves for each program on a multiprocessor."""
SCALE_BYTES: Final = 4
"""Bytes of a scale and its zero point in shared memory."""
OTHER_GROUPS: Final = 7
"""How many more groups than its own a weight row may take in shared memory: scales are read four at
a time, and rows lie an odd number of scales apart.
"""

_LEAST_STAGES: Final = 2
_MAX_GROUPS: Final = 256
"""The most groups of a row: 128 KB of scales for 128 rows of a weight, beside two stages."""

HALVES: Final = (torch.float16, torch.bfloat16)


def _products(constants: Mapping[str, int]) -> dict[str, str]:
    """`multiply_group` adds 64 weight rows by all of x, 16 columns deep, without waiting.

    `wait_made` waits for all products but those asked for last, whose left sides were `made`.
    """
    if not constants["WGMMA"]:
        return header()
    count = 4 * constants["NT"]
    sums, made = f"float (&sums)[{count}]", "u32 (&{0})[16]"
    held = [f'"+f"(sums[{number}])' for number in range(count)]
    first, second = ([f'"+r"({name}[{n}])' for n in range(16)] for name in ("made", "other"))
    product = wgmma(2 * count, 0, "abcd", "rows", tail="1, 1, 1, 0")
    bodies = {
        f"multiply_group({sums}, u32 a, u32 b, u32 c, u32 d, u64 rows)": product,
        f"wait_made({made.format('made')})": _waits(1, first),
        f"wait_all({sums}, {made.format('made')}, {made.format('other')})": "".join(
            [_waits(0, [*first, *held]), _waits(0, second)]
        ),
    }
    lines = [f"__device__ __forceinline__ void {f} {{{body}\n}}\n" for f, body in bodies.items()]
    return {**header(), "products.h": "\n".join(lines)}


def _waits(left: int, held: list[str]) -> str:
    """Keeps operands where products that are under way read and write them."""
    kept = ", ".join(held)
    return f'\n  asm volatile("wgmma.wait_group.sync.aligned {left};" : {kept} :: "memory");'


int4_tiles: Final = CudaSource(
    __name__, "int4_tiles", Path(__file__).with_name("int4_tiles.cu"), _products
)


def suits(x: Tensor, weight: Int4Weight) -> bool:
    """Whether this card runs it, for such a product."""
    fits = x.dtype in HALVES and weight.scales.dtype in HALVES and x.shape[1] % _BLOCK == 0
    return fits and weight.scales.shape[1] <= _MAX_GROUPS and runs_on(x.device)


def fuses_norm(x: Tensor, norm: Tensor) -> bool:
    """Whether the product normalises x. In float16 an unscaled row may not fit."""
    fits = x.dtype == norm.dtype == torch.bfloat16 and x.shape[1] % COLUMNS == 0
    return fits and x.shape[0] <= MAX_NORM_ROWS and norm.data_ptr() % ALIGNED == 0


def product(
    x: Tensor,
    weight: Int4Weight,
    config: Int4Tiles,
    epilogue: Epilogue = NOTHING,
) -> Tensor:
    """The product and its epilogue: x [T, K], its columns as the weight stores them.

    Ask `suits`, and with a norm `fuses_norm`, first. The result is the same every time. Raises
    `CompileError`, `DriverError`, and `ValueError` where it does not fit into shared memory.
    """
    num_rows, depth = x.shape
    form, swiglu = epilogue.form, epilogue.swiglu
    num_out = form.num_out(weight.shape[0])
    out = x.new_empty(num_rows, num_out)
    row_tiles = -(-num_rows // (8 * config.eights))
    constants = constants_of(
        config, depth, weight.group, is_half=x.dtype == torch.float16,
        is_scale_half=weight.scales.dtype == torch.float16, has_zeros=weight.zeros is not None,
        epilogue=form, reads_once=row_tiles == 1, is_lone=num_rows == 1,
    )  # fmt: skip
    if x.is_meta:
        int4_tiles.record(constants)
        return out
    from kernels.cuda.driver import blocks_map, launch, loaded, tile_map

    if x.data_ptr() % ALIGNED:
        x = x.clone()
    num_weight_rows, features = weight.shape[0], config.tile // (1 + swiglu)
    wide, columns = constants["WIDE"], constants["WIDE"] * COLUMNS // _BLOCK
    # Words as four 16-bit columns to their sixteen.
    words = weight.words.data_ptr(), num_weight_rows, depth // 4, features
    norm, bias, residual = epilogue.norm, epilogue.bias, epilogue.residual
    operands = (weight.scales, weight.zeros, norm, bias, residual)
    threads = 32 * (constants["WARPS_M"] * constants["WARPS_K"] * constants["TURNS"] + 1)
    launch(
        loaded(int4_tiles, constants, threads, shared_bytes(constants), x.device),
        -(-num_out // features) * row_tiles * config.splits,
        torch.cuda.current_stream(x.device).cuda_stream,
        (
            blocks_map(*words, wide) if wide > 1 else tile_map(*words),
            blocks_map(x.data_ptr(), num_rows, depth, 8 * config.eights, columns),
        ),
        (*[x if part is None else part for part in operands], x, out),
        (num_rows, num_out, epilogue.eps_bits),
    )
    return out


@cache
def constants_of(
    config: Int4Tiles,
    depth: int,
    group: int,
    *,
    is_half: bool = False,
    is_scale_half: bool = False,
    has_zeros: bool = True,
    epilogue: EpilogueForm = NOTHING.form,
    reads_once: bool = True,
    is_lone: bool = False,
) -> Mapping[str, int]:
    """The kernel's macros. Raises `ValueError` where two stages do not fit into shared memory, and
    for groups that do not divide a stage.
    """
    if COLUMNS % group:
        raise ValueError(f"groups of {group} columns")
    config = _fitted(config, depth)
    wide = config.wide
    is_lone = is_lone and config.lone and depth % (COLUMNS * wide) == 0
    # Elsewhere a scale would be rounded as well.
    is_early = config.early and is_half == is_scale_half
    constants = {
        "WARPS_M": config.warps_m, "WARPS_K": config.warps_k, "TURNS": config.turns,
        "MT": config.m_tiles,
        "NT": config.eights, "STAGES": config.stages, "SPLITS": config.splits,
        "BLOCKS": config.blocks, "DEPTH": depth, "GROUP": group, "HALF": int(is_half),
        "SCALE_HALF": int(is_scale_half), "ZEROS": int(has_zeros),
        **epilogue.macros(), "ONCE": int(reads_once),
        "EARLY": int(is_early), "WGMMA": int(config.wgmma and is_early and not is_half),
        "WIDE": wide, "LONE": int(is_lone),
    }  # fmt: skip
    scales = shared_bytes({**constants, "STAGES": 0})
    each = shared_bytes({**constants, "STAGES": 1}) - scales
    sum_rows = 1 if is_lone else 8 * config.eights
    sums = 4 * config.parts * sum_rows * (config.tile + _OTHER_SUMS)
    turns = config.turns  # a stage is always the same group's
    least = -(-max(_LEAST_STAGES, -(-sums // (each - _BARRIER_BYTES))) // turns) * turns
    shared = (SHARED_BYTES + _RESERVED_BYTES) // config.blocks - _RESERVED_BYTES
    most = (shared - scales) // each
    if most < least:  # then fewer programs at once
        most = (SHARED_BYTES - scales) // each
    if most < least:
        raise ValueError(f"{config} for {depth} columns in groups of {group}")
    # More than a program's steps would keep the next kernel off the multiprocessor.
    steps = -(-depth // (COLUMNS * wide * config.splits))
    stages = min(most, config.stages, steps) // turns * turns
    return {**constants, "STAGES": max(least, stages)}


def _fitted(config: Int4Tiles, depth: int) -> Int4Tiles:
    """Stages of as many columns as divide the depth: a last one that is not full is filled with
    zeros only if it has 256, and no row lies whole. A warp takes 64 columns of a stage at least.
    """
    wide = config.wide
    while wide > 1 and depth % (COLUMNS * wide):
        wide //= 2
    return config._replace(
        wide=wide,
        warps_k=min(config.warps_k, wide * COLUMNS // _BLOCK),
        stages=config.stages * config.wide // wide,
    )


@cache
def fits(config: Int4Tiles, depth: int, group: int) -> bool:
    """Whether a multiprocessor has memory for one program."""
    try:
        constants_of(config, depth, group)
    except ValueError:
        return False
    return True


def shared_bytes(constants: Mapping[str, int]) -> int:
    """What a program takes: stages of words, x and the norm, or both whole beside stages of words,
    barriers, and all its scales.
    """
    columns, norm = COLUMNS * constants["WIDE"], constants["NORM"]
    tile = 16 * constants["MT"] * constants["WARPS_M"]
    stage, whole = tile * columns // 2, 0
    if constants["LONE"]:
        warps = constants["WARPS_M"] * constants["WARPS_K"] * constants["TURNS"]
        own = -(-constants["DEPTH"] // columns // constants["SPLITS"]) * columns
        whole += _DIGIT_BYTES * own + _FOUND_BYTES * warps
    else:
        stage += 16 * constants["NT"] * columns + 2 * columns * norm
    steps = -(-constants["DEPTH"] // columns)
    groups = -(-steps // constants["SPLITS"]) * (columns // constants["GROUP"]) + OTHER_GROUPS
    return constants["STAGES"] * (stage + _BARRIER_BYTES) + whole + tile * groups * SCALE_BYTES
