"""A layer of a mixture at few rows, launch behind launch, from the router to the product behind
attention.

`python -m benchmarks.kernels mixture_chain --jobs 15 --json FILE`, some 50 s on an H200. Each
launch begins before the one ahead has ended, so a layer takes less than the sum of what its
launches take alone. Variants differ from what serves now ("now") in attention's launch (tile,
warps, stages, programs), in experts' tiles, or leave a launch out, which says what it adds; FILE
has the times of all. Experts are drawn, independent and uniform, apart from the router.
"""

from collections.abc import Iterator
from functools import cache, lru_cache, partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from benchmarks.engine.floor import distinct_experts
from benchmarks.kernels.case import KernelCase, Variant, within
from kernels.attention import PagedPlan
from kernels.attention import reference as attention_reference
from kernels.attention.choose import decode_config
from kernels.attention.config import DecodeConfig
from kernels.attention.decode import decode
from kernels.attention.shares import decode_shares
from kernels.experts import (
    Activation,
    ExpertWeights,
    Routed,
    Routing,
    choose,
    few,
    listed,
    mxfp4,
    norm_route,
    reference,
)
from kernels.experts.stack import Stack
from kernels.experts.tiles import ExpertTiles
from kernels.fp8 import Fp8Weight, dequantise, quantize_weight
from kernels.linear import linear_add, norm_linear
from kernels.mxfp4 import GROUP, Mxfp4Weight
from kernels.rms_norm import rms_norm

_EPS: Final = 1e-6
_BLOCK_SIZE: Final = 32
_POSITIONS: Final = 4096


class _Shape(NamedTuple):
    """The sizes of a layer, and the form of its weights."""

    form: str
    hidden: int
    width: int
    routing: Routing
    activation: Activation
    heads: int
    kv: int
    dim: int


_30B: Final = _Shape("bf16", 2048, 768, Routing(128, 8), Activation(), 32, 4, 128)
_SHAPES: Final = {
    "30b bf16": _30B,
    "30b fp8": _30B._replace(form="fp8"),
    "gpt-oss mxfp4": _Shape(
        "mxfp4", 2880, 2880, Routing(32, 4), Activation(1.702, 1.0, 7.0), 64, 8, 64
    ),
}
_EXPERT_BYTES: Final = {"bf16": 2.0, "fp8": 1.0, "mxfp4": 0.53125}
_PRODUCT_BYTES: Final = {"bf16": 2, "fp8": 1, "mxfp4": 2}


class _Form(NamedTuple):
    """What a variant changes: `attention`'s tile, warps, stages and programs, and tiles of `up` and
    `down`; and what it leaves out, of "router", "attention", "ups" and "down".
    """

    attention: tuple[int, int, int, int] | None = None
    up: Any = None
    down: Any = None
    without: str = ""


_ATTENTIONS: Final = {
    f"attention {' '.join(map(str, given))}": _Form(given)
    for given in ((256, 8, 1, 8), (256, 8, 1, 16), (128, 8, 1, 32), (64, 4, 2, 64))
}
_ATTENTIONS_OF_8: Final = {
    f"attention {' '.join(map(str, given))}": _Form(given)
    for given in (
        (256, 8, 1, 64), (256, 8, 1, 128), (128, 8, 1, 128), (128, 8, 1, 256), (128, 8, 2, 64)
    )
}  # fmt: skip
_WITHOUT: Final = {
    f"without {name}": _Form(without=name) for name in ("router", "attention", "ups", "down")
}
_PLAIN: Final = {
    "up held 8x1024, 8 warps": _Form(up=ExpertTiles(8, 1024, 8, held=True)),
    "up held 2x1024": _Form(up=ExpertTiles(2, 1024, held=True)),
    "up 8x256": _Form(up=ExpertTiles(8, 256)),
    "down 4x1024": _Form(down=ExpertTiles(4, 1024, ahead=1)),
    "down 8x256, 8 warps, 12 ahead": _Form(down=ExpertTiles(8, 256, 8, ahead=12)),
    "down 4x256, 3 ahead": _Form(down=ExpertTiles(4, 256, ahead=3)),
    "down 2x256, 2 warps, 24 ahead": _Form(down=ExpertTiles(2, 256, 2, ahead=24)),
}
_MXFP4_UP: Final = ((12, 1, 3, 2), (12, 2, 1, 2), (12, 1, 4, 2), (6, 1, 2, 4))
_MXFP4_DOWN: Final = ((8, 1, 3, 2), (6, 1, 3, 3), (12, 1, 2, 2), (12, 2, 1, 2))
_IN_CUDA: Final = {
    **{f"up {' '.join(map(str, t))}": _Form(up=mxfp4.Mxfp4Tiles(*t)) for t in _MXFP4_UP},
    **{f"down {' '.join(map(str, t))}": _Form(down=mxfp4.Mxfp4Tiles(*t)) for t in _MXFP4_DOWN},
}


def cases(device: torch.device) -> Iterator[KernelCase]:
    """None off CUDA."""
    if device.type != "cuda":
        return
    for name, rows, context, forms in (
        ("30b bf16", 1, 256, _ATTENTIONS | _WITHOUT | _PLAIN),
        ("30b bf16", 1, 380, _ATTENTIONS),
        ("30b bf16", 8, 200, _ATTENTIONS_OF_8),
        ("30b bf16", 8, 380, _ATTENTIONS_OF_8 | _WITHOUT),
        ("30b bf16", 8, 1000, _ATTENTIONS_OF_8),
        ("30b fp8", 1, 256, _WITHOUT | _PLAIN),
        ("gpt-oss mxfp4", 1, 256, _ATTENTIONS | _WITHOUT | _IN_CUDA),
        ("gpt-oss mxfp4", 8, 380, _ATTENTIONS_OF_8 | _WITHOUT),
    ):
        yield _case(name, rows, context, forms, device)


def _case(
    name: str, rows: int, context: int, forms: dict[str, _Form], device: torch.device
) -> KernelCase:
    shape = _SHAPES[name]
    positions = torch.full((rows,), context - 1, dtype=torch.int32, device=device)
    numbers = shape.hidden * shape.dim * (2 * shape.heads + 2 * shape.kv)
    experts = distinct_experts(*shape.routing[:2], rows) * 3 * shape.width * shape.hidden
    return KernelCase(
        name=f"chain {name}, {rows} rows at {context}",
        make=partial(_made, shape, rows, context, device),
        variants=[
            Variant(label, partial(_layer, form, shape, positions), checked=not form.without)
            for label, form in {"now": _Form(), **forms, "now again": _Form()}.items()
        ],
        expected=partial(_expected, shape, positions),
        moved_bytes=int(numbers * _PRODUCT_BYTES[shape.form] + experts * _EXPERT_BYTES[shape.form]),
        flops=0,
        accept=within(0.1 if shape.form == "fp8" and rows > 1 else 3e-2),
        is_chain=True,
    )


@lru_cache(maxsize=1)
def _stacks(shape: _Shape, device: torch.device) -> tuple[Stack, Stack]:
    """Gates and ups, and what is down, of all experts; those of the last shape are kept."""
    count, hidden, width = shape.routing.num_experts, shape.hidden, shape.width
    return (
        _drawn(shape.form, count * 2 * width, hidden, device),
        _drawn(shape.form, count * hidden, width, device),
    )


def _drawn(form: str, num_rows: int, depth: int, device: torch.device) -> Stack:
    if form == "mxfp4":
        pairs = torch.empty(num_rows, depth // 2, dtype=torch.uint8, device=device)
        powers = torch.empty(num_rows, depth // GROUP, dtype=torch.uint8, device=device)
        return Mxfp4Weight(pairs.random_(0, 256), powers.random_(117, 122))
    whole = torch.empty(num_rows, depth, dtype=torch.bfloat16, device=device)
    whole.normal_(0.0, depth**-0.5)
    return quantize_weight(whole) if form == "fp8" else whole


def _made(shape: _Shape, rows: int, context: int, device: torch.device) -> tuple[Any, ...]:
    """x, three norms, router, both products, experts and weights of rows, cache and tables."""
    _stacks(shape, device)
    hidden, (count, active) = shape.hidden, shape.routing[:2]

    def normal(*size: int) -> Tensor:
        return torch.randn(size, device=device).bfloat16()

    norms = [torch.rand(hidden, device=device).bfloat16() + 0.5 for _ in range(2)]
    norms.append(torch.rand(shape.heads + shape.kv, shape.dim, device=device).bfloat16() + 0.5)
    form = "bf16" if shape.form == "mxfp4" else shape.form
    qkv = _drawn(form, (shape.heads + 2 * shape.kv) * shape.dim, hidden, device)
    out = _drawn(form, hidden, shape.heads * shape.dim, device)
    experts = torch.rand(rows, count, device=device).topk(active, 1).indices.int().contiguous()
    weights = torch.rand(rows, active, device=device)
    blocks = -(-context // _BLOCK_SIZE)
    tables = torch.randperm(rows * blocks, device=device, dtype=torch.int32).view(rows, blocks)
    cache = [normal(rows * blocks + 1, _BLOCK_SIZE, shape.kv, shape.dim) for _ in range(2)]
    router = normal(count, hidden) * hidden**-0.5
    routed = Routed(experts, weights / weights.sum(1, keepdim=True))
    return normal(rows, hidden), norms, router, qkv, out, routed, cache, tables


def _layer(
    form: _Form,
    shape: _Shape,
    positions: Tensor,
    x: Tensor,
    norms: list[Tensor],
    router: Tensor,
    qkv_weight: Any,  # noqa: ANN401
    out_weight: Any,  # noqa: ANN401
    routed: Routed,
    cache: list[Tensor],
    tables: Tensor,
) -> Tensor:
    normed = x
    if form.without != "router":
        normed, _ = norm_route(x, norms[0], _EPS, ExpertWeights(router), shape.routing)
    x = _mixed(form, shape, normed, routed, x)
    qkv = norm_linear(x, norms[1], _EPS, qkv_weight)
    mixed = _noise(x.shape[0], shape.heads * shape.dim, x.device)
    if form.without != "attention":
        config = decode_config(x.shape[0], shape.kv, shape.dim, torch.bfloat16)
        if form.attention is not None:
            tile, warps, stages, target = form.attention
            config = config._replace(tile=tile, warps=warps, stages=stages, target=target)
        shares = _shares(positions, shape.kv, config)
        plan = PagedPlan(
            positions, _numbers(x.shape[0], x.device), tables, x.shape[0], shares=shares
        )
        mixed = torch.empty_like(mixed)
        angles = _angles(shape.dim, x.device)
        decode(qkv, norms[2], _EPS, angles, cache[0], cache[1], plan, config, mixed)
    return linear_add(mixed, out_weight, x)


def _mixed(form: _Form, shape: _Shape, x: Tensor, routed: Routed, residual: Tensor) -> Tensor:
    """The experts, by the kernels that serve such rows."""
    gate_up, down = _stacks(shape, x.device)
    pairs, count, width = routed.experts.numel(), shape.routing.num_experts, shape.width
    gated = _noise(pairs, width, x.device)
    way = choose.way(x, gate_up, down, pairs, count, invariant=False, in_cuda=True)
    if way is choose.Way.LISTED:
        if form.without != "ups":
            gated = listed.gate_up(x, gate_up, None, routed, width, shape.activation, form.up)
        if form.without == "down":
            return residual
        return listed.down(gated, down, None, routed, residual, form.down)
    if isinstance(gate_up, Mxfp4Weight) and isinstance(down, Mxfp4Weight):
        if form.without != "ups":
            gated = mxfp4.gate_up(x, gate_up, None, routed, width, shape.activation, form.up)
        if form.without == "down":
            return residual
        return mxfp4.down(gated, down, None, routed, residual, form.down)
    if form.without != "ups":
        gated = few.gate_up(x, gate_up, None, routed, width, shape.activation, form.up)
    if form.without == "down":
        return residual
    return few.down(gated, down, None, routed, residual, form.down)


@cache
def _noise(rows: int, columns: int, device: torch.device) -> Tensor:
    """In place of what a launch that is left out would make."""
    return torch.randn(rows, columns, device=device).bfloat16()


@cache
def _numbers(rows: int, device: torch.device) -> Tensor:
    return torch.arange(rows, dtype=torch.int32, device=device)


@cache
def _angles(dim: int, device: torch.device) -> Tensor:
    steps = torch.arange(dim // 2, device=device) / (dim // 2)
    angles = torch.arange(_POSITIONS, device=device)[:, None] * 1e6**-steps
    return torch.cat((angles.cos(), angles.sin()), dim=1)


@cache
def _shares(positions: Tensor, num_kv: int, config: DecodeConfig) -> Tensor:
    return decode_shares(positions, positions.shape[0], num_kv, config)


def _expected(
    shape: _Shape,
    positions: Tensor,
    x: Tensor,
    norms: list[Tensor],
    _router: Tensor,
    qkv_weight: Any,  # noqa: ANN401
    out_weight: Any,  # noqa: ANN401
    routed: Routed,
    cache: list[Tensor],
    tables: Tensor,
) -> Tensor:
    def multiplied(rows: Tensor, weight: Any) -> Tensor:  # noqa: ANN401
        dense = dequantise(weight, torch.float32) if isinstance(weight, Fp8Weight) else weight
        return rows.double() @ dense.double().T

    gate_up, down = _stacks(shape, x.device)
    normed = rms_norm(x, norms[0], _EPS)
    gated = reference.gate_up(normed, gate_up, None, routed, shape.routing, shape.activation)
    whole = reference.down(gated, down, None, routed, shape.routing, x).double()
    scale = (whole.square().mean(-1, keepdim=True) + _EPS).rsqrt()
    qkv = multiplied(whole * scale * norms[1].double(), qkv_weight).bfloat16()
    plan = PagedPlan(positions, _numbers(x.shape[0], x.device), tables, x.shape[0])
    keys, values = (part.clone() for part in cache)
    angles = _angles(shape.dim, x.device)
    mixed = attention_reference.attend(qkv, norms[2], _EPS, angles, keys, values, plan)
    return whole + multiplied(mixed, out_weight)
