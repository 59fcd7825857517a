"""A layer of a decode step with weights in 4 bits: its products as they follow each other.

`python -m benchmarks.kernels int4_chain --jobs 12`; 34 variants took 66 s on an H200, now there are
half as many. The 8B: queries, keys and values, attention to 256 tokens, out, gates and ups, down;
the 27B's delta rule has a product of two slices in its place. Each product begins before the one
ahead has ended, so a layer takes less than the sum of what its products take alone.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, Final

import torch
from torch import Tensor

from benchmarks.kernels.attention import DIM, KV, cos_sin, normal, paged
from benchmarks.kernels.case import KernelCase, Variant, within
from benchmarks.kernels.int4 import BYTES_PER_GROUP, GROUP, drawn
from benchmarks.kernels.linear import EPS
from kernels.attention import PagedPlan, reference
from kernels.attention.choose import decode_config
from kernels.attention.decode import decode
from kernels.attention.shares import decode_shares
from kernels.int4 import Int4Weight, dequantise
from kernels.linear import int4_choose, int4_tiles
from kernels.linear.config import Int4Tiles
from kernels.linear.epilogue import Epilogue
from kernels.silu_mul import sigmoid_mul

_CONTEXT: Final = 256
_ERROR: Final = 3e-2
_SIZES: Final = {"8B": (4096, 6144, 4096, 12288), "27B": (5120, 16384, 6144, 17408)}
"""Hidden, the first product's rows, the mixer's, the inner ones."""

_LONE: Final = {
    "32 by turns": Int4Tiles(1, 4, 2, 1, 1, 8, 2, turns=2, wide=2, lone=True),
    "48 by 8": Int4Tiles(1, 8, 3, 1, 1, 6, 2, wide=2, lone=True),
    "32 of 1024": Int4Tiles(1, 4, 2, 1, 1, 4, 2, wide=4, lone=True),
    "the choice": None,
}
_LONE_GATES: Final = {
    "64": Int4Tiles(2, 2, 2, 1, 1, 6, 3, lone=True),
    "96 of 512": Int4Tiles(2, 4, 3, 1, 1, 3, 2, wide=2, lone=True),
    "96 of 256": Int4Tiles(2, 4, 3, 1, 1, 4, 3, lone=True),
}
"""Tiles for one row, by the weight rows of a tile."""

_WIDE: Final = {
    "wide": Int4Tiles(2, 2, 2, 2, 1, 2, 3, wide=2),
    "wide by 8": Int4Tiles(2, 4, 2, 2, 1, 3, 2, wide=2),
    "48 wide": Int4Tiles(1, 4, 3, 2, 1, 3, 2, wide=2),
}

Choose = Callable[[int, Int4Weight], Int4Tiles]
"""(rows of x, a weight) -> how they are multiplied."""

Mix = Callable[..., Tensor]
"""The operation between the first two products."""


def cases(device: torch.device) -> Iterator[KernelCase]:
    """One layer of each model for 1 and 16 rows, of the 8B for 4 too; none off CUDA."""
    if device.type != "cuda":
        return
    for model, num_rows in (("8B", 1), ("27B", 1), ("8B", 4), ("8B", 16), ("27B", 16)):
        yield _case(model, num_rows, device)


def _by_tiles(num_rows: int, weight: Int4Weight) -> Int4Tiles:
    return int4_choose.chosen(num_rows, *weight.shape, has_wgmma=True)


def _is_gates(weight: Int4Weight) -> bool:
    return weight.shape[0] > 4 * weight.shape[1]


def _by(
    gates: Int4Tiles | None, others: Int4Tiles | None, num_rows: int, weight: Int4Weight
) -> Int4Tiles:
    config = gates if _is_gates(weight) else others
    return config or _by_tiles(num_rows, weight)


def _choices(num_rows: int) -> dict[str, Choose]:
    found: dict[str, Choose] = {"int4_tiles": _by_tiles}
    if num_rows == 1:
        found |= {
            f"{name}, gates {other}": partial(_by, gates, tiles)
            for name, tiles in _LONE.items()
            for other, gates in _LONE_GATES.items()
        }
    elif num_rows > 8:
        found |= {name: partial(_by, None, tiles) for name, tiles in _WIDE.items()}
        found |= {f"{name}, gates": partial(_by, tiles, None) for name, tiles in _WIDE.items()}
    return found


def _case(model: str, num_rows: int, device: torch.device) -> KernelCase:
    hidden, first, mixer, inner = _SIZES[model]
    shapes = (first, hidden), (hidden, mixer), (2 * inner, hidden), (hidden, inner)
    mix, exact = _attention(num_rows, device) if model == "8B" else (_sliced, _sliced)

    def make() -> tuple[Any, ...]:
        weights = [drawn(*shape, torch.bfloat16, device) for shape in shapes]
        tokens = paged([_CONTEXT] * num_rows, device) if model == "8B" else ()
        norms = [torch.rand(hidden, device=device).bfloat16() + 0.5 for _ in range(2)]
        return normal(num_rows, hidden, device=device), norms, weights, tokens

    choices = _choices(num_rows)
    return KernelCase(
        name=f"layer {model} T={num_rows} int4",
        make=make,
        variants=[Variant(name, partial(_layer, choose, mix)) for name, choose in choices.items()],
        expected=partial(_expected, exact),
        moved_bytes=sum(n * k // GROUP * BYTES_PER_GROUP for n, k in shapes),
        flops=2 * num_rows * sum(n * k for n, k in shapes),
        accept=within(_ERROR),
        is_chain=True,
    )


def _layer(
    choose: Choose,
    mix: Mix,
    x: Tensor,
    norms: list[Tensor],
    weights: list[Int4Weight],
    tokens: tuple[Tensor, ...],
) -> Tensor:
    rows = mix(_product(choose, x, weights[0], Epilogue(norm=norms[0], eps=EPS)), *tokens)
    x = _product(choose, rows, weights[1], Epilogue(residual=x))
    gated = _product(choose, x, weights[2], Epilogue(norm=norms[1], eps=EPS, swiglu=True))
    return _product(choose, gated, weights[3], Epilogue(residual=x))


def _product(choose: Choose, x: Tensor, weight: Int4Weight, epilogue: Epilogue) -> Tensor:
    return int4_tiles.product(x, weight, choose(x.shape[0], weight), epilogue)


def _expected(
    mix: Mix,
    x: Tensor,
    norms: list[Tensor],
    weights: list[Int4Weight],
    tokens: tuple[Tensor, ...],
) -> Tensor:
    def product(x: Tensor, weight: Int4Weight) -> Tensor:
        return x.double() @ dequantise(weight, torch.float32).double().T

    def normed(x: Tensor, norm: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * norm.double()

    out = x.double()
    rows = mix(product(normed(out, norms[0]), weights[0]).bfloat16(), *tokens)
    out = out + product(rows, weights[1])
    gate, up = product(normed(out, norms[1]), weights[2]).chunk(2, dim=-1)
    return out + product(gate * gate.sigmoid() * up, weights[3])


def _sliced(rows: Tensor) -> Tensor:
    """A small kernel between two products."""
    width = _SIZES["27B"][2]
    return sigmoid_mul(rows[:, :width].contiguous(), rows[:, width : 2 * width].contiguous())


def _attention(num_rows: int, device: torch.device) -> tuple[Mix, Mix]:
    """The engine's decode, and its reference; without norms of queries and keys."""
    positions = torch.full((num_rows,), _CONTEXT - 1, dtype=torch.int32, device=device)
    numbers = torch.arange(num_rows, dtype=torch.int32, device=device)
    config = decode_config(num_rows, KV, DIM, torch.bfloat16)

    @cache
    def shares() -> Tensor:
        return decode_shares(positions, num_rows, KV, config)

    def mix(qkv: Tensor, keys: Tensor, values: Tensor, tables: Tensor) -> Tensor:
        out = qkv.new_empty(num_rows, _SIZES["8B"][2])
        plan = PagedPlan(positions, numbers, tables, num_rows, shares=shares())
        decode(qkv, None, EPS, cos_sin(device), keys, values, plan, config, out)
        return out

    def exact(qkv: Tensor, keys: Tensor, values: Tensor, tables: Tensor) -> Tensor:
        plan = PagedPlan(positions, numbers, tables, num_rows)
        return reference.attend(qkv, None, EPS, cos_sin(device), keys, values, plan)

    return mix, exact
