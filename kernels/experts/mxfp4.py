"""Experts in MXFP4 by the tensor cores, in CUDA C++ from Ampere on: `mxfp4.cu`.

Owns the kernel's constants, how a product is cut up on a card, the launches, and the sum of a row's
products where a list has its pairs apart. Must not know when it serves (`kernels.experts.choose`).

A weight costs 2.7 instructions of a thread, loads included, where products on the ordinary lanes
cost six: at one instruction per clock an H200 needs 6 us for gates and ups of one row of
gpt-oss-20b, which are read in 8.3. Its programs have 70 KB and more of weights on their way on each
multiprocessor.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import capability, has_pdl, is_card, shared_bytes
from kernels.cuda import hopper
from kernels.cuda.hopper import ALIGNED
from kernels.cuda.source import ARCH, CudaSource
from kernels.experts.many import most_tiles
from kernels.launch import Launch, scratch
from kernels.mxfp4 import GROUP

if TYPE_CHECKING:
    from kernels.cuda.driver import Function
    from kernels.experts.many import PairList
    from kernels.experts.shapes import Activation, Routed
    from kernels.mxfp4 import Mxfp4Weight

_CAPABILITY: Final = (8, 0)

_WARP: Final = 32
_CHUNK_BYTES: Final = 16
_EIGHT: Final = 8
_STEP_COLUMNS: Final = 128
"""What a warp takes of a weight row at once: 16 bytes in each of four lanes."""
_PAIRS_BYTES: Final = 128
_SYSTEM_BYTES: Final = 1024
"""What the driver takes of each program's shared memory."""

_MAX_LISTED: Final = 16
"""Pairs of an expert on average: of more, its weights would be read more than once."""

_SUMMED: Final = 512
"""Outputs of a program that sums."""


class Mxfp4Tiles(NamedTuple):
    """How a product is cut up: `warps` of a program share the columns, it multiplies `fragments` of
    16 weight rows at once with 8 `eights` pairs, `stages` of such units are on their way, and a
    multiprocessor holds `blocks` programs.
    """

    warps: int
    fragments: int
    eights: int
    stages: int
    blocks: int

    @property
    def rows(self) -> int:
        """Pairs of a tile in the list."""
        return _EIGHT * self.eights


_WIDE: Final = (
    Mxfp4Tiles(warps=12, fragments=2, eights=2, stages=2, blocks=1),
    Mxfp4Tiles(warps=12, fragments=1, eights=2, stages=2, blocks=1),
)
_NARROW: Final = (
    Mxfp4Tiles(warps=12, fragments=2, eights=1, stages=1, blocks=2),
    Mxfp4Tiles(warps=12, fragments=1, eights=1, stages=3, blocks=2),
    Mxfp4Tiles(warps=12, fragments=1, eights=1, stages=2, blocks=2),
    Mxfp4Tiles(warps=12, fragments=1, eights=1, stages=3, blocks=1),
    Mxfp4Tiles(warps=12, fragments=1, eights=1, stages=2, blocks=1),
    Mxfp4Tiles(warps=12, fragments=1, eights=1, stages=1, blocks=1),
)
"""In order: the first whose programs fit into a multiprocessor. With 12 warps 2880 columns are two
steps of each, of which 6 % are empty. On an H200 the first of `_NARROW` take 63.7 us for gates and
ups of 8 rows of gpt-oss-20b in a list, the second 67.8."""

_LISTED_DOWN: Final = _NARROW[1:]
"""For what is down by a list, where the first has not run."""

_LONE_UP: Final = _NARROW[1:]
_LONE_DOWN: Final = (
    Mxfp4Tiles(warps=8, fragments=1, eights=1, stages=3, blocks=2),
    Mxfp4Tiles(warps=12, fragments=1, eights=1, stages=2, blocks=2),
    *_NARROW[3:],
)
"""Without a list. In a chain of a layer's launches, one row of gpt-oss-20b, the first of both take
2.2 and 6.8 us less than the first of `_NARROW` (H200): more and smaller units are even shares, and
what is down, whose units have four experts' weights one after the other, has three on their way."""


class Product(NamedTuple):
    """What a compilation depends on, but for tiles and the card."""

    is_up: bool
    is_listed: bool
    depth: int
    out: int
    active: int
    has_bias: bool

    @property
    def expert_rows(self) -> int:
        """Rows of the stack that belong to one expert."""
        return 2 * self.out if self.is_up else self.out


mxfp4_experts: Final = CudaSource(
    __name__,
    "mxfp4_experts",
    Path(__file__).with_name("mxfp4.cu"),
    lambda _: hopper.header("ampere.h"),
)


@cache
def runs_on(device: torch.device) -> bool:
    """Whether the kernel can be compiled for a device."""
    return is_card(device) and capability(device) >= _CAPABILITY and hopper.has_compiler()


def suits(x: Tensor, gate_up: Mxfp4Weight, down: Mxfp4Weight) -> bool:
    """Whether this card runs both products of such rows, for few of them and for many."""
    if x.dtype != torch.bfloat16 or not runs_on(x.device):
        return False
    depth = max(gate_up.shape[1], down.shape[1])
    aligned = x.is_meta or not any(
        part.data_ptr() % ALIGNED for part in (gate_up.pairs, down.pairs)
    )
    return aligned and bool(_fitting(_NARROW, depth, _EIGHT, shared_bytes(x.device)))


def lists(num_pairs: int, num_experts: int) -> bool:
    """Whether so many pairs are few enough for tiles of a list."""
    return num_pairs <= _MAX_LISTED * num_experts


def list_rows(num_rows: int, hidden: int, width: int, card_bytes: int) -> int:
    """Pairs of a tile in the list: 8 for no more rows, and where 16 do not fit into a card."""
    depth = max(hidden, width)
    if num_rows > _EIGHT and _fitting(_WIDE, depth, 2 * _EIGHT, card_bytes):
        return 2 * _EIGHT
    return _EIGHT


@cache
def chosen(
    depth: int, tile_rows: int, x_rows: int, card_bytes: int, *, is_up: bool = True
) -> Mxfp4Tiles:
    """The tiles of a product of `depth` columns, with `tile_rows` pairs in a tile of the list (1
    without), of which a program has up to `x_rows` in shared memory. Raises `ValueError` if none
    fit.
    """
    known: tuple[Mxfp4Tiles, ...] = _NARROW if is_up else _LISTED_DOWN
    if tile_rows == 1:
        known = _LONE_UP if is_up else _LONE_DOWN
    elif tile_rows > _EIGHT:
        known = _WIDE
    fitting = _fitting(known, depth, x_rows, card_bytes, is_listed=tile_rows > 1)
    if not fitting:
        raise ValueError(f"{x_rows} rows of {depth} columns in {card_bytes} bytes")
    return fitting[0]


def _fitting(
    known: tuple[Mxfp4Tiles, ...],
    depth: int,
    x_rows: int,
    card_bytes: int,
    *,
    is_listed: bool = True,
) -> list[Mxfp4Tiles]:
    return [tiles for tiles in known if fits(tiles, depth, x_rows, card_bytes, is_listed=is_listed)]


def fits(
    tiles: Mxfp4Tiles, depth: int, x_rows: int, card_bytes: int, *, is_listed: bool = True
) -> bool:
    """Whether a multiprocessor with `card_bytes` for a program holds as many as `tiles` says."""
    used = used_bytes(tiles, depth, x_rows, is_listed=is_listed) + _SYSTEM_BYTES
    return tiles.blocks * used <= card_bytes + _SYSTEM_BYTES


def used_bytes(tiles: Mxfp4Tiles, depth: int, x_rows: int, *, is_listed: bool = True) -> int:
    """What a program takes of shared memory: weights on their way, the pairs of a tile, the warps'
    sums, and `x_rows` rows of x.
    """
    steps = -(-depth // (_STEP_COLUMNS * tiles.warps))
    units = tiles.stages * steps * tiles.fragments * 2 * _WARP * tiles.warps * _CHUNK_BYTES
    columns = tiles.rows if is_listed else 1
    sums = tiles.warps * columns * (16 * tiles.fragments + 4) * 4
    return units + _PAIRS_BYTES + sums + x_rows * steps * tiles.warps * _STEP_COLUMNS * 2


def gate_up(
    x: Tensor,
    stack: Mxfp4Weight,
    bias: Tensor | None,
    routed: Routed,
    listed: PairList | None,
    width: int,
    activation: Activation,
    tiles: Mxfp4Tiles | None = None,
) -> Tensor:
    """Gates times ups of each pair, bfloat16 [T K, width], of x bfloat16 [T, hidden]. With `listed`
    by the tiles of a list, of 8 or 16 rows; else each pair alone. Ask `suits` first. Raises
    `CompileError` and `DriverError`.
    """
    num_rows, active = routed.experts.shape
    out = x.new_empty(num_rows * active, width)
    product = Product(True, listed is not None, x.shape[1], width, active, bias is not None)
    x_rows = 1 if listed is None else min(num_rows, listed.rows)
    _launch(product, x, x_rows, stack, bias, routed, listed, x, out, activation, tiles)
    return out


def down(
    gated: Tensor,
    stack: Mxfp4Weight,
    bias: Tensor | None,
    routed: Routed,
    listed: PairList | None,
    residual: Tensor,
    tiles: Mxfp4Tiles | None = None,
) -> Tensor:
    """`residual` plus the weighed sums of pairs, bfloat16 [T, hidden]; see `gate_up`.

    It may read experts and the list before the kernel ahead has ended: that must be `gate_up`, or
    one that begins when all ahead of it has ended. Launches on one device must be ordered.
    """
    (num_rows, hidden), active = residual.shape, routed.experts.shape[1]
    product = Product(False, listed is not None, gated.shape[1], hidden, active, bias is not None)
    x_rows = active if listed is None else min(num_rows, listed.rows)
    out = torch.empty_like(residual)
    into = out if listed is None else scratch(gated.device, gated.shape[0] * hidden)
    _launch(product, gated, x_rows, stack, bias, routed, listed, residual, into, None, tiles)
    if listed is not None and num_rows:
        add_pairs(into, routed.weights, residual, out)
    return out


def add_pairs(products: Tensor, weights: Tensor, residual: Tensor, out: Tensor) -> None:
    """`out` becomes `residual` [T, hidden] plus the products float32 [T K, hidden] of each row's
    pairs times their weights float32 [T, K], in the order of pairs.
    """
    (num_rows, hidden), active = residual.shape, weights.shape[1]
    launch = _sum_launch(out.device, hidden, active)
    grid = num_rows, triton.cdiv(hidden, _SUMMED), 1
    launch(grid, (products, weights, residual, out))


def _launch(
    product: Product,
    x: Tensor,
    x_rows: int,
    stack: Mxfp4Weight,
    bias: Tensor | None,
    routed: Routed,
    listed: PairList | None,
    residual: Tensor,
    out: Tensor,
    activation: Activation | None,
    tiles: Mxfp4Tiles | None,
) -> None:
    num_pairs, tile_rows = routed.experts.numel(), 1 if listed is None else listed.rows
    if tiles is None:
        room = shared_bytes(x.device)
        tiles = chosen(product.depth, tile_rows, x_rows, room, is_up=product.is_up)
    major, minor = capability(x.device)
    constants = constants_of(product, tiles, 10 * major + minor)
    if x.is_meta:
        mxfp4_experts.record(constants)
        return
    if not num_pairs:
        return
    from kernels.cuda.driver import launch

    if x.data_ptr() % ALIGNED:
        x = x.clone()
    experts, pairs, count = routed.experts, routed.experts, routed.experts
    num_tiles = num_pairs if product.is_up else num_pairs // product.active
    if listed is not None:
        pairs, experts, count, _ = listed
        num_tiles = most_tiles(num_pairs, stack.shape[0] // product.expert_rows, tile_rows)
    function = _loaded(tuple(constants.items()), x.get_device())
    used = used_bytes(tiles, product.depth, x_rows, is_listed=product.is_listed)
    launch(
        function._replace(shared_bytes=used),
        min(num_tiles * (product.out // features_of(product, tiles)), _programs(tiles, x.device)),
        torch.cuda.current_stream(x.device).cuda_stream,
        (),
        (
            x, experts, pairs, count, routed.weights, stack.pairs, stack.powers,
            x if bias is None else bias, residual, out,
        ),
        (num_pairs, *[bits_of(number) for number in activation or (0.0,) * 4]),
        is_early=has_pdl(x.device),
    )  # fmt: skip


def features_of(product: Product, tiles: Mxfp4Tiles) -> int:
    """Gates or outputs of a unit."""
    return (_EIGHT if product.is_up else 2 * _EIGHT) * tiles.fragments


def constants_of(product: Product, tiles: Mxfp4Tiles, arch: int) -> Mapping[str, int]:
    """The kernel's macros. Raises `ValueError` for sizes that are no whole groups."""
    if product.depth % GROUP or product.out % GROUP:
        raise ValueError(f"{product.depth} columns and {product.out} outputs in groups of {GROUP}")
    return {
        "UP": int(product.is_up), "LISTED": int(product.is_listed), "DEPTH": product.depth,
        "OUT": product.out, "ACTIVE": product.active, "BIAS": int(product.has_bias),
        "WARPS": tiles.warps, "MT": tiles.fragments, "EIGHTS": tiles.eights,
        "STAGES": tiles.stages, "BLOCKS": tiles.blocks, "HALF": 0, ARCH: arch,
    }  # fmt: skip


def bits_of(number: float) -> int:
    """The bits of `number` as a float32, read as an integer."""
    bits: int = struct.unpack("i", struct.pack("f", number))[0]
    return bits


@cache
def _programs(tiles: Mxfp4Tiles, device: torch.device) -> int:
    return tiles.blocks * torch.cuda.get_device_properties(device).multi_processor_count


@cache
def _loaded(constants: tuple[tuple[str, int], ...], device: int) -> Function:
    from kernels.cuda.driver import load

    macros = dict(constants)
    most = shared_bytes(torch.device("cuda", device))
    cubin = mxfp4_experts.cubin(macros)
    return load(cubin, mxfp4_experts.name, _WARP * macros["WARPS"], most, device)


@triton.jit
def _sum_kernel(
    products_ptr,  # float32 [pairs, HIDDEN]
    weights_ptr,  # float32 [pairs], the weight of each
    residual_ptr,  # [rows, HIDDEN]
    out_ptr,  # out: [rows, HIDDEN]
    HIDDEN: tl.constexpr,  # outputs of an expert
    ACTIVE: tl.constexpr,  # pairs of a row
    OUTPUTS: tl.constexpr,  # outputs of a program
    PDL: tl.constexpr,
):
    """Program (row, tile of outputs)."""
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
        total += part * tl.load(weights_ptr + pair)
    total += tl.load(residual_ptr + row * HIDDEN + outputs, inside, 0.0).to(tl.float32)
    tl.store(out_ptr + row * HIDDEN + outputs, total.to(out_ptr.dtype.element_ty), inside)


@cache
def _sum_launch(device: torch.device, hidden: int, active: int) -> Launch:
    constants = {"HIDDEN": hidden, "ACTIVE": active, "OUTPUTS": _SUMMED, "PDL": has_pdl(device)}
    return Launch(_sum_kernel, constants, num_warps=4)
