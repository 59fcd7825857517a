"""Experts in 8 bits of some rows, which are rounded to 8 bits too, in CUDA C++ for Hopper:
`rounded.cu`.

Owns the kernel's constants, its generated instructions, how a product is cut up, and the launches.
Must not know when it serves (`kernels.experts.choose`). No list is built ahead: each program counts
the pairs itself, and rounds the rows that it needs, as `kernels.fp8.quantize_rows` does.

For the copy engine two 8-bit floats are one number of 16 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import torch
from torch import Tensor

from kernels.choose import has_pdl
from kernels.cuda import hopper
from kernels.cuda.hopper import ALIGNED, E4M3, SHARED_BYTES, wgmma
from kernels.cuda.source import CudaSource, bits_of
from kernels.experts.headers import headers
from kernels.experts.many import most_tiles
from kernels.experts.pair_sums import add_pairs
from kernels.experts.tiles import stored
from kernels.fp8 import BLOCK, Fp8Weight

if TYPE_CHECKING:
    from kernels.experts.shapes import Activation, Routed
    from kernels.fp8 import Weight

_WARP: Final = 32
_WARPS: Final = 5
"""The warps of a group: four that multiply, one that fetches."""
_EIGHT: Final = 8
_STEP: Final = 128
_SLOT: Final = 64 * _STEP
_COUNTED: Final = 256
"""Experts whose pairs are counted, or a multiple of it."""
_HELD_TILES: Final = 8
"""Tiles that a program has units of, at most."""
_SIZES: Final = (8, *range(16, 129, 16))
"""Pairs in one product, beside those of a full tile."""
MOST_PAIRS: Final = 16384
_BANDS: Final = 4
_USUAL_PROGRAMS: Final = 132
"""Multiprocessors of a pretended device: those of an H200."""
_LEAST_SHARE: Final = 2
_MOST_PAIRS: Final = 52
"""The most pairs of an expert, on average, for which this kernel serves; it serves from half as
many pairs as experts on. On an H200 a layer of a 30B by blocks, behind its router, took 72.5 us at
8 rows, 154.6 at 64 and 162.6 at 128, by warps that widen weights 76.1, 165.6 and 181.5; without the
router 200 at 768 rows and 294 at 1,024, by Triton 226 and 281."""


class RoundedTiles(NamedTuple):
    """How a product is cut up: each of `groups` warp groups multiplies 64 weight rows at once with
    `rows` pairs of one expert at most, and has `stages` steps of them on their way; a program has
    `room` rows of x.
    """

    groups: int
    stages: int
    rows: int
    room: int


_UP: Final = RoundedTiles(groups=2, stages=5, rows=64, room=64)
_DOWN: Final = RoundedTiles(groups=3, stages=5, rows=64, room=96)
"""The best on an H200 of eleven and ten, or nearly, from 8 to 768 rows of a 30B and to 1,536 of a
35B: gates and ups of 64 rows of the 30B took 98.6 us (the memory's floor is 92), what is down with
its sums 53.3 (46)."""


class RoundedProduct(NamedTuple):
    """What a compilation depends on, but for tiles."""

    is_up: bool
    is_blocked: bool
    num_experts: int
    depth: int
    out: int
    active: int
    has_bias: bool

    @property
    def expert_rows(self) -> int:
        """Rows of the stack that belong to one expert."""
        return 2 * self.out if self.is_up else self.out


def _instructions(constants: Mapping[str, int]) -> dict[str, str]:
    """`multiply(sums, weights, x)`: adds 64 rows of weights by N rows of x, 128 bits of columns
    deep; `multiply_first`: sums that were there do not count; `end_products(sums)`: all are there.
    """
    text = []
    most = constants["ROWS"]
    for n in (*(size for size in _SIZES if size < most), most):
        sums = f"float (&sums)[{n // 2}]"
        for name, tail in (("multiply_first", "0, 1, 1"), ("multiply", "1, 1, 1")):
            call = wgmma(n, 0, ["weights"], "x", tail=tail, kind=E4M3)
            signature = f"{name}({sums}, u64 weights, u64 x)"
            text.append(f"__device__ __forceinline__ void {signature} {{{call}\n}}\n")
        outputs = ", ".join([f'"+f"(sums[{number}])' for number in range(n // 2)])
        ends = "wgmma.commit_group.sync.aligned;\\nwgmma.wait_group.sync.aligned 0;"
        text.append(
            f"__device__ __forceinline__ void end_products({sums}) {{\n"
            f'  asm volatile("{ends}" : {outputs} :: "memory");\n}}\n'
        )
    return {**headers("hopper.h"), "multiply.h": "".join(text)}


rounded_experts: Final = CudaSource(
    __name__, "rounded_experts", Path(__file__).with_name("rounded.cu"), _instructions
)


def suits(x: Tensor, gate_up: Weight, down: Weight, num_experts: int, num_pairs: int) -> bool:
    """Whether this card runs both products of so many pairs, and they do well."""
    if x.dtype != torch.bfloat16 or not hopper.runs_on(x.device):
        return False
    if not isinstance(gate_up, Fp8Weight) or not isinstance(down, Fp8Weight):
        return False
    if gate_up.is_blocked != down.is_blocked or not is_served(num_pairs, num_experts):
        return False
    if not x.is_meta and any(each.values.data_ptr() % ALIGNED for each in (gate_up, down)):
        return False
    hidden, width = x.shape[1], down.shape[1]
    most = _USUAL_PROGRAMS if x.is_meta else _most_programs(x.device)
    return all(
        is_whole(product) and runs(product, tiles_of(product), num_pairs, most)
        for product in (
            RoundedProduct(True, gate_up.is_blocked, num_experts, hidden, width, 1, False),
            RoundedProduct(False, gate_up.is_blocked, num_experts, width, hidden, 1, False),
        )
    )


def is_served(num_pairs: int, num_experts: int) -> bool:
    """Whether it does better than others with so many pairs."""
    return num_experts <= _LEAST_SHARE * num_pairs <= _LEAST_SHARE * _MOST_PAIRS * num_experts


def tiles_of(product: RoundedProduct) -> RoundedTiles:
    """How a product is cut up."""
    return _UP if product.is_up else _DOWN


def used_bytes(product: RoundedProduct, tiles: RoundedTiles) -> int:
    """What a program takes of shared memory: x, weights on their way and their barriers, and what
    it knows of pairs.
    """
    steps = product.depth // _STEP
    ring = tiles.groups * tiles.stages * (_SLOT + 16)
    numbers = tiles.room + _HELD_TILES * (2 + tiles.rows + _WARPS * tiles.groups)
    return steps * tiles.room * _STEP + ring + 4 * (numbers + _counted(product) + 1)


def most_pairs(product: RoundedProduct, tiles: RoundedTiles) -> int:
    """Pairs whose experts fit into the place of x."""
    return min(MOST_PAIRS, product.depth * tiles.room // 2)


def fits(product: RoundedProduct, tiles: RoundedTiles) -> bool:
    """Whether a multiprocessor holds such a program."""
    return used_bytes(product, tiles) <= SHARED_BYTES


def runs(product: RoundedProduct, tiles: RoundedTiles, num_pairs: int, most: int) -> bool:
    """Whether at most so many programs have place for so many pairs, and for their tiles."""
    if not fits(product, tiles) or num_pairs > most_pairs(product, tiles):
        return False
    known = most_tiles(num_pairs, product.num_experts, tiles.rows)
    return -(-known // most) < _HELD_TILES


def is_whole(product: RoundedProduct) -> bool:
    """Whether its columns are whole steps, and its outputs whole units and blocks."""
    return product.depth % _STEP == 0 and product.out % BLOCK == 0


def num_programs(product: RoundedProduct, tiles: RoundedTiles, num_pairs: int, most: int) -> int:
    """The number of programs of a launch: at most `most`, and at most the possible number of units.
    Raises `ValueError` if that many cannot run the launch.
    """
    if not runs(product, tiles, num_pairs, most):
        raise ValueError(
            f"{num_pairs} pairs of {product.num_experts} experts, {product.out} outputs"
        )
    known = most_tiles(num_pairs, product.num_experts, tiles.rows)
    return min(known * product.out // features_of(product), most)


def gate_up(
    x: Tensor,
    stack: Weight,
    bias: Tensor | None,
    routed: Routed,
    width: int,
    activation: Activation,
    tiles: RoundedTiles | None = None,
) -> Tensor:
    """Gates times ups of each pair, bfloat16 [T K, width], of x bfloat16 [T, hidden], whose rows
    are rounded to 8 bits. Raises `CompileError`, `DriverError` and `ValueError`.
    """
    num_pairs, active = routed.experts.numel(), routed.experts.shape[1]
    out, count = x.new_empty(num_pairs, width), stack.shape[0] // (2 * width)
    is_blocked = stored(stack).form == "blocks"
    product = RoundedProduct(True, is_blocked, count, x.shape[1], width, active, bias is not None)
    _launch(product, x, stack, bias, routed, out, activation, tiles)
    return out


def down(
    gated: Tensor,
    stack: Weight,
    bias: Tensor | None,
    routed: Routed,
    residual: Tensor,
    tiles: RoundedTiles | None = None,
) -> Tensor:
    """`residual` plus the weighed sums of pairs, bfloat16 [T, hidden]; see `gate_up`.

    It may read the experts before the kernel ahead has ended: that must be `gate_up`, or one that
    begins when all ahead of it has ended.
    """
    hidden, active = residual.shape[1], routed.experts.shape[1]
    is_blocked, count = stored(stack).form == "blocks", stack.shape[0] // hidden
    sizes = gated.shape[1], hidden, active, bias is not None
    product = RoundedProduct(False, is_blocked, count, *sizes)
    out = torch.empty_like(residual)
    products = residual.new_empty(gated.shape[0], hidden)
    _launch(product, gated, stack, bias, routed, products, None, tiles)
    add_pairs(products, routed.weights, residual, out)
    return out


def _launch(
    product: RoundedProduct,
    x: Tensor,
    stack: Weight,
    bias: Tensor | None,
    routed: Routed,
    out: Tensor,
    activation: Activation | None,
    tiles: RoundedTiles | None,
) -> None:
    num_pairs = routed.experts.numel()
    tiles = tiles or tiles_of(product)
    constants = constants_of(product, tiles)
    if x.is_meta:
        rounded_experts.record(constants)
        return
    if not num_pairs:
        return
    from kernels.cuda.driver import box_map, launch, loaded

    assert isinstance(stack, Fp8Weight)
    if x.data_ptr() % ALIGNED:
        x = x.clone()
    threads = _WARP * _WARPS * tiles.groups
    function = loaded(rounded_experts, constants, threads, SHARED_BYTES, x.device)
    launch(
        function._replace(shared_bytes=used_bytes(product, tiles)),
        num_programs(product, tiles, num_pairs, _most_programs(x.device)),
        torch.cuda.current_stream(x.device).cuda_stream,
        (box_map(stack.values.data_ptr(), *box_of(product), cached_bytes=256),),
        (x, routed.experts, stack.scales, x if bias is None else bias, out),
        (num_pairs, *[bits_of(number) for number in activation or (0.0,) * 4]),
        is_early=has_pdl(x.device),
    )


def box_of(product: RoundedProduct) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Sizes, strides and a box of the stack as the kernel reads it: columns, eight rows, eight
    other rows that belong to these, and bands of such 16. The other rows are the ups of gates, or
    the outputs between.
    """
    rows = product.num_experts * product.expert_rows
    steps = (1, product.out, _EIGHT) if product.is_up else (2, 1, 2 * _EIGHT)
    num_bands = (rows - product.out) // _EIGHT if product.is_up else rows // (2 * _EIGHT)
    sizes = product.depth // 2, _EIGHT, 2, num_bands
    return sizes, (2, *(product.depth * step for step in steps)), (_EIGHT, 2, _BANDS)


def features_of(product: RoundedProduct) -> int:
    """Gates or outputs of a unit."""
    return 32 if product.is_up else 64


def _counted(product: RoundedProduct) -> int:
    """Experts that there may be, one number for most models: the kernel is the same."""
    return -(-product.num_experts // _COUNTED) * _COUNTED


def constants_of(product: RoundedProduct, tiles: RoundedTiles) -> Mapping[str, int]:
    """The kernel's macros. Raises `ValueError` for sizes that are no whole steps."""
    if not is_whole(product):
        raise ValueError(f"{product.depth} columns and {product.out} outputs")
    return {
        "UP": int(product.is_up), "BLOCKED": int(product.is_blocked), "COUNTED": _counted(product),
        "DEPTH": product.depth, "OUT": product.out, "ACTIVE": product.active,
        "BIAS": int(product.has_bias), "PAIRS": most_pairs(product, tiles), "ROWS": tiles.rows,
        "ROOM": tiles.room, "GROUPS": tiles.groups, "STAGES": tiles.stages,
    }  # fmt: skip


@cache
def _most_programs(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
