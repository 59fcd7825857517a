"""The products of Qwen3's layers: the choice of `kernels.linear` beside the library.

Weights, x and other inputs rotate through more than the L2 cache. "library" is the whole operation
by cuBLAS with our norm and gate around it; for the bare product that is `F.linear`.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.case import KernelCase, Variant, within
from kernels.fp8 import Fp8Weight
from kernels.linear import library
from kernels.linear.choose import Op, choose
from kernels.linear.config import Config
from kernels.linear.device import product
from kernels.linear.epilogue import Epilogue

EPS = 1e-6

LAYERS = [
    (Op.NORM_LINEAR, 4096, 1024),  # Qwen3-0.6B: qkv, out, gate and up, down, head
    (Op.LINEAR_ADD, 1024, 2048),
    (Op.NORM_SWIGLU, 6144, 1024),
    (Op.LINEAR_ADD, 1024, 3072),
    (Op.NORM_LINEAR, 151936, 1024),
    (Op.NORM_LINEAR, 6144, 4096),  # Qwen3-8B
    (Op.LINEAR_ADD, 4096, 4096),
    (Op.NORM_SWIGLU, 24576, 4096),
    (Op.LINEAR_ADD, 4096, 12288),
    (Op.NORM_LINEAR, 151936, 4096),
]
"""Operation, weight rows, columns."""

BARE = [(Op.LINEAR, 12288, 4096), (Op.LINEAR, 4096, 12288)]

DOUBLE_MAX_WEIGHTS = 2**28
"""Above this size the answer is computed in float32: 5 GB of float64 in each process are
too many.
"""


def cases(device: torch.device) -> Iterator[KernelCase]:
    """The choice for 1 to 256 rows."""
    shapes = BARE + LAYERS if device.type == "cuda" else [(Op.NORM_SWIGLU, 64, 96)]
    for op, num_weight_rows, depth in shapes:
        for num_rows in (1, 4, 8, 16, 64, 256):
            config = choose(op, num_rows, num_weight_rows, depth, torch.bfloat16)
            yield case(op, num_rows, num_weight_rows, depth, [config] if config else [], device)


def case(
    op: Op,
    num_rows: int,
    num_weight_rows: int,
    depth: int,
    configs: Sequence[Config],
    device: torch.device,
) -> KernelCase:
    """One operation at one size, by each of `configs` and by the library."""
    num_out = num_weight_rows // 2 if op is Op.NORM_SWIGLU else num_weight_rows
    # Interpreted `tl.dot` reads bfloat16 as integers.
    dtype = torch.float16 if device.type == "cpu" else torch.bfloat16
    random = partial(torch.randn, device=device, dtype=dtype)

    def make() -> tuple[Any, ...]:
        x = random(num_rows, depth)
        weight = random(num_weight_rows, depth).mul_(depth**-0.5)
        if op is Op.LINEAR:
            return x, weight
        return x, weight, random(num_rows, num_out) if op is Op.LINEAR_ADD else random(depth)

    variants = [Variant(written(config), partial(_ours, op, config)) for config in configs]
    name = "F.linear" if op is Op.LINEAR else "library"
    peer = Variant(name, partial(by_library, op), peer=True)
    columns = num_rows * (depth + num_out * (2 if op is Op.LINEAR_ADD else 1))
    return KernelCase(
        name=f"{op} {num_weight_rows} x {depth} T={num_rows}",
        make=make,
        variants=[*variants, peer],
        expected=partial(_expected, op),
        moved_bytes=2 * (num_weight_rows * depth + columns),
        flops=2 * num_rows * num_weight_rows * depth,
        accept=within(1e-2),
    )


def written(config: Config) -> str:
    """A configuration as Python writes it, by keyword: defaults are left out."""
    defaults = config._field_defaults
    given = [
        f"{name}={value}"
        for name, value in config._asdict().items()
        if name not in defaults or value != defaults[name]
    ]
    return f"{type(config).__name__}({', '.join(given)})"


def _ours(op: Op, config: Config, x: Tensor, weight: Tensor, other: Tensor | None = None) -> Tensor:
    return product(config, x, weight, around(op, other))


def by_library(
    op: Op, x: Tensor, weight: Tensor | Fp8Weight, other: Tensor | None = None
) -> Tensor:
    return library.product(x, weight, around(op, other))


def around(op: Op, other: Tensor | None) -> Epilogue:
    """What an operation does beside multiplying; `other` is its residual or its norm."""
    if op is Op.LINEAR_ADD:
        return Epilogue(residual=other)
    return Epilogue(norm=other, eps=EPS, swiglu=op is Op.NORM_SWIGLU)


def _expected(op: Op, x: Tensor, weight: Tensor, other: Tensor | None = None) -> Tensor:
    wide = torch.double if weight.numel() <= DOUBLE_MAX_WEIGHTS else torch.float
    x = x.to(wide)
    if other is not None and op is not Op.LINEAR_ADD:
        x = x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * other.to(wide)
    out = x @ weight.to(wide).T
    if op is Op.NORM_SWIGLU:
        gate, up = out.chunk(2, dim=-1)
        out = gate / (1 + (-gate).exp()) * up
    return out + other.to(wide) if other is not None and op is Op.LINEAR_ADD else out
