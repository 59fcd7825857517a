"""Triton products of a few rows (some hundreds) with a large matrix, on the tensor cores.

Owns the kernel and its launch, for weights in 16, 8 and 4 bits; their loaders are in `loaders`.
Must not know which shape wants which configuration.

The weights are the product's left side, so that its 64-row unit is full for any number of rows of
x. x is padded to a power of two, at least 16, or cut into tiles of rows; the programs of one weight
tile run side by side, and all but one find the weights in the L2 cache. Weights come through shared
memory, `num_stages` tiles on their way at once (`gemv` says why so many bytes). All programs should
run at once: then each gets an equal share of the bandwidth, and they end together. For that, a
small N is cut along K: each program leaves its float32 sums in scratch memory, and the last one to
arrive adds them all up in the order of the columns, so that the result is the same every time.

Weights of 4 and 8 bits stay so up to shared memory. From there to the tensor cores, which can read
their left side from registers, they become x's dtype; those of 8 bits exactly. Where that
conversion is slower than the memory, x is quantised to 8 bits too, with a scale per row, and both
sides go from shared memory to the tensor cores as they are.
"""

from functools import cache
from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl, is_card, shared_bytes
from kernels.fp8 import Fp8Weight
from kernels.int4 import Int4Weight
from kernels.launch import Launch, scratch
from kernels.linear.config import Skinny, fitted
from kernels.linear.epilogue import NOTHING, Epilogue, EpilogueForm
from kernels.linear.loaders import WeightForm, numbers_multiplied, parts_for, words_multiplied
from kernels.linear.parts import prefetch, weight_rows
from kernels.silu_mul.kernel import opened

MEASURED_BYTES: Final = 227 * 1024
"""Shared memory of Hopper, where configurations are measured."""

_MAX_TILES: Final = 16384
"""How many tiles one product may cut along K: counters of 64 KB."""


@triton.jit(do_not_specialize=["num_rows"])
def _skinny_kernel(
    x_ptr,  # [T, depth], rows of x
    x_scale_ptr,  # float32 [T], of rows in 8 bits
    norm_ptr,  # [depth], weights of the norm
    weight_ptr,  # [num_out (2 num_out with SWIGLU), depth], or int32 words of eight [.., depth / 8]
    scale_ptr,  # scales of weights, by row, block or group
    zero_ptr,  # uint8, zero points by group
    bias_ptr,  # [num_out]
    residual_ptr,  # [T, num_out], added to the product
    out_ptr,  # [T, num_out]
    scratch_ptr,  # float32, sums of parts
    arrived_ptr,  # int32 [tiles], programs that have added up
    num_rows,  # T
    num_out,  # columns of the result
    depth,  # columns of x and of the weight
    eps,  # epsilon of the norm
    ROWS: tl.constexpr,  # rows of x in a tile
    ROW_TILES: tl.constexpr,  # tiles of rows
    BLOCK_N: tl.constexpr,  # weight rows of a tile
    BLOCK_E: tl.constexpr,  # elements of a weight row at once
    PER: tl.constexpr,  # columns of an element: 8 of a word in 4 bits, else 1
    SPLITS: tl.constexpr,  # programs that share a tile's columns
    STAGES: tl.constexpr,  # tiles of columns on their way at once
    EVEN_K: tl.constexpr,  # whether no tile of columns is cut off
    PREFETCH: tl.constexpr,  # bytes of each weight row to ask for ahead
    SCALE_BLOCK: tl.constexpr,  # 0: no scales, 1: by row, more: by block
    GROUP: tl.constexpr,  # in 4 bits the columns of a group, else 0
    ZEROS: tl.constexpr,  # whether groups have zero points
    X_SCALED: tl.constexpr,  # whether x is in 8 bits
    NORM: tl.constexpr,  # whether x is normed; not in 4 bits
    BIAS: tl.constexpr,  # whether there is a bias
    RESIDUAL: tl.constexpr,  # whether there is a residual
    SWIGLU: tl.constexpr,  # whether the weight has gates and ups
    GELU: tl.constexpr,  # whether gates open by GELU, not SiLU
    PDL: tl.constexpr,  # whether it may start while the kernel ahead ends
):
    """One tile of BLOCK_N weight rows times ROWS rows of x, over one of SPLITS parts of K.

    With SWIGLU the tile holds BLOCK_N / 2 gate rows and their up rows by turns.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    tile, first_row = tl.program_id(0) // ROW_TILES, tl.program_id(0) % ROW_TILES * ROWS
    width = depth // PER  # elements of a weight row
    part = tl.cdiv(tl.cdiv(width, BLOCK_E), SPLITS) * BLOCK_E
    first = tl.program_id(1) * part
    last = tl.minimum(first + part, width)
    lanes = tl.arange(0, BLOCK_E)
    weights_at = weight_rows(tile, num_out, BLOCK_N, SWIGLU)
    weight_ptrs = weight_ptr + weights_at * width
    # These, x's scales and what the sums are added to are asked for ahead of the sums: behind them
    # each was a microsecond.
    scales = tl.load(scale_ptr + weights_at) if SCALE_BLOCK == 1 else 1.0
    if PDL:
        if PREFETCH > 0:
            prefetch(weight_ptrs, first, last, PREFETCH)
        tl.extra.cuda.gdc_wait()
    # Rows past the end repeat the last one: loads without masks, and no store.
    rows = tl.minimum(first_row + tl.arange(0, ROWS), num_rows - 1)
    x_scales = tl.load(x_scale_ptr + rows) if X_SCALED else 1.0
    x_ptrs = x_ptr + rows[:, None] * depth + lanes[None, :]
    weight_tiles = weight_ptrs[:, None] + lanes[None, :]
    sums = tl.zeros([BLOCK_N, ROWS], tl.float32)
    squares = tl.zeros([ROWS], tl.float32)
    for at in tl.range(first, last, BLOCK_E, num_stages=STAGES):
        if GROUP > 0:
            sums = words_multiplied(
                sums, weight_ptr, scale_ptr, zero_ptr, x_ptr, weights_at, rows, at, depth,
                BLOCK_N, BLOCK_E, EVEN_K, GROUP, ZEROS,
            )  # fmt: skip
        else:
            sums, squares = numbers_multiplied(
                sums, squares, weight_tiles + at, x_ptrs + at, norm_ptr, scale_ptr, tile, at,
                num_out, depth, BLOCK_N, BLOCK_E, EVEN_K, SCALE_BLOCK, NORM, SWIGLU,
                "evict_first" if ROW_TILES == 1 else "",
            )  # fmt: skip
    residual = _residual(residual_ptr, tile, first_row, num_rows, num_out, BLOCK_N, ROWS, RESIDUAL)
    if SPLITS > 1:
        sums, squares, is_last = _gathered(
            sums, squares, scratch_ptr, arrived_ptr, BLOCK_N, ROWS, SPLITS, NORM
        )
    else:
        is_last = True
    if is_last:
        sums = _scaled(sums, scales, x_scales, SCALE_BLOCK, X_SCALED)
        if NORM:
            sums *= tl.rsqrt(squares / depth + eps)[None, :]
        _finish(
            sums, residual, tile, first_row, bias_ptr, out_ptr, num_rows, num_out, BLOCK_N, ROWS,
            BIAS, RESIDUAL, SWIGLU, GELU,
        )  # fmt: skip


@triton.jit
def _scaled(sums, scales, x_scales, SCALE_BLOCK: tl.constexpr, X_SCALED: tl.constexpr):
    """Sums [BLOCK_N, ROWS] times the scales of weight rows [BLOCK_N] and of rows of x [ROWS]."""
    if SCALE_BLOCK == 1:
        sums *= scales[:, None]
    if X_SCALED:
        sums *= x_scales[None, :]
    return sums


@triton.jit
def _residual(
    residual_ptr, tile, first_row, num_rows, num_out, BLOCK_N: tl.constexpr, ROWS: tl.constexpr,
    RESIDUAL: tl.constexpr,
):  # fmt: skip
    """What the sums are added to, [BLOCK_N, ROWS]: only where there is no SwiGLU."""
    if RESIDUAL:
        at, inside = _places(tile, first_row, num_rows, num_out, BLOCK_N, ROWS)
        return tl.load(residual_ptr + at, inside, 0.0)
    else:  # noqa: RET505 - what follows a return is compiled all the same
        return 0.0


@triton.jit
def _places(tile, first_row, num_rows, num_out, SIZE: tl.constexpr, ROWS: tl.constexpr):
    """The places of a tile's results, [SIZE, ROWS], and which of them exist."""
    columns, rows = tile * SIZE + tl.arange(0, SIZE), first_row + tl.arange(0, ROWS)
    inside = (columns < num_out)[:, None] & (rows < num_rows)[None, :]
    return columns[:, None] + rows[None, :].to(tl.int64) * num_out, inside


@triton.jit
def _gathered(
    sums, squares, scratch_ptr, arrived_ptr,
    BLOCK_N: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """The sums of all parts, and whether this program is the one that has them all."""
    tile, split = tl.program_id(0), tl.program_id(1)  # of weights and of rows
    size: tl.constexpr = BLOCK_N * ROWS + ROWS
    mine = scratch_ptr + (tile * SPLITS + split).to(tl.int64) * size
    rows = tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK_N)[:, None] * ROWS + rows[None, :]
    tl.store(mine + at, sums)
    if NORM:
        tl.store(mine + BLOCK_N * ROWS + rows, squares)
    # All threads' stores come before the one thread's release; its acquire before all loads.
    tl.debug_barrier()
    place = tl.atomic_add(arrived_ptr + tile, 1, sem="acq_rel", scope="gpu")
    tl.debug_barrier()
    is_last = place == SPLITS - 1
    if is_last:
        # Zero again for the next launch, which touches it only after this one has ended.
        tl.store(arrived_ptr + tile, 0)
        sums = tl.zeros([BLOCK_N, ROWS], tl.float32)
        squares = tl.zeros([ROWS], tl.float32)
        for other in tl.static_range(SPLITS):
            theirs = scratch_ptr + (tile * SPLITS + other).to(tl.int64) * size
            sums += tl.load(theirs + at, cache_modifier=".cg")
            if NORM:
                squares += tl.load(theirs + BLOCK_N * ROWS + rows, cache_modifier=".cg")
    return sums, squares, is_last


@triton.jit
def _finish(
    sums,  # float32 [BLOCK_N, ROWS], scaled
    residual,  # [BLOCK_N, ROWS], what `_residual` has returned
    tile,  # number of the tile of weight rows
    first_row,  # first row of x
    bias_ptr,  # [num_out]
    out_ptr,  # [T, num_out]
    num_rows,  # T
    num_out,  # columns of the result
    BLOCK_N: tl.constexpr,  # weight rows of a tile
    ROWS: tl.constexpr,  # rows of x in a tile
    BIAS: tl.constexpr,  # whether there is a bias
    RESIDUAL: tl.constexpr,  # whether there is a residual
    SWIGLU: tl.constexpr,  # whether the weight has gates and ups
    GELU: tl.constexpr,  # whether gates open by GELU, not SiLU
):
    """A tile's sums, with what follows a product, to `out_ptr`."""
    size: tl.constexpr = BLOCK_N // 2 if SWIGLU else BLOCK_N
    if SWIGLU:
        gate, up = sums.reshape(size, 2, ROWS).permute(0, 2, 1).split()
        sums = opened(gate, GELU) * up
    if BIAS:
        columns = tile * size + tl.arange(0, size)
        sums += tl.load(bias_ptr + columns, columns < num_out, 0.0).to(tl.float32)[:, None]
    if RESIDUAL:
        sums += residual.to(tl.float32)
    at, inside = _places(tile, first_row, num_rows, num_out, size, ROWS)
    tl.store(out_ptr + at, sums.to(out_ptr.dtype.element_ty), inside)


def skinny(
    x: Tensor,
    weight: Tensor | Fp8Weight | Int4Weight,
    config: Skinny,
    epilogue: Epilogue = NOTHING,
    *,
    x_scales: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The product and its epilogue: x [T, K], its columns as the weight stores them.

    With a norm, x times the norm's weight is rounded to x's dtype for the product, and the row's
    scale applied to the finished sums: float16 may overflow there. A product in 4 bits takes rows
    that are normed. With splits, launches on one device must be ordered, as on one stream: they
    share counters and a scratch. The first one must not be inside a graph capture. Of a weight with
    scales by block, 128 is a multiple of the configuration's blocks. x may be values with
    `x_scales` [T] (without a norm); the result is of `dtype`, else of x's. Raises `ValueError`.
    """
    num_rows, depth = x.shape
    form, elements, scales, zeros = parts_for(weight)
    if form.group and epilogue.norm is not None:
        raise ValueError("a product in 4 bits on the tensor cores takes rows that are normed")
    sizes = SkinnySizes(
        weight.shape[0], depth, x.itemsize, form, x_scales is not None, epilogue.eps, epilogue.form,
    )  # fmt: skip
    ready = _ready(config, x.device, num_rows, sizes)
    out = x.new_empty(num_rows, ready.num_out, dtype=dtype)
    operands = (
        x_scales, epilogue.norm, elements, scales, zeros, epilogue.bias, epilogue.residual,
    )  # fmt: skip
    parts = [x if part is None else part for part in operands]
    ready.launch(ready.grid, (x, *parts, out, ready.scratch, ready.arrived), (num_rows,))
    return out


class SkinnySizes(NamedTuple):
    """What a product is compiled for, but for tiles: the rows of the weight and its columns, the
    bytes of a number of x, how the weight is stored, whether rows of x have scales, and what is
    done to the sums; `eps` is the norm's.
    """

    weight_rows: int
    depth: int
    row_bytes: int
    form: WeightForm
    is_scaled: bool
    eps: float
    epilogue: EpilogueForm

    @property
    def num_out(self) -> int:
        """Columns of the result."""
        return self.epilogue.num_out(self.weight_rows)


class _Ready(NamedTuple):
    """A launch with what it needs beside its operands."""

    launch: Launch
    grid: tuple[int, int, int]
    num_out: int
    scratch: Tensor
    arrived: Tensor


@cache
def _ready(config: Skinny, device: torch.device, num_rows: int, sizes: SkinnySizes) -> _Ready:
    tile_rows = config.tile_rows(num_rows)
    config = _on_card(config, device, tile_rows, sizes.form, sizes.row_bytes)
    row_tiles = triton.cdiv(num_rows, tile_rows)
    tiles = triton.cdiv(sizes.weight_rows, config.block_n) * row_tiles
    parts = tiles * config.splits if config.splits > 1 else 0
    return _Ready(
        _launch_of(config, device, tile_rows, row_tiles, sizes),
        (tiles, config.splits, 1),
        sizes.num_out,
        scratch(device, parts * (config.block_n + 1) * tile_rows),
        counters(device),
    )


def _on_card(
    config: Skinny, device: torch.device, tile_rows: int, form: WeightForm, row_bytes: int
) -> Skinny:
    """Configurations are those of Hopper; a card with less shared memory gets what fits."""
    if not is_card(device) or (limit := shared_bytes(device)) >= MEASURED_BYTES:
        return config
    return fitted(config, stage_bytes(config, tile_rows, form, row_bytes), limit)


def stage_bytes(config: Skinny, tile_rows: int, form: WeightForm, row_bytes: int) -> int:
    """Shared memory of a stage: a tile of the weight and one of x, whose numbers have `row_bytes`.
    In 4 bits scales and zero points travel as often as words do, a scale as 4 bytes.
    """
    element = form.item_bytes + (4 + form.has_zeros if form.group else 0)
    tile = config.block_n * element + tile_rows * form.per * row_bytes
    return config.block_k // form.per * tile


@cache
def _launch_of(
    config: Skinny, device: torch.device, tile_rows: int, row_tiles: int, sizes: SkinnySizes
) -> Launch:
    form = sizes.form
    constants = {
        "num_out": sizes.num_out,
        "depth": sizes.depth,
        "eps": sizes.eps,
        "ROWS": tile_rows,
        "ROW_TILES": row_tiles,
        "BLOCK_N": config.block_n,
        "BLOCK_E": config.block_k // form.per,
        "PER": form.per,
        "SPLITS": config.splits,
        "STAGES": config.num_stages,
        "EVEN_K": sizes.depth % config.block_k == 0,
        "PREFETCH": config.prefetched_bytes // config.block_n,
        **form.constants(),
        "X_SCALED": sizes.is_scaled,
        **sizes.epilogue.constants(),
        "PDL": has_pdl(device),
    }
    return Launch(_skinny_kernel, constants, num_warps=config.num_warps)


@cache
def counters(device: torch.device) -> Tensor:
    """How many programs of each tile have arrived; every launch leaves zeros."""
    return torch.zeros(_MAX_TILES, device=device, dtype=torch.int32)
