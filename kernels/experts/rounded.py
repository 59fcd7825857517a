"""Experts in 8 bits of some rows, which are rounded to 8 bits too, in CUDA C++ for Hopper:
`rounded.cu`.

Owns the kernel's constants, its generated instructions, and how a product is cut up. Must not know
when it serves (`kernels.experts.choose`). Each program rounds the rows that it needs, as
`kernels.fp8.quantize_rows` does.

For the copy engine two 8-bit floats are one number of 16 bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Tensor

from kernels.choose import multiprocessors
from kernels.cuda import hopper
from kernels.cuda.hopper import ALIGNED, E4M3, SHARED_BYTES
from kernels.cuda.source import CudaSource
from kernels.experts.counted import HELD_TILES, CountedProduct, CountingKernel, CountingProgram
from kernels.experts.headers import headers
from kernels.experts.many import most_tiles
from kernels.experts.tiles import stored
from kernels.fp8 import BLOCK, Fp8Weight

if TYPE_CHECKING:
    from kernels.fp8 import Weight

_WARP: Final = 32
_WARPS: Final = 5
"""The warps of a group: four that multiply, one that fetches."""
_EIGHT: Final = 8
_STEP: Final = 128
_SLOT: Final = 64 * _STEP
_SIZES: Final = (8, *range(16, 129, 16))
"""Pairs in one product, beside those of a full tile."""
MOST_PAIRS: Final = 16384
_BANDS: Final = 4
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


def _instructions(constants: Mapping[str, int]) -> dict[str, str]:
    """Products of 64 rows of weights by as many rows of x as a tile has, and by fewer."""
    most = constants["ROWS"]
    sizes = *(size for size in _SIZES if size < most), most
    text = "".join([hopper.tile_products(size, kind=E4M3) for size in sizes])
    return {**headers("hopper.h"), "multiply.h": text}


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
    (hidden, width), form = (x.shape[1], down.shape[1]), stored(gate_up).form
    most = multiprocessors(x.device)
    return all(
        is_whole(product) and runs(product, tiles_of(product), num_pairs, most)
        for product in (
            CountedProduct(True, form, num_experts, hidden, width, 1, False),
            CountedProduct(False, form, num_experts, width, hidden, 1, False),
        )
    )


def is_served(num_pairs: int, num_experts: int) -> bool:
    """Whether it does better than others with so many pairs."""
    return num_experts <= _LEAST_SHARE * num_pairs <= _LEAST_SHARE * _MOST_PAIRS * num_experts


def tiles_of(product: CountedProduct) -> RoundedTiles:
    """How a product is cut up."""
    return _UP if product.is_up else _DOWN


def used_bytes(product: CountedProduct, tiles: RoundedTiles) -> int:
    """What a program takes of shared memory: x, weights on their way and their barriers, and what
    it knows of pairs.
    """
    steps = product.depth // _STEP
    ring = tiles.groups * tiles.stages * (_SLOT + 16)
    numbers = tiles.room + HELD_TILES * (2 + tiles.rows + _WARPS * tiles.groups)
    return steps * tiles.room * _STEP + ring + 4 * (numbers + product.counted + 1)


def most_pairs(product: CountedProduct, tiles: RoundedTiles) -> int:
    """Pairs whose experts fit into the place of x."""
    return min(MOST_PAIRS, product.depth * tiles.room // 2)


def fits(product: CountedProduct, tiles: RoundedTiles) -> bool:
    """Whether a multiprocessor holds such a program."""
    return used_bytes(product, tiles) <= SHARED_BYTES


def runs(product: CountedProduct, tiles: RoundedTiles, num_pairs: int, most: int) -> bool:
    """Whether at most so many programs have place for so many pairs, and for their tiles."""
    if not fits(product, tiles) or num_pairs > most_pairs(product, tiles):
        return False
    known = most_tiles(num_pairs, product.num_experts, tiles.rows)
    return -(-known // most) < HELD_TILES


def is_whole(product: CountedProduct) -> bool:
    """Whether its columns are whole steps, and its outputs whole units and blocks."""
    return product.depth % _STEP == 0 and product.out % BLOCK == 0


def num_programs(product: CountedProduct, tiles: RoundedTiles, num_pairs: int, most: int) -> int:
    """The number of programs of a launch: at most `most`, and at most the possible number of units.
    Raises `ValueError` if that many cannot run the launch.
    """
    if not runs(product, tiles, num_pairs, most):
        raise ValueError(
            f"{num_pairs} pairs of {product.num_experts} experts, {product.out} outputs"
        )
    known = most_tiles(num_pairs, product.num_experts, tiles.rows)
    return min(known * product.out // features_of(product), most)


class _RoundedKernel(CountingKernel[RoundedTiles]):
    """Rows of x, and what is between both products, are rounded to 8 bits, one scale each."""

    source = rounded_experts

    def tiles(self, product: CountedProduct) -> RoundedTiles:
        return tiles_of(product)

    def program(
        self, product: CountedProduct, tiles: RoundedTiles, device: torch.device
    ) -> CountingProgram:
        del device
        threads, used = _WARP * _WARPS * tiles.groups, used_bytes(product, tiles)
        return CountingProgram(constants_of(product, tiles), threads, SHARED_BYTES, used)

    def num_programs(
        self, product: CountedProduct, tiles: RoundedTiles, num_pairs: int, device: torch.device
    ) -> int:
        return num_programs(product, tiles, num_pairs, multiprocessors(device))

    def weights(
        self, product: CountedProduct, stack: Weight
    ) -> tuple[Sequence[Any], Sequence[Tensor]]:
        from kernels.cuda.driver import box_map

        assert isinstance(stack, Fp8Weight)
        box = box_map(stack.values.data_ptr(), *box_of(product), cached_bytes=256)
        return (box,), (stack.scales,)

    def room(self, residual: Tensor, num_pairs: int) -> Tensor:
        return residual.new_empty(num_pairs, residual.shape[1])


_kernel: Final = _RoundedKernel()
gate_up, down = _kernel.gate_up, _kernel.down


def box_of(product: CountedProduct) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Sizes, strides and a box of the stack as the kernel reads it: columns, eight rows, eight
    other rows that belong to these, and bands of such 16. The other rows are the ups of gates, or
    the outputs between.
    """
    rows = product.num_experts * product.expert_rows
    steps = (1, product.out, _EIGHT) if product.is_up else (2, 1, 2 * _EIGHT)
    num_bands = (rows - product.out) // _EIGHT if product.is_up else rows // (2 * _EIGHT)
    sizes = product.depth // 2, _EIGHT, 2, num_bands
    return sizes, (2, *(product.depth * step for step in steps)), (_EIGHT, 2, _BANDS)


def features_of(product: CountedProduct) -> int:
    """Gates or outputs of a unit."""
    return 32 if product.is_up else 64


def constants_of(product: CountedProduct, tiles: RoundedTiles) -> Mapping[str, int]:
    """The kernel's macros. Raises `ValueError` for sizes that are no whole steps."""
    if not is_whole(product):
        raise ValueError(f"{product.depth} columns and {product.out} outputs")
    return {
        **product.macros(), "BLOCKED": int(product.form == "blocks"), "ROWS": tiles.rows,
        "PAIRS": most_pairs(product, tiles), "ROOM": tiles.room, "GROUPS": tiles.groups,
        "STAGES": tiles.stages,
    }  # fmt: skip
