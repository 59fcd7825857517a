"""A layer of a dense model at few rows, launch behind launch: attention and its four products.

`python -m benchmarks.kernels layer_chain --jobs 15 --json FILE`, some 60 s on an H200. Each launch
begins before the one ahead has ended, so a layer takes less than the sum of what its launches take
alone, and what is the best of one alone need not be the best in a layer. A layer reads what the one
ahead wrote: with rows of their own, layers ranked attention otherwise than whole steps do. Variants
differ from what serves ("now") in attention's launch, in the products' tiles, or in both; FILE has
the times of all.
"""

from collections.abc import Iterator, Mapping
from functools import cache, partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from benchmarks.kernels.attention import (
    BLOCK_SIZE,
    DIM,
    KV,
    cos_sin,
    launch_of,
    normal,
    paged,
)
from benchmarks.kernels.case import KernelCase, Variant, within
from benchmarks.kernels.int4 import BYTES_PER_GROUP, GROUP, drawn
from benchmarks.kernels.linear import EPS
from kernels.attention import PagedPlan, reference
from kernels.attention.choose import decode_config, short_contexts
from kernels.attention.config import DecodeConfig
from kernels.attention.decode import decode
from kernels.attention.shares import decode_shares
from kernels.fp8 import Fp8Weight, quantize_weight
from kernels.fp8 import dequantise as widened
from kernels.int4 import Int4Weight, dequantise
from kernels.linear import int4_choose, int4_tiles
from kernels.linear.choose import Op, choose
from kernels.linear.config import Config, Gemv
from kernels.linear.device import product
from kernels.linear.epilogue import Epilogue

_SIZES: Final = {"0.6B": (1024, 16, 3072), "8B": (4096, 32, 12288)}
"""Hidden, query heads, inner."""

_OPS: Final = (Op.NORM_LINEAR, Op.LINEAR_ADD, Op.NORM_SWIGLU, Op.LINEAR_ADD)
_NAMES: Final = ("qkv", "out", "gates", "down")

Weights = list[Any]
"""The weights of the four products, in 16, 8 or 4 bits."""

Products = tuple[tuple[str, Gemv], ...]
"""The tiles of products by their name; other products have the tiles that are chosen now."""


_WITH_PRODUCTS: Final = ((256, 8, 1, 8), (128, 8, 1, 16), (64, 4, 1, 32), (32, 2, 3, 64))
_FEW: Final = (
    ("qkv", Gemv(16, 1024, 4)), ("out", Gemv(4, 1024, 4)), ("gates", Gemv(16, 1024, 4)),
    ("down", Gemv(4, 1024, 4)),
)  # fmt: skip
_PRODUCTS: Final[Mapping[tuple[str, int], Mapping[str, Products]]] = {
    ("0.6B", 16): {
        "few": _FEW,
        "qkv": _FEW[:1],
        "qkv gates8": (_FEW[0], ("gates", Gemv(8, 512, 2))),
        "few gates8": (_FEW[0], _FEW[1], ("gates", Gemv(8, 512, 2)), _FEW[3]),
        "few gates16x8": (_FEW[0], _FEW[1], ("gates", Gemv(16, 1024, 8)), _FEW[3]),
        "few qkv16x8": (("qkv", Gemv(16, 1024, 8)), *_FEW[1:]),
        "few qkv32": (("qkv", Gemv(32, 1024, 8)), *_FEW[1:]),
        "few gates32": (_FEW[0], _FEW[1], ("gates", Gemv(32, 1024, 8)), _FEW[3]),
        "few down8": (*_FEW[:3], ("down", Gemv(4, 2048, 8))),
        "few out8": (_FEW[0], ("out", Gemv(8, 1024, 4)), *_FEW[2:]),
        "few down2": (*_FEW[:3], ("down", Gemv(2, 1024, 4))),
    },
    ("8B", 8): {
        "qkv8": (("qkv", Gemv(8, 1024, 4)),),
        "qkv8x512": (("qkv", Gemv(8, 512, 2)),),
        "qkv16": (("qkv", Gemv(16, 2048, 8)),),
    },
    ("8B", 16): {"out4": (("out", Gemv(4, 1024, 4)),), "qkv8x512": (("qkv", Gemv(4, 512, 2)),)},
}


class Form(NamedTuple):
    """What a variant changes: the numbers of attention's launch (`launch_of`), and `products`."""

    attention: tuple[int, ...] | None = None
    products: Products = ()


def cases(device: torch.device) -> Iterator[KernelCase]:
    """The cases; there are none off CUDA."""
    if device.type != "cuda":
        return
    for model, bits, rows, context in (
        ("0.6B", 16, 1, 256), ("8B", 8, 1, 256), ("8B", 16, 1, 256), ("8B", 4, 1, 256),
        ("0.6B", 16, 1, 400), ("8B", 8, 1, 400), ("0.6B", 16, 1, 1000), ("8B", 8, 1, 1000),
        ("0.6B", 16, 1, 2000), ("0.6B", 16, 2, 256), ("0.6B", 16, 4, 256), ("8B", 16, 1, 400),
        ("8B", 8, 1, 2000), ("0.6B", 16, 4, 380), ("0.6B", 16, 8, 380), ("8B", 8, 8, 380),
        ("0.6B", 16, 1, 600), ("8B", 8, 1, 600), ("0.6B", 16, 2, 600), ("0.6B", 16, 4, 600),
        ("0.6B", 16, 8, 600), ("8B", 8, 8, 600),
    ):  # fmt: skip
        yield _case(model, bits, rows, context, device)


def _forms(model: str, bits: int, rows: int, context: int) -> dict[str, Form]:
    found = {"now": Form()}
    sets = _PRODUCTS.get((model, bits), {}) if rows == 1 and context == 256 else {}
    for tiles in _tiles(rows, context):
        name = " ".join(map(str, tiles))
        found[name] = Form(tiles)
        if tiles in _WITH_PRODUCTS:
            found |= {f"{name} {label}": Form(tiles, given) for label, given in sets.items()}
    found |= {f"now {label}": Form(products=given) for label, given in sets.items()}
    return found | {"now again": Form()}


def _tiles(rows: int, context: int) -> list[tuple[int, ...]]:
    if context == 600:
        n = rows
        return [
            (64, 4, 2, 64 * n), (64, 4, 1, 80 * n, 0, 0, 4, 0), (128, 8, 1, 64 * n, 0, 0, 8, 0),
            (128, 8, 1, 40 * n, 0, 0, 8, 0), (64, 4, 2, 64 * n, 0, 0, 4, 0),
            (64, 4, 2, 64 * n, 0, 0, 8, 0), (32, 2, 3, 528, 3, 1, 4, 0),
            (64, 4, 2, 264, 3, 1, 4, 0),
        ]  # fmt: skip
    if rows > 1:
        return [
            (256, 8, 1, 8 * rows),
            (128, 8, 1, 16 * rows),
            (64, 4, 1, 32 * rows),
            (32, 2, 3, 64 * rows),
            (64, 4, 2, 32 * rows),
            (32, 2, 1, 64 * rows),
        ]
    if context == 256:
        return [
            (256, 8, 1, 8), (256, 16, 1, 8), (256, 8, 1, 64), (256, 8, 1, 132),
            (128, 8, 1, 16), (128, 4, 1, 16), (128, 8, 1, 132), (64, 4, 1, 32),
            (64, 4, 1, 132), (32, 2, 1, 64), (32, 2, 3, 64), (32, 2, 3, 132), (32, 2, 3, 264),
        ]  # fmt: skip
    if context == 400:
        return [
            (256, 8, 1, 8), (256, 8, 1, 16), (256, 8, 1, 32), (256, 8, 1, 132), (128, 8, 1, 32),
            (128, 8, 2, 32), (64, 4, 1, 64), (64, 4, 2, 64), (32, 2, 3, 64), (32, 2, 1, 132),
            (64, 4, 2, 32), (64, 8, 1, 64),
        ]  # fmt: skip
    return [
        (64, 4, 2, 64), (64, 4, 2, 132), (64, 4, 1, 132), (128, 8, 1, 64), (128, 8, 2, 64),
        (32, 2, 3, 64), (256, 8, 1, 32), (64, 4, 2, 264),
    ]  # fmt: skip


def _case(model: str, bits: int, rows: int, context: int, device: torch.device) -> KernelCase:
    hidden, heads, inner = _SIZES[model]
    shapes = (
        ((heads + 2 * KV) * DIM, hidden), (hidden, heads * DIM), (2 * inner, hidden),
        (hidden, inner),
    )  # fmt: skip

    def make() -> tuple[Any, ...]:
        weights = [_weight(shape, bits, device) for shape in shapes]
        norms = [torch.rand(hidden, device=device).bfloat16() + 0.5 for _ in range(2)]
        norms.append(torch.rand(heads + KV, DIM, device=device).bfloat16() + 0.5)
        tokens = paged([context] * rows, device)
        return normal(rows, hidden, device=device), norms, weights, tokens

    positions = torch.full((rows,), context - 1, dtype=torch.int32, device=device)
    plan = PagedPlan(
        positions, torch.arange(rows, dtype=torch.int32, device=device), positions, rows
    )
    numbers = sum(n * k for n, k in shapes)
    size = {16: 2.0, 8: 1.0, 4: BYTES_PER_GROUP / GROUP}[bits]
    forms = _forms(model, bits, rows, context)
    return KernelCase(
        name=f"layer {model} {bits} bits T={rows} at {context}",
        make=make,
        variants=[Variant(name, partial(_layer, form, plan)) for name, form in forms.items()],
        expected=partial(_expected, plan),
        moved_bytes=int(numbers * size) + 4 * DIM * KV * rows * context,
        flops=2 * rows * numbers,
        accept=within(0.1 if bits == 8 and rows > 1 else 3e-2),
        is_chain=True,
    )


def _weight(
    shape: tuple[int, int], bits: int, device: torch.device
) -> Tensor | Fp8Weight | Int4Weight:
    if bits == 4:
        return drawn(*shape, torch.bfloat16, device)
    weight = normal(*shape, device=device).mul_(shape[1] ** -0.5)
    return quantize_weight(weight) if bits == 8 else weight


def _layer(
    form: Form,
    plan: PagedPlan,
    x: Tensor,
    norms: list[Tensor],
    weights: Weights,
    tokens: tuple[Tensor, ...],
) -> Tensor:
    qkv = _product(form, 0, x, weights[0], Epilogue(norm=norms[0], eps=EPS))
    mixed = _attended(form, plan, qkv, norms[2], *tokens)
    x = _product(form, 1, mixed, weights[1], Epilogue(residual=x))
    gated = _product(form, 2, x, weights[2], Epilogue(norm=norms[1], eps=EPS, swiglu=True))
    return _product(form, 3, gated, weights[3], Epilogue(residual=x))


def _product(form: Form, at: int, x: Tensor, weight: Any, epilogue: Epilogue) -> Tensor:  # noqa: ANN401
    if isinstance(weight, Int4Weight):
        config = int4_choose.chosen(x.shape[0], *weight.shape, has_wgmma=True)
        return int4_tiles.product(x, weight, config, epilogue)
    chosen = dict(form.products).get(_NAMES[at]) or _chosen(
        _OPS[at], x.shape[0], *weight.shape, is_fp8=isinstance(weight, Fp8Weight)
    )
    assert chosen is not None
    return product(chosen, x, weight, epilogue)


@cache
def _chosen(op: Op, rows: int, num_weight_rows: int, depth: int, *, is_fp8: bool) -> Config | None:
    return choose(op, rows, num_weight_rows, depth, torch.bfloat16, int(is_fp8), has_wide=True)


def _attended(
    form: Form,
    plan: PagedPlan,
    qkv: Tensor,
    norm: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
) -> Tensor:
    rows = qkv.shape[0]
    known = short_contexts(KV, DIM, torch.bfloat16).get(rows, ())
    longest = next((most for most in known if tables.shape[1] * BLOCK_SIZE <= most), 0)
    config = decode_config(rows, KV, DIM, torch.bfloat16, longest)
    if form.attention is not None:
        config = launch_of(*form.attention)
    planned = PagedPlan(
        plan.positions, plan.table_rows, tables, rows, shares=_shares(plan.positions, config)
    )
    out = qkv.new_empty(rows, qkv.shape[1] - 2 * KV * DIM)
    operands = qkv, norm, EPS, cos_sin(qkv.device), keys, values, planned
    decode(*operands, config, out)
    return out


@cache
def _shares(positions: Tensor, config: DecodeConfig) -> Tensor:
    return decode_shares(positions, positions.shape[0], KV, config)


def _expected(
    plan: PagedPlan, x: Tensor, norms: list[Tensor], weights: Weights, tokens: tuple[Tensor, ...]
) -> Tensor:
    def multiplied(x: Tensor, weight: Any) -> Tensor:  # noqa: ANN401
        dense: Tensor = weight
        if isinstance(weight, Int4Weight):
            dense = dequantise(weight, torch.float32)
        elif isinstance(weight, Fp8Weight):
            dense = widened(weight, torch.float32)
        return x.double() @ dense.double().T

    def normed(x: Tensor, norm: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * norm.double()

    out = x.double()
    keys, values, tables = (tensor.clone() for tensor in tokens)
    planned = PagedPlan(plan.positions, plan.table_rows, tables, plan.num_decodes)
    qkv = multiplied(normed(out, norms[0]), weights[0]).bfloat16()
    mixed = reference.attend(qkv, norms[2], EPS, cos_sin(x.device), keys, values, planned)
    out = out + multiplied(mixed, weights[1])
    gate, up = multiplied(normed(out, norms[1]), weights[2]).chunk(2, dim=-1)
    return out + multiplied(gate * gate.sigmoid() * up, weights[3])
