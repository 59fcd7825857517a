"""Experts of many pairs in CUDA C++, for Hopper: `wide.cu`.

Owns the kernel's constants, its two generated instructions, and the launches. Must not know when it
serves (`kernels.experts.choose`), nor how a list is made.

A list names the pairs of each tile, and rows of x are gathered from where they lie. Experts in
bfloat16 and their rows are multiplied from shared memory; those in MXFP4 become bfloat16 in
registers, each number once for a tile of pairs, and nothing is written to memory in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl, multiprocessors
from kernels.cuda.hopper import ALIGNED, SHARED_BYTES, header, runs_on, wgmma
from kernels.cuda.source import CudaSource, bits_of
from kernels.experts.pair_sums import add_pairs
from kernels.launch import Launch
from kernels.mxfp4 import GROUP, Mxfp4Weight

if TYPE_CHECKING:
    from kernels.experts.many import PairList
    from kernels.experts.shapes import Activation, Routed

    Stack = Tensor | Mxfp4Weight

ROWS: Final = 128
"""Pairs of a list's tile: a tile that is not full costs what its pairs do, by 32."""

_COLUMNS: Final = 64
_FRAGMENT: Final = 64
_FRAGMENTS: Final = 2
_REGISTERS: Final = {1: (56, 200), 2: (56, 224)}
"""Of a fetching and of a multiplying thread, by the warp groups that multiply: 65,536 of three warp
groups, or of two programs of two.
"""
_RESERVED_BYTES: Final = 1024
"""Bytes of shared memory that the card reserves for each program on a multiprocessor."""
_STAGED_BYTES: Final = 48 * 32
"""In which a warp turns what it has of 32 pairs."""
_MOST_STAGES: Final = 12
_UNIT_BYTES: Final = 72
"""Barriers of a unit's powers and of its number, and two numbers."""
_BLOCK: Final = 1024


class WideProduct(NamedTuple):
    """What a compilation depends on, but for the card: `rows` are pairs of a tile; `groups` of
    warps multiply, in one program of a multiprocessor, or one group in each of two.
    """

    is_up: bool
    is_packed: bool
    depth: int
    out: int
    active: int
    has_bias: bool
    rows: int
    groups: int = 2

    @property
    def programs(self) -> int:
        """That a multiprocessor holds."""
        return 3 - self.groups

    @property
    def tile(self) -> int:
        """Weight rows of a program."""
        return _FRAGMENT * _FRAGMENTS * self.groups

    @property
    def features(self) -> int:
        """Gates or outputs of a program."""
        return self.tile // 2 if self.is_up else self.tile

    @property
    def stage_bytes(self) -> int:
        """Weights and rows of x of 64 columns."""
        return self.tile * (_COLUMNS // 2 if self.is_packed else 2 * _COLUMNS) + self.rows * 128

    @property
    def other_bytes(self) -> int:
        """Powers of two units, what warps turn, and barriers."""
        powers = 2 * self.tile * (self.depth // GROUP) if self.is_packed else 0
        return powers + 4 * self.groups * _STAGED_BYTES + 16 * _MOST_STAGES + _UNIT_BYTES

    @property
    def stages(self) -> int:
        """Tiles of columns on their way: as many as fit."""
        room = (SHARED_BYTES + _RESERVED_BYTES) // self.programs - _RESERVED_BYTES
        return min(_MOST_STAGES, (room - self.other_bytes) // self.stage_bytes)

    @property
    def shared_bytes(self) -> int:
        """What a program takes."""
        return self.stages * self.stage_bytes + self.other_bytes


def _instructions(constants: Mapping[str, int]) -> dict[str, str]:
    """`multiply<N>` adds products of 64 weight rows in registers, `multiply_tiles<N>` of such in
    shared memory, with N rows of x, 16 columns deep.
    """
    rows = constants["ROWS"]
    sums = f"float (&sums)[{rows // 2}]"
    parts = [
        f"template <int N> __device__ void multiply({sums}, u32, u32, u32, u32, u64);",
        f"template <int N> __device__ void multiply_tiles({sums}, u64, u64);",
    ]
    head = "template <> __device__ __forceinline__ void"
    for n in range(32, rows + 1, 32):
        packed = wgmma(n, 0, "abcd", "right", tail="1, 1, 1, 0")
        plain = wgmma(n, 0, ["left"], "right", tail="1, 1, 1, 0, 0")
        given = "u32 a, u32 b, u32 c, u32 d, u64 right"
        parts.append(f"{head} multiply<{n}>({sums}, {given}) {{{packed}\n}}")
        parts.append(f"{head} multiply_tiles<{n}>({sums}, u64 left, u64 right) {{{plain}\n}}")
    return {**header(), "multiply.h": "\n".join(parts) + "\n"}


wide_experts: Final = CudaSource(
    __name__, "wide_experts", Path(__file__).with_name("wide.cu"), _instructions
)


def suits(x: Tensor, gate_up: object, down: object) -> bool:
    """Whether this card runs both products of such rows."""
    if x.dtype != torch.bfloat16 or not runs_on(x.device) or type(gate_up) is not type(down):
        return False
    if isinstance(gate_up, Mxfp4Weight) and isinstance(down, Mxfp4Weight):
        parts, step = [gate_up.pairs, gate_up.powers, down.pairs, down.powers], _COLUMNS
    elif isinstance(gate_up, Tensor) and isinstance(down, Tensor) and gate_up.dtype == x.dtype:
        parts, step = [gate_up, down], 2 * _FRAGMENT
    else:
        return False
    is_whole = gate_up.shape[1] % _COLUMNS == 0 and down.shape[1] % step == 0
    return is_whole and (x.is_meta or not any(part.data_ptr() % ALIGNED for part in parts))


def gate_up(
    x: Tensor,
    stack: Stack,
    bias: Tensor | None,
    listed: PairList,
    num_pairs: int,
    width: int,
    activation: Activation,
    groups: int = 2,
) -> Tensor:
    """Gates times ups of each pair, bfloat16 [T K, width], of x bfloat16 [T, hidden]; of MXFP4 in
    the order that `down` takes. Launches on one device must be ordered, and the first not inside a
    capture. Ask `suits` first. Raises `CompileError` and `DriverError`.
    """
    out, active = x.new_empty(num_pairs, width), num_pairs // x.shape[0]
    is_packed = isinstance(stack, Mxfp4Weight)
    sizes = x.shape[1], width, active, bias is not None, listed.rows, groups
    given = turned(x) if is_packed else x
    _launch(WideProduct(True, is_packed, *sizes), given, stack, bias, listed, out, activation)
    return out


def down(
    gated: Tensor,
    stack: Stack,
    bias: Tensor | None,
    listed: PairList,
    routed: Routed,
    residual: Tensor,
    groups: int = 2,
) -> Tensor:
    """`residual` plus the weighed sums of pairs, bfloat16 [T, hidden]; see `gate_up`."""
    (num_pairs, width), hidden = gated.shape, residual.shape[1]
    is_packed = isinstance(stack, Mxfp4Weight)
    sizes = width, hidden, routed.experts.shape[1], bias is not None, listed.rows, groups
    products, out = gated.new_empty(num_pairs, hidden), torch.empty_like(residual)
    _launch(WideProduct(False, is_packed, *sizes), gated, stack, bias, listed, products, None)
    add_pairs(products, routed.weights, residual, out)
    return out


def _launch(
    product: WideProduct,
    x: Tensor,
    stack: Stack,
    bias: Tensor | None,
    listed: PairList,
    out: Tensor,
    activation: Activation | None,
) -> None:
    constants = constants_of(product)
    if x.is_meta:
        wide_experts.record(constants)
        return
    from kernels.cuda.driver import launch, loaded

    threads, used = 128 * (product.groups + 1), product.shared_bytes
    function = loaded(wide_experts, constants, threads, used, x.device)
    numbers = out.shape[0], stack.shape[0], *[bits_of(each) for each in activation or (0.0,) * 4]
    powers = stack.powers if isinstance(stack, Mxfp4Weight) else x
    launch(
        function,
        product.programs * multiprocessors(x.device),
        torch.cuda.current_stream(x.device).cuda_stream,
        (_weight_map(product, stack),),
        (
            x, listed.pairs, listed.experts, listed.num_tiles, powers,
            x if bias is None else bias, out, _taken(x.device),
        ),
        numbers,
    )  # fmt: skip


@cache
def _taken(device: torch.device) -> Tensor:
    """Units that are taken: zeros, which every launch leaves as zeros."""
    return torch.zeros(2, dtype=torch.int32, device=device)


def map_of(product: WideProduct, num_rows: int) -> tuple[tuple[int, ...], ...]:
    """Sizes, strides and box of the copies of weights, as `kernels.cuda.driver.box_map` takes them:
    what a group has of gates, of ups, or of outputs.
    """
    depth, out = product.depth, product.out
    row = depth // 2 if product.is_packed else 2 * depth
    columns, unit = (row, 1) if product.is_packed else (depth, 2)
    if not product.is_up:
        box = _FRAGMENT * _FRAGMENTS, 1, 1, 1
        return (columns, num_rows, 1, 1, 1), (unit, row, row, row, row), box
    if product.is_packed:
        # `wide.cu` has the order of gates.
        sizes, strides = (2, num_rows // 16, 4, 2), (4 * row, 16 * row, row, 8 * row)
        return (columns, *sizes), (unit, *strides), (2, 4, 4, 2)
    sizes, strides = (8, 2, num_rows // 16, 2), (row, out * row, 16 * row, 8 * row)
    return (columns, *sizes), (unit, *strides), (8, 2, 4, _FRAGMENTS)


def _weight_map(product: WideProduct, stack: Stack) -> Any:  # noqa: ANN401
    from kernels.cuda.driver import box_map

    values = stack.pairs if isinstance(stack, Mxfp4Weight) else stack
    line_bytes = _COLUMNS // 2 if product.is_packed else 0
    return box_map(values.data_ptr(), *map_of(product, stack.shape[0]), line_bytes=line_bytes)


def constants_of(product: WideProduct) -> Mapping[str, int]:
    """The kernel's macros."""
    fetching, multiplying = _REGISTERS[product.groups]
    return {
        "UP": int(product.is_up), "PACKED": int(product.is_packed), "DEPTH": product.depth,
        "OUT": product.out, "ACTIVE": product.active, "BIAS": int(product.has_bias),
        "GROUPS": product.groups, "ROWS": product.rows, "STAGES": product.stages,
        "PROGRAMS": product.programs,
        "FETCH_REGISTERS": fetching, "MULTIPLY_REGISTERS": multiplying,
    }  # fmt: skip


def turned(x: Tensor) -> Tensor:
    """x [T, D] with columns in the order in which numbers of MXFP4 are multiplied."""
    out, count = torch.empty_like(x), x.numel()
    if count:
        _turn_launch(x.device)((triton.cdiv(count, _BLOCK), 1, 1), (x, out), (count,))
    return out


def natural(gated: Tensor, stack: Stack) -> Tensor:
    """What `gate_up` has written, with columns as the definition has them."""
    if isinstance(stack, Tensor):
        return gated
    numbers = torch.arange(gated.shape[1], dtype=torch.float32, device=gated.device)
    out = torch.empty_like(gated)
    out[:, turned(numbers[None])[0].long()] = gated
    return out


@triton.jit(do_not_specialize=["count"])
def _turn_kernel(
    x_ptr,  # [count]
    out_ptr,  # out: [count]
    count,  # a multiple of 64
    BLOCK: tl.constexpr,  # numbers of a program
    PDL: tl.constexpr,
):
    """Program (numbers)."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    # 32 k + 8 i + 2 t + h becomes 16 t + 8 k + 4 h + i.
    place = at % 64
    column = place % 8 // 2 * 16 + place // 32 * 8 + place % 2 * 4 + place % 32 // 8
    tl.store(out_ptr + at, tl.load(x_ptr + at - place + column, at < count, 0.0), at < count)


@cache
def _turn_launch(device: torch.device) -> Launch:
    return Launch(_turn_kernel, {"BLOCK": _BLOCK, "PDL": has_pdl(device)}, num_warps=4)
