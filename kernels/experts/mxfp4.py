"""Experts of few rows in MXFP4 by the tensor cores, in CUDA C++ from Ampere on: `mxfp4.cu`.

Owns the kernel's constants, how a product is cut up on a card, and the launches. Must not know when
it serves (`kernels.experts.choose`).

A weight costs 2.1 instructions of a thread, loads included, where products on the ordinary lanes
cost six: at one instruction per clock an H200 needs 5 us for gates and ups of one row of
gpt-oss-20b, which are read in 8.3. Its programs have 70 KB and more of weights on their way on each
multiprocessor.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import torch
from torch import Tensor

from kernels.choose import capability, has_pdl, is_card, multiprocessors, shared_bytes
from kernels.cuda import hopper
from kernels.cuda.hopper import ALIGNED
from kernels.cuda.source import ARCH, CudaSource, bits_of
from kernels.experts.headers import headers
from kernels.mxfp4 import GROUP, check_placed

if TYPE_CHECKING:
    from kernels.experts.shapes import Activation, Routed
    from kernels.mxfp4 import Mxfp4Weight

_CAPABILITY: Final = (8, 0)

_WARP: Final = 32
_CHUNK_BYTES: Final = 16
_EIGHT: Final = 8
_STEP_COLUMNS: Final = 128
"""What a warp takes of a weight row at once: 16 bytes in each of four lanes."""
_SYSTEM_BYTES: Final = 1024
"""What the driver takes of each program's shared memory."""


class Mxfp4Tiles(NamedTuple):
    """How a product is cut up: `warps` of a program share the columns, it multiplies `fragments` of
    16 weight rows at once, `stages` of such units are on their way, and a multiprocessor holds
    `blocks` programs.
    """

    warps: int
    fragments: int
    stages: int
    blocks: int


_SMALL: Final = (
    Mxfp4Tiles(warps=12, fragments=1, stages=3, blocks=1),
    Mxfp4Tiles(warps=12, fragments=1, stages=2, blocks=1),
    Mxfp4Tiles(warps=12, fragments=1, stages=1, blocks=1),
)
_UP: Final = (
    Mxfp4Tiles(warps=12, fragments=1, stages=3, blocks=2),
    Mxfp4Tiles(warps=12, fragments=1, stages=2, blocks=2),
    *_SMALL,
)
_DOWN: Final = (
    Mxfp4Tiles(warps=8, fragments=1, stages=3, blocks=2),
    Mxfp4Tiles(warps=12, fragments=1, stages=2, blocks=2),
    *_SMALL,
)
"""The tiles in the order in which they are tried: the first whose programs fit into a
multiprocessor are taken. With 12 warps 2880 columns are two steps of each, of which 6 % are empty.
In a chain of a layer's launches, one row of gpt-oss-20b, the first of both take 2.2 and 6.8 us less
than two fragments in one stage (H200): more and smaller units are even shares, and what is down,
whose units have four experts' weights one after the other, has three on their way."""


class Product(NamedTuple):
    """What a compilation depends on, but for tiles and the card."""

    is_up: bool
    depth: int
    out: int
    active: int
    has_bias: bool


mxfp4_experts: Final = CudaSource(
    __name__,
    "mxfp4_experts",
    Path(__file__).with_name("mxfp4.cu"),
    lambda _: headers("ampere.h"),
)


@cache
def runs_on(device: torch.device) -> bool:
    """Whether the kernel can be compiled for a device."""
    return is_card(device) and capability(device) >= _CAPABILITY and hopper.has_compiler()


def suits(x: Tensor, gate_up: Mxfp4Weight, down: Mxfp4Weight) -> bool:
    """Whether this card runs both products of such rows."""
    if x.dtype != torch.bfloat16 or not runs_on(x.device):
        return False
    depth = max(gate_up.shape[1], down.shape[1])
    aligned = x.is_meta or not any(
        part.data_ptr() % ALIGNED for part in (gate_up.pairs, down.pairs)
    )
    return aligned and bool(_fitting(_SMALL, depth, _EIGHT, shared_bytes(x.device)))


@cache
def chosen(depth: int, x_rows: int, card_bytes: int, *, is_up: bool = True) -> Mxfp4Tiles:
    """The tiles of a product of `depth` columns, of which a program has `x_rows` rows in shared
    memory. Raises `ValueError` if none fit.
    """
    fitting = _fitting(_UP if is_up else _DOWN, depth, x_rows, card_bytes)
    if not fitting:
        raise ValueError(f"{x_rows} rows of {depth} columns in {card_bytes} bytes")
    return fitting[0]


def _fitting(
    known: tuple[Mxfp4Tiles, ...], depth: int, x_rows: int, card_bytes: int
) -> list[Mxfp4Tiles]:
    return [tiles for tiles in known if fits(tiles, depth, x_rows, card_bytes)]


def fits(tiles: Mxfp4Tiles, depth: int, x_rows: int, card_bytes: int) -> bool:
    """Whether a multiprocessor with `card_bytes` for a program holds as many as `tiles` says."""
    used = used_bytes(tiles, depth, x_rows) + _SYSTEM_BYTES
    return tiles.blocks * used <= card_bytes + _SYSTEM_BYTES


def used_bytes(tiles: Mxfp4Tiles, depth: int, x_rows: int) -> int:
    """What a program takes of shared memory: weights on their way, the warps' sums, and `x_rows`
    rows of x.
    """
    steps = -(-depth // (_STEP_COLUMNS * tiles.warps))
    units = tiles.stages * steps * tiles.fragments * 2 * _WARP * tiles.warps * _CHUNK_BYTES
    sums = tiles.warps * (16 * tiles.fragments + 4) * 4
    return units + sums + x_rows * steps * tiles.warps * _STEP_COLUMNS * 2


def gate_up(
    x: Tensor,
    stack: Mxfp4Weight,
    bias: Tensor | None,
    routed: Routed,
    width: int,
    activation: Activation,
    tiles: Mxfp4Tiles | None = None,
) -> Tensor:
    """Gates times ups of each pair, bfloat16 [T K, width], of x bfloat16 [T, hidden]. Ask `suits`
    first. Raises `CompileError` and `DriverError`.
    """
    num_rows, active = routed.experts.shape
    out = x.new_empty(num_rows * active, width)
    product = Product(True, x.shape[1], width, active, bias is not None)
    _launch(product, x, 1, stack, bias, routed, x, out, activation, tiles)
    return out


def down(
    gated: Tensor,
    stack: Mxfp4Weight,
    bias: Tensor | None,
    routed: Routed,
    residual: Tensor,
    tiles: Mxfp4Tiles | None = None,
) -> Tensor:
    """`residual` plus the weighed sums of pairs, bfloat16 [T, hidden]; see `gate_up`.

    It may read experts before the kernel ahead has ended: that must be `gate_up`, or one that
    begins when all ahead of it has ended.
    """
    active = routed.experts.shape[1]
    product = Product(False, gated.shape[1], residual.shape[1], active, bias is not None)
    out = torch.empty_like(residual)
    _launch(product, gated, active, stack, bias, routed, residual, out, None, tiles)
    return out


def _launch(
    product: Product,
    x: Tensor,
    x_rows: int,
    stack: Mxfp4Weight,
    bias: Tensor | None,
    routed: Routed,
    residual: Tensor,
    out: Tensor,
    activation: Activation | None,
    tiles: Mxfp4Tiles | None,
) -> None:
    num_pairs = routed.experts.numel()
    if tiles is None:
        room = shared_bytes(x.device)
        tiles = chosen(product.depth, x_rows, room, is_up=product.is_up)
    major, minor = capability(x.device)
    constants = constants_of(product, tiles, 10 * major + minor)
    if x.is_meta:
        mxfp4_experts.record(constants)
        return
    check_placed(stack)
    if not num_pairs:
        return
    from kernels.cuda.driver import launch, loaded

    if x.data_ptr() % ALIGNED:
        x = x.clone()
    num_tiles = num_pairs if product.is_up else num_pairs // product.active
    threads, most = _WARP * tiles.warps, shared_bytes(x.device)
    function = loaded(mxfp4_experts, constants, threads, most, x.device)
    used = used_bytes(tiles, product.depth, x_rows)
    launch(
        function._replace(shared_bytes=used),
        min(num_tiles * (product.out // features_of(product, tiles)), _programs(tiles, x.device)),
        torch.cuda.current_stream(x.device).cuda_stream,
        (),
        (
            x, routed.experts, routed.weights, stack.pairs, stack.powers,
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
        "UP": int(product.is_up), "DEPTH": product.depth, "OUT": product.out,
        "ACTIVE": product.active, "BIAS": int(product.has_bias), "WARPS": tiles.warps,
        "MT": tiles.fragments, "STAGES": tiles.stages, "BLOCKS": tiles.blocks, "HALF": 0,
        ARCH: arch,
    }  # fmt: skip


@cache
def _programs(tiles: Mxfp4Tiles, device: torch.device) -> int:
    return tiles.blocks * multiprocessors(device)
