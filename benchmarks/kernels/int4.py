"""The products of an 8B's and of a 27B's layers with weights in 4 bits: the choice beside 16 bits.

`python -m benchmarks.kernels int4 --jobs 8`. "16 bits" is the same operation as it is chosen for a
weight in 16 bits; the floor counts words, scales of 16 and zero points of 8 bits per 128 columns.
Weights, x and other inputs rotate through more than the L2 cache.
"""

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.case import KernelCase, Variant, within
from benchmarks.kernels.linear import EPS, around, written
from kernels.int4 import PER_WORD, Int4Weight, dequantise
from kernels.linear import (
    check_int4,
    int4,
    int4_ampere,
    int4_tiles,
    library,
    linear_add,
    norm_linear,
    norm_swiglu,
)
from kernels.linear.choose import Op
from kernels.linear.config import Int4Ampere, Int4Tiles
from kernels.rms_norm import rms_norm

LAYERS = [
    (Op.NORM_LINEAR, 6144, 4096),  # Qwen3-8B: qkv, out, gate and up, down
    (Op.LINEAR_ADD, 4096, 4096),
    (Op.NORM_SWIGLU, 24576, 4096),
    (Op.LINEAR_ADD, 4096, 12288),
    (Op.NORM_LINEAR, 16384, 5120),  # Qwen3.6-27B: a delta rule's, out, gate and up, down
    (Op.LINEAR_ADD, 5120, 6144),
    (Op.NORM_SWIGLU, 34816, 5120),
    (Op.LINEAR_ADD, 5120, 17408),
]
"""Operation, weight rows, columns."""

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_WIDENED_ROWS = 256
"""From this many rows on the library's product of the widened weight is timed too."""

GROUP = 128
BYTES_PER_GROUP = GROUP // 2 + 3
_ERROR = 1e-2


def cases(device: torch.device) -> Iterator[KernelCase]:
    """The choice for 1 to 512 rows; on a CPU one small case in Triton's interpreter."""
    if device.type == "cpu":
        yield case(Op.LINEAR_ADD, 2, 64, 256, [None], device)
        return
    print(check_int4(device, torch.bfloat16).text, file=sys.stderr)
    for op, num_weight_rows, depth in LAYERS:
        for num_rows in ROWS:
            yield case(op, num_rows, num_weight_rows, depth, [None], device, has_peer=True)


def case(
    op: Op,
    num_rows: int,
    num_weight_rows: int,
    depth: int,
    configs: Sequence[Int4Tiles | Int4Ampere | None],
    device: torch.device,
    *,
    has_peer: bool = False,
    has_triton: bool = False,
) -> KernelCase:
    """One operation at one size, by each of `configs` (None: the choice), with `has_triton` by the
    kernels that serve where none in CUDA C++ does, and in 16 bits.
    """
    num_out = num_weight_rows // 2 if op is Op.NORM_SWIGLU else num_weight_rows
    # Interpreted `tl.dot` reads bfloat16 as integers.
    dtype = torch.float16 if device.type == "cpu" else torch.bfloat16
    random = partial(torch.randn, device=device, dtype=dtype)

    def make() -> tuple[Any, ...]:
        weight = drawn(num_weight_rows, depth, dtype, device)
        other = random(num_rows, num_out) if op is Op.LINEAR_ADD else random(depth)
        dense = random(num_weight_rows, depth).mul_(depth**-0.5) if has_peer else None
        return random(num_rows, depth), weight, other, dense

    ours = [Variant("chosen" if c is None else written(c), partial(_ours, op, c)) for c in configs]
    if has_triton:
        ours.append(Variant("Triton", partial(_by_triton, op)))
    if num_rows >= _WIDENED_ROWS:
        ours.append(Variant("widened", partial(_widened, op)))
    peer = Variant("16 bits", partial(_peer, op), peer=True, checked=False)
    columns = num_rows * (depth + num_out * (2 if op is Op.LINEAR_ADD else 1))
    return KernelCase(
        name=f"{op} {num_weight_rows} x {depth} T={num_rows} int4",
        make=make,
        variants=[*ours, peer] if has_peer else ours,
        expected=partial(_expected, op),
        moved_bytes=num_weight_rows * depth // GROUP * BYTES_PER_GROUP + 2 * columns,
        flops=2 * num_rows * num_weight_rows * depth,
        accept=within(_ERROR),
    )


def drawn(num_rows: int, depth: int, dtype: torch.dtype, device: torch.device) -> Int4Weight:
    shape = num_rows, depth // GROUP
    words = torch.randint(
        -(2**31), 2**31, (num_rows, depth // PER_WORD), dtype=torch.int32, device=device
    )
    scales = (torch.rand(shape, device=device) + 0.5).mul_(depth**-0.5 / 6).to(dtype)
    zeros = torch.randint(4, 12, shape, dtype=torch.uint8, device=device)
    return Int4Weight(words, scales, zeros)


def _ours(
    op: Op,
    config: Int4Tiles | Int4Ampere | None,
    x: Tensor,
    weight: Int4Weight,
    other: Tensor,
    _: Tensor | None,
) -> Tensor:
    epilogue = around(op, other)
    if config is None:
        return int4.product(x, weight, epilogue)
    fuses_norm = (int4_ampere if isinstance(config, Int4Ampere) else int4_tiles).fuses_norm
    if op is not Op.LINEAR_ADD and not fuses_norm(x, other):
        x, epilogue = rms_norm(x, other, EPS), epilogue.behind_norm()
    if isinstance(config, Int4Ampere):
        return int4_ampere.product(x, weight, config, epilogue)
    return int4_tiles.product(x, weight, config, epilogue)


def _by_triton(op: Op, x: Tensor, weight: Int4Weight, other: Tensor, _: Tensor | None) -> Tensor:
    epilogue = around(op, other)
    if x.shape[0] <= int4.GEMV_ROWS:
        return int4.by_gemv(x, weight, epilogue)
    if op is not Op.LINEAR_ADD:
        x, epilogue = rms_norm(x, other, EPS), epilogue.behind_norm()
    return int4.by_skinny(x, weight, epilogue)


def _widened(op: Op, x: Tensor, weight: Int4Weight, other: Tensor, _: Tensor | None) -> Tensor:
    return library.product(x, dequantise(weight, x.dtype), around(op, other))


def _peer(op: Op, x: Tensor, _: Int4Weight, other: Tensor, dense: Tensor) -> Tensor:
    if op is Op.LINEAR_ADD:
        return linear_add(x, dense, other)
    return (norm_swiglu if op is Op.NORM_SWIGLU else norm_linear)(x, other, EPS, dense)


def _expected(op: Op, x: Tensor, weight: Int4Weight, other: Tensor, _: Tensor | None) -> Tensor:
    rows = x.double()
    if op is not Op.LINEAR_ADD:
        rows = rows / (rows.square().mean(-1, keepdim=True) + EPS).sqrt() * other.double()
    out = rows @ dequantise(weight, torch.float32).double().T
    if op is Op.NORM_SWIGLU:
        gate, up = out.chunk(2, dim=-1)
        return gate / (1 + (-gate).exp()) * up
    return out + other.double() if op is Op.LINEAR_ADD else out
