"""Experts of many pairs in MXFP4, in CUDA C++ for Hopper: `wide.cu`.

Owns the kernel's constants, its generated instruction, and the launches. Must not know when it
serves (`kernels.experts.choose`), nor how a list is made.

A list names the pairs of each tile, and rows of x are gathered from where they lie. Numbers become
bfloat16 in registers, each of them once for a tile of pairs, and nothing is written to memory in
between.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.choose import has_pdl, multiprocessors
from kernels.cuda.hopper import ALIGNED, SHARED_BYTES, runs_on, wgmma
from kernels.cuda.source import CudaSource, bits_of
from kernels.experts.headers import headers
from kernels.experts.pair_sums import add_pairs
from kernels.launch import Launch
from kernels.mxfp4 import GROUP, Mxfp4Weight, check_placed

if TYPE_CHECKING:
    from kernels.experts.many import PairList
    from kernels.experts.shapes import Activation, Routed

ROWS: Final = 128
"""Pairs of a list's tile: a tile that is not full costs what its pairs do, by 32."""

_COLUMNS: Final = 64
_LINE_BYTES: Final = _COLUMNS // 2
_FRAGMENT: Final = 64
_FRAGMENTS: Final = 2
_GROUPS: Final = 2
"""Warp groups that multiply. Two programs of one of them on a multiprocessor were slower."""
_REGISTERS: Final = (56, 224)
"""The registers of a fetching and of a multiplying thread: 65,536 for three warp groups."""
_STAGED_BYTES: Final = 48 * 32
"""The bytes in which a warp transposes its results of 32 pairs."""
_MOST_STAGES: Final = 12
_UNIT_BYTES: Final = 72
"""Barriers of a unit's powers and of its number, and two numbers."""
_TURNED: Final = 32
"""Blocks of columns that a program turns: 16 bytes for each of two loads of a thread."""


class WideProduct(NamedTuple):
    """What a compilation depends on, but for the card: `rows` are pairs of a tile."""

    is_up: bool
    depth: int
    out: int
    active: int
    has_bias: bool
    rows: int

    @property
    def tile(self) -> int:
        """Weight rows of a program."""
        return _FRAGMENT * _FRAGMENTS * _GROUPS

    @property
    def features(self) -> int:
        """Gates or outputs of a program."""
        return self.tile // 2 if self.is_up else self.tile

    @property
    def stage_bytes(self) -> int:
        """Weights and rows of x of 64 columns."""
        return self.tile * _LINE_BYTES + self.rows * 2 * _COLUMNS

    @property
    def other_bytes(self) -> int:
        """Powers of two units, what warps turn, and barriers."""
        powers = 2 * self.tile * (self.depth // GROUP)
        return powers + 4 * _GROUPS * _STAGED_BYTES + 16 * _MOST_STAGES + _UNIT_BYTES

    @property
    def stages(self) -> int:
        """Tiles of columns on their way: as many as fit."""
        return min(_MOST_STAGES, (SHARED_BYTES - self.other_bytes) // self.stage_bytes)

    @property
    def shared_bytes(self) -> int:
        """What a program takes."""
        return self.stages * self.stage_bytes + self.other_bytes


def _instructions(constants: Mapping[str, int]) -> dict[str, str]:
    """`multiply<N>` adds products of 64 weight rows in registers with N rows of x in shared memory,
    16 columns deep.
    """
    rows = constants["ROWS"]
    given = f"float (&sums)[{rows // 2}], u32 a, u32 b, u32 c, u32 d, u64 right"
    parts = [f"template <int N> __device__ void multiply({given});\n"]
    for n in range(32, rows + 1, 32):
        body = wgmma(n, 0, "abcd", "right", tail="1, 1, 1, 0")
        head = f"template <> __device__ __forceinline__ void multiply<{n}>"
        parts.append(f"{head}({given}) {{{body}\n}}\n")
    return {**headers("hopper.h"), "multiply.h": "".join(parts)}


wide_experts: Final = CudaSource(
    __name__, "wide_experts", Path(__file__).with_name("wide.cu"), _instructions
)


def suits(x: Tensor, gate_up: Mxfp4Weight, down: Mxfp4Weight) -> bool:
    """Whether this card runs both products of such rows."""
    if x.dtype != torch.bfloat16 or not runs_on(x.device):
        return False
    parts = gate_up.pairs, gate_up.powers, down.pairs, down.powers
    is_whole = gate_up.shape[1] % _COLUMNS == 0 and down.shape[1] % _COLUMNS == 0
    return is_whole and (x.is_meta or not any(part.data_ptr() % ALIGNED for part in parts))


def gate_up(
    x: Tensor,
    stack: Mxfp4Weight,
    bias: Tensor | None,
    listed: PairList,
    num_pairs: int,
    width: int,
    activation: Activation,
) -> Tensor:
    """Gates times ups of each pair, bfloat16 [T K, width], of x bfloat16 [T, hidden], in the order
    that `down` takes. Launches on one device must be ordered, and the first not inside a capture.
    Ask `suits` first. Raises `CompileError` and `DriverError`.
    """
    out, active = x.new_empty(num_pairs, width), num_pairs // x.shape[0]
    product = WideProduct(True, x.shape[1], width, active, bias is not None, listed.rows)
    _launch(product, turned(x), stack, bias, listed, out, activation)
    return out


def down(
    gated: Tensor,
    stack: Mxfp4Weight,
    bias: Tensor | None,
    listed: PairList,
    routed: Routed,
    residual: Tensor,
) -> Tensor:
    """`residual` plus the weighed sums of pairs, bfloat16 [T, hidden]; see `gate_up`."""
    (num_pairs, width), hidden = gated.shape, residual.shape[1]
    active = routed.experts.shape[1]
    product = WideProduct(False, width, hidden, active, bias is not None, listed.rows)
    products, out = gated.new_empty(num_pairs, hidden), torch.empty_like(residual)
    _launch(product, gated, stack, bias, listed, products, None)
    add_pairs(products, routed.weights, residual, out)
    return out


def _launch(
    product: WideProduct,
    x: Tensor,
    stack: Mxfp4Weight,
    bias: Tensor | None,
    listed: PairList,
    out: Tensor,
    activation: Activation | None,
) -> None:
    constants = constants_of(product)
    if x.is_meta:
        wide_experts.record(constants)
        return
    check_placed(stack)
    from kernels.cuda.driver import box_map, launch, loaded

    threads, used = 128 * (_GROUPS + 1), product.shared_bytes
    function = loaded(wide_experts, constants, threads, used, x.device)
    numbers = out.shape[0], stack.shape[0], *[bits_of(each) for each in activation or (0.0,) * 4]
    boxes = boxes_of(product, stack.shape[0])
    weights = box_map(stack.pairs.data_ptr(), *boxes, line_bytes=_LINE_BYTES)
    launch(
        function,
        multiprocessors(x.device),
        torch.cuda.current_stream(x.device).cuda_stream,
        (weights,),
        (
            x, listed.pairs, listed.experts, listed.num_tiles, stack.powers,
            x if bias is None else bias, out, _taken(x.device),
        ),
        numbers,
    )  # fmt: skip


@cache
def _taken(device: torch.device) -> Tensor:
    """Units that are taken: zeros, which every launch leaves as zeros."""
    return torch.zeros(2, dtype=torch.int32, device=device)


def boxes_of(product: WideProduct, num_rows: int) -> tuple[tuple[int, ...], ...]:
    """Sizes, strides and box of the copies of weights, as `kernels.cuda.driver.box_map` takes
    them: what a group has of gates, of ups, or of outputs.
    """
    line = product.depth // 2
    if not product.is_up:
        box = _FRAGMENT * _FRAGMENTS, 1, 1, 1
        return (line, num_rows, 1, 1, 1), (1, line, line, line, line), box
    # `wide.cu` has the order of gates.
    sizes, strides = (2, num_rows // 16, 4, 2), (line, 16 * line, 2 * line, 8 * line)
    return (line, *sizes), (1, *strides), (2, 4, 4, 2)


def constants_of(product: WideProduct) -> Mapping[str, int]:
    """The kernel's macros."""
    fetching, multiplying = _REGISTERS
    return {
        "UP": int(product.is_up), "DEPTH": product.depth, "OUT": product.out,
        "ACTIVE": product.active, "BIAS": int(product.has_bias), "ROWS": product.rows,
        "STAGES": product.stages, "FETCH_REGISTERS": fetching, "MULTIPLY_REGISTERS": multiplying,
    }  # fmt: skip


def turned(x: Tensor) -> Tensor:
    """x [T, D] with columns in the order in which numbers of MXFP4 are multiplied."""
    out, count = torch.empty_like(x), x.numel() // _COLUMNS
    if count:
        _turn_launch(x.device)((triton.cdiv(count, _TURNED), 1, 1), (x, out), (count,))
    return out


def natural(gated: Tensor) -> Tensor:
    """What `gate_up` has written, with columns as the definition has them."""
    numbers = torch.arange(gated.shape[1], dtype=torch.float32, device=gated.device)
    out = torch.empty_like(gated)
    out[:, turned(numbers[None])[0].long()] = gated
    return out


@triton.jit(do_not_specialize=["count"])
def _turn_kernel(
    x_ptr,  # [count, 64]
    out_ptr,  # out: [count, 64]
    count,  # number of blocks of columns
    BLOCKS: tl.constexpr,  # blocks of a program
    PDL: tl.constexpr,
):
    """Program (blocks)."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)[:, None]
    at = block * 64 + tl.arange(0, 64)[None, :]
    # Column 16 t + 8 k + 2 i + h goes to 32 k + 8 i + 2 t + h.
    parts = tl.reshape(tl.load(x_ptr + at, block < count, 0.0), [BLOCKS, 4, 2, 4, 2])
    order = tl.permute(parts, (0, 2, 3, 1, 4))
    tl.store(out_ptr + at, tl.reshape(order, [BLOCKS, 64]), block < count)


@cache
def _turn_launch(device: torch.device) -> Launch:
    return Launch(_turn_kernel, {"BLOCKS": _TURNED, "PDL": has_pdl(device)}, num_warps=4)
