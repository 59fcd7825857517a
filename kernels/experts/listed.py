"""Experts of some rows by the tensor cores, in CUDA C++ from Ampere on: `listed.cu`.

Owns the kernel's constants, and how a product is cut up on a card. Must not know when it serves
(`kernels.experts.choose`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Tensor

from kernels.choose import capability, is_card, multiprocessors, shared_bytes
from kernels.cuda import hopper
from kernels.cuda.hopper import ALIGNED
from kernels.cuda.source import ARCH, CudaSource
from kernels.experts.counted import HELD_TILES, CountedProduct, CountingKernel, CountingProgram
from kernels.experts.headers import headers
from kernels.experts.many import most_tiles
from kernels.experts.tiles import stored
from kernels.launch import scratch
from kernels.mxfp4 import GROUP, Mxfp4Weight, check_placed

if TYPE_CHECKING:
    from kernels.fp8 import Weight

_CAPABILITY: Final = (8, 0)
_FORMS: Final = {"rows": 1, "blocks": 2, "mxfp4": 3}
"""The forms of stacks that are faster by this kernel. In 16 bits Triton's products read as fast
(30B, 8 rows: 76.7 us and by this kernel 78.6; H200)."""
_COLUMN_BYTES: Final = {"rows": 1.0, "blocks": 1.0, "mxfp4": 0.5}
_WARP: Final = 32
_EIGHT: Final = 8
_STEP: Final = 128
"""Bytes of a weight row that a warp takes at once, of 16 rows."""
_SLOT: Final = 16 * _STEP
_CHUNK_BYTES: Final = 16
MOST_PAIRS: Final = 1024
_MOST_OF_EXPERT: Final = 16
"""Pairs of all, and of an expert on average: of more, its weights would be read more than once."""
_SYSTEM_BYTES: Final = 1024
"""What the driver takes of each program's shared memory."""


class ListedTiles(NamedTuple):
    """How a product is cut up: each of `warps` multiplies 16 weight rows at once with 8 `eights`
    pairs of one expert, and has `stages` steps of them on their way; a program has `room` rows of
    x, a multiprocessor `blocks` programs.
    """

    warps: int
    stages: int
    room: int
    blocks: int
    eights: int = 1

    @property
    def rows(self) -> int:
        """Pairs of a tile."""
        return _EIGHT * self.eights


_UP: Final = ListedTiles(warps=8, stages=4, room=8, blocks=2)
_DOWN: Final = ListedTiles(warps=8, stages=4, room=16, blocks=2)
_MXFP4_UP: Final = ListedTiles(warps=24, stages=2, room=16, blocks=1, eights=2)
_MXFP4_DOWN: Final = ListedTiles(warps=20, stages=3, room=16, blocks=1, eights=2)
"""The best on an H200 of ten and eight: gates and ups of 8 rows of a 30B in 8 bits took 44.4 us
(Triton 75.3), what is down 26.8 (36.5), those of gpt-oss-20b at 8 and 64 rows 60.8 and 103.6, and
35.7 and 65.1. MXFP4 always has 16 pairs in a tile: it is bound by the instructions that unpack it,
once for each tile. In 8 bits more pairs of an expert are `kernels.experts.rounded`'s."""


listed_experts: Final = CudaSource(
    __name__,
    "listed_experts",
    Path(__file__).with_name("listed.cu"),
    lambda _: headers("ampere.h"),
)


@cache
def runs_on(device: torch.device) -> bool:
    """Whether the kernel can be compiled for a device."""
    return is_card(device) and capability(device) >= _CAPABILITY and hopper.has_compiler()


def suits(x: Tensor, gate_up: Weight, down: Weight, num_experts: int, num_pairs: int) -> bool:
    """Whether this card runs both products of so many pairs."""
    form = stored(gate_up).form
    if x.dtype != torch.bfloat16 or form not in _FORMS or form != stored(down).form:
        return False
    if not runs_on(x.device) or not num_pairs <= min(MOST_PAIRS, _MOST_OF_EXPERT * num_experts):
        return False
    values = stored(gate_up).values, stored(down).values
    if not x.is_meta and any(part.data_ptr() % ALIGNED for part in values):
        return False
    hidden, width = x.shape[1], down.shape[1]
    return all(
        is_whole(product) and fits(product, tiles_of(product), shared_bytes(x.device))
        for product in (
            CountedProduct(True, form, num_experts, hidden, width, 1, False),
            CountedProduct(False, form, num_experts, width, hidden, 1, False),
        )
    )


def tiles_of(product: CountedProduct) -> ListedTiles:
    """How a product is cut up."""
    if product.form == "mxfp4":
        return _MXFP4_UP if product.is_up else _MXFP4_DOWN
    return _UP if product.is_up else _DOWN


def fits(product: CountedProduct, tiles: ListedTiles, card_bytes: int) -> bool:
    """Whether a multiprocessor with `card_bytes` for a program holds as many as `tiles` says."""
    used = used_bytes(product, tiles) + _SYSTEM_BYTES
    return tiles.blocks * used <= card_bytes + _SYSTEM_BYTES


def used_bytes(product: CountedProduct, tiles: ListedTiles) -> int:
    """What a program takes of shared memory: weights on their way, rows of x, pairs of tiles."""
    column_bytes = _COLUMN_BYTES[product.form]
    steps = -(-int(product.depth * column_bytes) // _STEP)
    columns = steps * int(_STEP / column_bytes)
    numbers = HELD_TILES * (tiles.rows + 2) + 1
    return tiles.warps * tiles.stages * _SLOT + tiles.room * columns * 2 + numbers * 4


def num_programs(product: CountedProduct, tiles: ListedTiles, num_pairs: int, most: int) -> int:
    """How many programs take `num_pairs`, `most` of which run at once. Raises `ValueError` for more
    pairs than programs can hold.
    """
    known = most_tiles(num_pairs, product.num_experts, tiles.rows)
    units = product.out // features_of(product)
    programs = min(known * units, most)
    if -(-known * units // programs) > (HELD_TILES - 1) * units or num_pairs > MOST_PAIRS:
        raise ValueError(
            f"{num_pairs} pairs of {product.num_experts} experts, {product.out} outputs"
        )
    return programs


class _ListedKernel(CountingKernel[ListedTiles]):
    """Rows are multiplied as they are."""

    source = listed_experts

    def tiles(self, product: CountedProduct) -> ListedTiles:
        return tiles_of(product)

    def program(
        self, product: CountedProduct, tiles: ListedTiles, device: torch.device
    ) -> CountingProgram:
        major, minor = capability(device)
        constants, used = (
            constants_of(product, tiles, 10 * major + minor),
            used_bytes(product, tiles),
        )
        return CountingProgram(constants, _WARP * tiles.warps, shared_bytes(device), used)

    def num_programs(
        self, product: CountedProduct, tiles: ListedTiles, num_pairs: int, device: torch.device
    ) -> int:
        return num_programs(product, tiles, num_pairs, tiles.blocks * multiprocessors(device))

    def weights(
        self, product: CountedProduct, stack: Weight
    ) -> tuple[Sequence[Any], Sequence[Tensor]]:
        del product
        if isinstance(stack, Mxfp4Weight):
            check_placed(stack)
        values, scales, *_ = stored(stack)
        return (), (values, scales)

    def room(self, residual: Tensor, num_pairs: int) -> Tensor:
        return scratch(residual.device, num_pairs * residual.shape[1])


_kernel: Final = _ListedKernel()
gate_up, down = _kernel.gate_up, _kernel.down


def is_whole(product: CountedProduct) -> bool:
    """Whether its columns are whole chunks, and its outputs whole units."""
    line = product.depth * _COLUMN_BYTES[product.form]
    is_grouped = product.form != "mxfp4" or product.depth % GROUP == 0
    return line % _CHUNK_BYTES == 0 and product.out % (2 * _EIGHT) == 0 and is_grouped


def features_of(product: CountedProduct) -> int:
    """Gates or outputs of a unit."""
    return _EIGHT if product.is_up else 2 * _EIGHT


def constants_of(product: CountedProduct, tiles: ListedTiles, arch: int) -> Mapping[str, int]:
    """The kernel's macros. Raises `ValueError` for sizes that are no whole chunks."""
    if not is_whole(product):
        raise ValueError(f"{product.depth} columns and {product.out} outputs, {product.form}")
    return {
        **product.macros(), "FORM": _FORMS[product.form], "PAIRS": MOST_PAIRS,
        "EIGHTS": tiles.eights, "ROOM": tiles.room, "WARPS": tiles.warps, "STAGES": tiles.stages,
        "BLOCKS": tiles.blocks, "HALF": 0, ARCH: arch,
    }  # fmt: skip
