"""The products of Qwen3's layers with weights in 8 bits: the chosen configuration beside libraries.

"library" is `torch._scaled_mm` with the pass that quantises x before it (by block: the weight
widened for cuBLAS), "bf16" the same operation by cuBLAS with a weight in 16 bits, "_scaled_mm" the
bare product of already quantised rows, "blockwise" torch's own product with scales by block, if it
has one for this card. Variants that round differently are not held to our bound.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.case import KernelCase, Variant, within
from benchmarks.kernels.linear import (
    DOUBLE_MAX_WEIGHTS,
    EPS,
    LAYERS,
    around,
    by_library,
    written,
)
from kernels.fp8 import (
    BLOCK,
    Fp8Weight,
    dequantise,
    quantize_blocks,
    quantize_rows,
    quantize_weight,
)
from kernels.linear.choose import Op, choose
from kernels.linear.config import Config, Skinny, Wide
from kernels.linear.device import product

SHAPES = [shape for shape in LAYERS if shape[1] < 151936]
"""All shapes but the heads, which stay in 16 bits."""

WIDENED_ERROR = 1e-2
"""For unquantised x: its products are rounded to bfloat16."""

QUANTISED_ERROR = 6e-2
"""For x in 8 bits too: 2.7 % per product, 3.6 % behind a gate of two."""


def cases(device: torch.device) -> Iterator[KernelCase]:
    """The choice for 1 to 4096 rows; by block for 1 to 256 rows of one shape."""
    if device.type == "cpu":
        yield case(Op.LINEAR_ADD, 2, 64, 96, [choose(Op.LINEAR_ADD, 2, 64, 96, torch.float16, 1)])
        return
    for op, num_weight_rows, depth in SHAPES:
        for num_rows in (1, 4, 8, 16, 64, 128, 256, 4096) if depth > 3072 else (1, 64):
            config = choose(op, num_rows, num_weight_rows, depth, torch.bfloat16, 1)
            yield case(op, num_rows, num_weight_rows, depth, [config], device)
    for num_rows in (1, 16, 128, 256, 4096):
        config = choose(Op.LINEAR_ADD, num_rows, 4096, 12288, torch.bfloat16, BLOCK)
        yield case(Op.LINEAR_ADD, num_rows, 4096, 12288, [config], device, by_block=True)


def case(
    op: Op,
    num_rows: int,
    num_weight_rows: int,
    depth: int,
    configs: Sequence[Config | None],
    device: torch.device | None = None,
    *,
    by_block: bool = False,
    peers: bool = True,
) -> KernelCase:
    """One operation at one size, by each of `configs` (None: the library's way) and by peers."""
    device = device or torch.device("cpu")
    num_out = num_weight_rows // 2 if op is Op.NORM_SWIGLU else num_weight_rows
    # Interpreted `tl.dot` reads bfloat16 as integers.
    dtype = torch.float16 if device.type == "cpu" else torch.bfloat16

    def make() -> tuple[Any, ...]:
        random = partial(torch.randn, device=device, dtype=dtype)
        other = random(num_rows, num_out) if op is Op.LINEAR_ADD else random(depth)
        weight = random(num_weight_rows, depth).mul_(depth**-0.5)
        quantised = quantize_blocks(weight) if by_block else quantize_weight(weight)
        x = random(num_rows, depth)
        if not peers:
            return x, quantised, other
        return x, quantised, other, weight, quantize_rows(x)[0]

    ours = [_variant(op, config, by_block=by_block) for config in configs]
    columns = num_rows * (depth + num_out * (2 if op is Op.LINEAR_ADD else 1))
    return KernelCase(
        name=f"{op} {num_weight_rows} x {depth} T={num_rows} {'block' if by_block else 'fp8'}",
        make=make,
        variants=[*ours, *_peers(op, device, by_block=by_block, every=peers)],
        expected=partial(_expected, op),
        moved_bytes=num_weight_rows * depth + 2 * columns,
        # At the 16-bit rate; scaled by row, many rows have twice that.
        flops=2 * num_rows * num_weight_rows * depth // (1 if by_block else 2),
        accept=within(WIDENED_ERROR),
    )


def _variant(op: Op, config: Config | None, *, by_block: bool) -> Variant:
    name = "chosen library" if config is None else written(config)
    is_own = isinstance(config, Wide) or (isinstance(config, Skinny) and config.quantises)
    quantises = is_own or (config is None and not by_block)
    run = partial(_ours, op, config)
    return Variant(name, run, accept=within(QUANTISED_ERROR) if quantises else None)


def _peers(op: Op, device: torch.device, *, by_block: bool, every: bool) -> list[Variant]:
    if device.type == "cpu":
        return []
    error = WIDENED_ERROR if by_block else QUANTISED_ERROR
    peers = [Variant("library", partial(_ours, op, None), peer=True, accept=within(error))]
    if every:
        peers.append(Variant("bf16", partial(_dense, op), peer=True, checked=False))
        bare = _blockwise if by_block else _scaled
        name = "blockwise" if by_block else "_scaled_mm"
        peers.append(Variant(name, bare, peer=True, checked=False))
    return peers


def _ours(
    op: Op, config: Config | None, x: Tensor, weight: Fp8Weight, other: Tensor, *_: Tensor
) -> Tensor:
    if config is None:
        return by_library(op, x, weight, other)
    return product(config, x, weight, around(op, other))


def _dense(op: Op, x: Tensor, _: Fp8Weight, other: Tensor, weight: Tensor, __: Tensor) -> Tensor:
    return by_library(op, x, weight, other)


def _scaled(x: Tensor, weight: Fp8Weight, _: Tensor, __: Tensor, rows: Tensor) -> Tensor:
    """The bare product, with ones for the scales of x."""
    scales = (weight.scales.new_ones(len(x), 1), weight.scales[None, :])
    return torch._scaled_mm(  # noqa: SLF001
        rows, weight.values.t(), *scales, out_dtype=torch.bfloat16, use_fast_accum=True
    )


def _blockwise(x: Tensor, weight: Fp8Weight, _: Tensor, __: Tensor, rows: Tensor) -> Tensor:
    """Scales of x by 128 columns, column-major, as torch 2.11 asks for on Hopper; ones."""
    scales = (weight.scales.new_ones(x.shape[1] // BLOCK, len(x)).t(), weight.scales.t())
    return torch._scaled_mm(  # noqa: SLF001
        rows, weight.values.t(), *scales, out_dtype=torch.bfloat16
    )


def _expected(op: Op, x: Tensor, weight: Fp8Weight, other: Tensor, *_: Tensor) -> Tensor:
    wide = dequantise(weight, torch.float)
    if wide.numel() <= DOUBLE_MAX_WEIGHTS:
        wide = wide.double()
    out = x.to(wide.dtype)
    if op is not Op.LINEAR_ADD:
        out = out / (out.square().mean(-1, keepdim=True) + EPS).sqrt() * other.to(wide.dtype)
    out = out @ wide.T
    if op is Op.NORM_SWIGLU:
        gate, up = out.chunk(2, dim=-1)
        out = gate / (1 + (-gate).exp()) * up
    return out + other.double() if op is Op.LINEAR_ADD else out
