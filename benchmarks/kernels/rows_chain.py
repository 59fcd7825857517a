"""The four products of an 8B's layer in sequence, in 16 and in 8 bits, for 8 to 256 rows.

`python -m benchmarks.kernels rows_chain --jobs 12`, some 20 s on an H200: the present choice beside
other configurations of `kernels.linear.wide`, for all four products at once. A product begins
before the one ahead has ended, so a sweep of each alone (`rows_sweep`) does not show the gain of a
step. Attention is left out: a slice of queries, keys and values replaces its output.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from benchmarks.kernels.attention import normal
from benchmarks.kernels.case import KernelCase, Variant, within
from benchmarks.kernels.linear import EPS
from kernels.fp8 import Fp8Weight, dequantise, quantize_weight
from kernels.linear import library
from kernels.linear.choose import Op, choose
from kernels.linear.config import Config, Wide
from kernels.linear.device import product
from kernels.linear.epilogue import Epilogue

_LAYER: Final = (
    (Op.NORM_LINEAR, 6144, 4096),
    (Op.LINEAR_ADD, 4096, 4096),
    (Op.NORM_SWIGLU, 24576, 4096),
    (Op.LINEAR_ADD, 4096, 12288),
)
_ROWS: Final = (8, 64, 128, 256)
_ERRORS: Final = {0: 2e-2, 1: 0.1}
"""Tolerances by the scales of the weights, for four products whose errors add up."""

Configs = Sequence[Config | None]
"""The configurations of the four products; None: the library."""


def cases(device: torch.device) -> Iterator[KernelCase]:
    """One layer with weights in 16 bits, then in 8; none without CUDA."""
    if device.type != "cuda":
        return
    for scale_block, num_rows in [(block, rows) for block in _ERRORS for rows in _ROWS]:
        now = [
            choose(*_sized(num_rows, *product), torch.bfloat16, scale_block, has_wide=True)
            for product in _LAYER
        ]
        yield _case(scale_block, num_rows, _choices(scale_block, num_rows, now), device)


def _sized(num_rows: int, op: Op, num_weight_rows: int, depth: int) -> tuple[Op, int, int, int]:
    return op, num_rows, num_weight_rows, depth


def _choices(scale_block: int, num_rows: int, now: Configs) -> dict[str, Configs]:
    if scale_block:
        few, gates = Wide(1, 2, reads_once=True), Wide(3, 1)
        return {
            "now": now,
            "wide": (few, few, gates, few),
            "wide, two groups": (Wide(2, 2, reads_once=True), few, gates, few),
            "wide, 20 stages": [one._replace(stages=20) for one in (few, few, gates, few)],
        }
    half = Wide(2, 2, band=2, rows=num_rows // 2)
    found = {"now": now}
    for name, changes in {
        "20 stages": {"stages": 20},
        "256 bytes": {"cached_bytes": 256},
        "20 stages, 256 bytes": {"stages": 20, "cached_bytes": 256},
    }.items():
        found[name] = [_changed(one, changes) for one in now]
    if num_rows > 64:
        found["halves"] = half, half, now[2], half
        found["halves, three groups"] = half._replace(groups=3), half, now[2], half
    return found


def _changed(config: Config | None, changes: dict[str, int]) -> Config | None:
    return config._replace(**changes) if isinstance(config, Wide) else config


def _case(
    scale_block: int, num_rows: int, choices: dict[str, Configs], device: torch.device
) -> KernelCase:
    def make() -> tuple[Any, ...]:
        drawn = [normal(rows, depth, device=device).mul_(depth**-0.5) for _, rows, depth in _LAYER]
        weights = [quantize_weight(weight) for weight in drawn] if scale_block else drawn
        norms = [torch.rand(4096, device=device).bfloat16() + 0.5 for _ in range(2)]
        return normal(num_rows, 4096, device=device), norms, weights

    numbers = sum(rows * depth for _, rows, depth in _LAYER)
    return KernelCase(
        name=f"layer T={num_rows}{' fp8' if scale_block else ''}",
        make=make,
        variants=[
            Variant(name, partial(_layer, [partial(_product, one) for one in configs]))
            for name, configs in choices.items()
        ],
        expected=partial(_layer, [_exact] * 4),
        moved_bytes=numbers * (1 if scale_block else 2),
        flops=2 * num_rows * numbers // (1 + scale_block),
        accept=within(_ERRORS[scale_block]),
        is_chain=True,
    )


def _layer(
    products: Sequence[Callable[..., Tensor]],
    x: Tensor,
    norms: Sequence[Tensor],
    weights: Sequence[Tensor | Fp8Weight],
) -> Tensor:
    rows = products[0](x, weights[0], norm=norms[0])[:, :4096].contiguous()
    x = products[1](rows, weights[1], residual=x)
    gated = products[2](x, weights[2], norm=norms[1], swiglu=True)
    return products[3](gated, weights[3], residual=x)


def _product(
    config: Config | None,
    x: Tensor,
    weight: Tensor | Fp8Weight,
    norm: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    swiglu: bool = False,
) -> Tensor:
    epilogue = Epilogue(norm=norm, eps=EPS, residual=residual, swiglu=swiglu)
    if config is not None:
        return product(config, x, weight, epilogue)
    return library.product(x, weight, epilogue)


def _exact(
    x: Tensor,
    weight: Tensor | Fp8Weight,
    norm: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    swiglu: bool = False,
) -> Tensor:
    wide = weight if isinstance(weight, Tensor) else dequantise(weight, torch.float32)
    out = x.double()
    if norm is not None:
        out = out * (out.square().mean(-1, keepdim=True) + EPS).rsqrt() * norm.double()
    out = out @ wide.double().T
    if swiglu:
        gate, up = out.chunk(2, dim=-1)
        out = gate * gate.sigmoid() * up
    return out if residual is None else out + residual.double()
