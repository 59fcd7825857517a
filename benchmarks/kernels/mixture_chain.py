"""A layer of a mixture at few rows, launch behind launch, from the router to the product behind
attention.

`python -m benchmarks.kernels mixture_chain --jobs 15 --json FILE`, some 50 s on an H200. Each
launch begins before the one ahead has ended, so a layer takes less than the sum of what its
launches take alone. Variants differ from what serves now ("now") in attention's launch (tile,
warps, stages, programs), in experts' tiles, or leave a launch out, which says what it adds; FILE
has the times of all. Experts are drawn, independent and uniform, apart from the router.
"""

from collections.abc import Iterable, Iterator
from functools import cache, lru_cache, partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from benchmarks.engine.floor import distinct_experts
from benchmarks.kernels.attention import launch_of
from benchmarks.kernels.case import KernelCase, Variant, within
from kernels.attention import PagedPlan, Scope
from kernels.attention import reference as attention_reference
from kernels.attention.choose import decode_config, short_contexts
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
    rounded,
)
from kernels.experts.stack import Stack
from kernels.fp8 import Fp8Weight, dequantise, quantize_blocks, quantize_weight
from kernels.linear import linear_add, norm_linear
from kernels.linear.choose import even_splits
from kernels.linear.config import Config, Gemv, Skinny, Wide
from kernels.linear.device import product
from kernels.linear.epilogue import Epilogue
from kernels.mxfp4 import GROUP, Mxfp4Weight
from kernels.rms_norm import rms_norm

_EPS: Final = 1e-6
_BLOCK_SIZE: Final = 32
_POSITIONS: Final = 4096


class _Shape(NamedTuple):
    """The sizes of a layer, and the form of its weights; gpt-oss has biases and sinks."""

    form: str
    hidden: int
    width: int
    routing: Routing
    activation: Activation
    heads: int
    kv: int
    dim: int
    is_oss: bool = False
    window: int = 0


_30B: Final = _Shape("bf16", 2048, 768, Routing(128, 8), Activation(), 32, 4, 128)
_OSS: Final = _Shape(
    "mxfp4", 2880, 2880, Routing(32, 4), Activation(1.702, 1.0, 7.0), 64, 8, 64, is_oss=True
)
_SHAPES: Final = {
    "30b bf16": _30B,
    "30b fp8": _30B._replace(form="fp8"),
    "30b blocks": _30B._replace(form="blocks"),
    "35b blocks": _Shape("blocks", 2048, 512, Routing(256, 8), Activation(), 16, 2, 256),
    "gpt-oss": _OSS,
    "gpt-oss window": _OSS._replace(window=128),
}
_EXPERT_BYTES: Final = {"bf16": 2.0, "fp8": 1.0, "blocks": 1.0, "mxfp4": 0.53125}
_PRODUCT_BYTES: Final = {"bf16": 2, "fp8": 1, "blocks": 1, "mxfp4": 2}


class MixtureForm(NamedTuple):
    """What a variant changes: attention's launch, tiles of both dense products and of experts, and
    whether shares are of the window alone (`reach`); and what it leaves out, of "router", "qkv",
    "attention", "out", "ups" and "down".
    """

    attention: DecodeConfig | None = None
    qkv: Config | None = None
    out: Config | None = None
    up: Any = None
    down: Any = None
    reach: int = 0
    without: str = ""


def _attentions(*given: tuple[int, ...], reach: int = 0) -> dict[str, MixtureForm]:
    """The attention forms, by the arguments of `launch_of`."""
    return {
        f"attention {' '.join(map(str, numbers))}": MixtureForm(launch_of(*numbers), reach=reach)
        for numbers in given
    }


def _products(name: str, configs: Iterable[Config]) -> dict[str, MixtureForm]:
    """The forms of the product "qkv" or "out"."""
    is_qkv = name == "qkv"
    return {
        f"{name} {short(config)}": MixtureForm(qkv=config) if is_qkv else MixtureForm(out=config)
        for config in configs
    }


def short(config: Config) -> str:
    """Its fields that are not defaults."""
    fields = {k: v for k, v in config._asdict().items() if v != config._field_defaults.get(k)}
    return f"{type(config).__name__} {' '.join(f'{k[:5]}={int(v)}' for k, v in fields.items())}"


_WITHOUT: Final = {
    f"without {name}": MixtureForm(without=name)
    for name in ("router", "qkv", "attention", "out", "ups", "down")
}


def _few_rows(rows: int) -> dict[str, MixtureForm]:
    """The forms for few rows, with 4 heads of keys and up to 1,024 tokens."""
    return _attentions(
        (256, 8, 1, 16 * rows), (128, 8, 1, 32 * rows), (128, 8, 1, 20 * rows),
        (64, 8, 1, 64 * rows), (64, 4, 1, 64 * rows), (64, 4, 2, 32 * rows), (64, 4, 2, 20 * rows),
        (32, 2, 3, 264), (64, 4, 3, 264, 2, 1),
    )  # fmt: skip


_CROWD: Final = _attentions(
    (32, 2, 3, 528, 6, 1), (64, 4, 3, 264, 3, 1), (64, 4, 3, 264, 2, 1), (64, 4, 3, 264, 1, 1),
    (64, 4, 3, 256), (64, 4, 2, 264, 3, 1), (64, 4, 4, 264, 3, 1),
)  # fmt: skip
_WIDE_HEADS: Final = _attentions(
    (32, 8, 2, 528), (32, 8, 2, 132), (64, 8, 1, 20), (64, 8, 1, 32), (64, 8, 2, 132, 1, 1),
    (64, 8, 2, 264, 1, 1), (128, 8, 1, 10),
)  # fmt: skip


def _gemvs(*given: tuple[int, int, int]) -> list[Config]:
    return [Gemv(*numbers) for numbers in given]


_WIDES: Final = [
    Wide(groups=groups, splits=splits, reads_once=True, stages=stages)
    for groups in (1, 2, 3)
    for splits in (1, 2, 3, 4)
    for stages in (8, 20)
    if not (groups > 1 and stages > 8)
]


def _skinnies(depth: int) -> list[Config]:
    """The configurations for weights in 16 bits."""
    return [
        Skinny(block_n, block_k, even_splits(depth, block_k, splits), 4, stages)
        for block_n, block_k, stages in ((64, 64, 6), (64, 128, 3), (64, 128, 4), (32, 64, 6))
        for splits in (2, 3, 4, 8)
    ]


_BLOCKS_QKV: Final = _products("qkv", _gemvs(
    (4, 1024, 4), (16, 1024, 4), (8, 2048, 8), (4, 2048, 8), (16, 2048, 8), (8, 512, 2), (4, 512, 2)
))  # fmt: skip
_BLOCKS_OUT: Final = _products("out", _gemvs(
    (4, 1024, 4), (8, 1024, 4), (2, 2048, 8), (4, 2048, 8), (1, 2048, 8), (8, 2048, 8), (2, 512, 2),
    (4, 512, 2), (8, 4096, 16), (4, 4096, 16),
))  # fmt: skip
_OSS_QKV: Final = _products("qkv", _gemvs(
    (2, 512, 2), (8, 512, 2), (4, 1024, 4), (8, 1024, 4), (2, 1024, 4), (4, 256, 1), (16, 1024, 4),
    (8, 2048, 8),
))  # fmt: skip
_OSS_OUT: Final = _products("out", _gemvs(
    (2, 1024, 4), (8, 1024, 4), (4, 512, 2), (2, 512, 2), (4, 2048, 8), (8, 2048, 8), (2, 2048, 8)
))  # fmt: skip
_OSS_ROW: Final = (
    (32, 2, 3, 264), (128, 8, 1, 64), (128, 4, 1, 64), (64, 4, 1, 128), (64, 4, 2, 64),
)  # fmt: skip
_OSS_WINDOW: Final = ((128, 8, 1, 8), (128, 4, 1, 8), (256, 8, 1, 8), (64, 4, 2, 16))


def cases(device: torch.device) -> Iterator[KernelCase]:
    """The cases; there are none off CUDA."""
    if device.type != "cuda":
        return
    few_windows = [(*given[:3], given[3] * 8) for given in _OSS_WINDOW]
    crowds = [(128, 4, 1, 512), (64, 4, 2, 512), (32, 2, 3, 512), (32, 2, 3, 528, 6, 1)]
    for name, rows, context, forms in (
        ("30b blocks", 1, 600, _few_rows(1) | _WITHOUT | _BLOCKS_QKV | _BLOCKS_OUT),
        ("30b blocks", 1, 200, _few_rows(1)),
        ("30b blocks", 1, 1000, _few_rows(1)),
        ("30b blocks", 2, 600, _few_rows(2) | _WITHOUT),
        ("30b blocks", 4, 600, _few_rows(4)),
        ("30b blocks", 8, 600, _few_rows(8) | _WITHOUT),
        ("30b blocks", 64, 600, _CROWD | _WITHOUT),
        ("30b blocks", 64, 2000, _CROWD),
        ("gpt-oss", 1, 600, _attentions(*_OSS_ROW) | _WITHOUT | _OSS_QKV | _OSS_OUT),
        ("gpt-oss window", 1, 600, _attentions(*_OSS_WINDOW, reach=128) | _WITHOUT),
        ("gpt-oss", 8, 600, _WITHOUT
            | _products("qkv", [*_skinnies(2880), *_WIDES])
            | _products("out", [*_skinnies(4096), *_WIDES])),
        ("gpt-oss window", 8, 600, _attentions(*few_windows, reach=128)),
        ("gpt-oss", 64, 600, _CROWD | _WITHOUT
            | _products("qkv", [*_skinnies(2880), *_WIDES])
            | _products("out", [*_skinnies(4096), *_WIDES])),
        ("gpt-oss window", 64, 600, _attentions(*crowds, reach=128)),
        ("35b blocks", 1, 600, _WIDE_HEADS),
        ("35b blocks", 8, 600, _WIDE_HEADS),
    ):  # fmt: skip
        yield case_of(name, rows, context, forms, device)


def case_of(
    name: str, rows: int, context: int, forms: dict[str, MixtureForm], device: torch.device
) -> KernelCase:
    """A layer of that many rows by each of `forms`."""
    shape = _SHAPES[name]
    positions = torch.full((rows,), context - 1, dtype=torch.int32, device=device)
    numbers = shape.hidden * shape.dim * (2 * shape.heads + 2 * shape.kv)
    experts = distinct_experts(*shape.routing[:2], rows) * 3 * shape.width * shape.hidden
    seen = min(context, shape.window or context)
    cached = 4 * rows * seen * shape.kv * shape.dim
    products = numbers * _PRODUCT_BYTES[shape.form]
    return KernelCase(
        name=f"chain {name}, {rows} rows at {context}",
        make=partial(_made, shape, rows, context, device),
        variants=[
            Variant(label, partial(_layer, form, shape, positions), checked=not form.without)
            for label, form in {"now": MixtureForm(), **forms, "now again": MixtureForm()}.items()
        ],
        expected=partial(_expected, shape, positions),
        moved_bytes=int(products + cached + experts * _EXPERT_BYTES[shape.form]),
        flops=0,
        accept=within(0.1 if shape.form == "fp8" and rows > 1 else 3e-2),
        is_chain=True,
    )


@lru_cache(maxsize=1)
def _stacks(shape: _Shape, device: torch.device) -> tuple[Stack, Stack]:
    """The stacks of gates and ups and of down projections, of all experts. They are cached for the
    last shape.
    """
    count, hidden, width = shape.routing.num_experts, shape.hidden, shape.width
    return (
        _drawn(shape.form, count * 2 * width, hidden, device),
        _drawn(shape.form, count * hidden, width, device),
    )


def _drawn(form: str, num_rows: int, depth: int, device: torch.device) -> Stack:
    if form == "mxfp4":
        pairs = torch.empty(num_rows, depth // 2, dtype=torch.uint8, device=device)
        powers = torch.empty(num_rows, depth // GROUP, dtype=torch.uint8, device=device)
        return Mxfp4Weight(pairs.random_(0, 256), powers.random_(117, 122), is_placed=True)
    whole = torch.empty(num_rows, depth, dtype=torch.bfloat16, device=device)
    whole.normal_(0.0, depth**-0.5)
    if form == "blocks":
        return quantize_blocks(whole)
    return quantize_weight(whole) if form == "fp8" else whole


def _made(shape: _Shape, rows: int, context: int, device: torch.device) -> tuple[Any, ...]:
    """x, three norms, router, both products, experts and weights of rows, cache and tables, and of
    gpt-oss biases and sinks.
    """
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
    extra: list[Tensor | None] = [None, None, None]
    if shape.is_oss:
        extra = [normal(qkv.shape[0]), normal(hidden), torch.randn(shape.heads, device=device)]
    return normal(rows, hidden), norms, router, qkv, out, routed, cache, tables, extra


def _layer(
    form: MixtureForm,
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
    extra: list[Tensor | None],
) -> Tensor:
    normed = x
    if form.without != "router":
        normed, _ = norm_route(x, norms[0], _EPS, ExpertWeights(router), shape.routing)
    x = _mixed(form, shape, normed, routed, x)
    rows, width = x.shape[0], (shape.heads + 2 * shape.kv) * shape.dim
    if form.without == "qkv":
        qkv = _noise(rows, width, x.device)
    elif form.qkv is not None:
        epilogue = Epilogue(norm=norms[1], eps=_EPS, bias=extra[0])
        qkv = product(form.qkv, x, qkv_weight, epilogue)
    else:
        qkv = norm_linear(x, norms[1], _EPS, qkv_weight, extra[0])
    mixed = _noise(rows, shape.heads * shape.dim, x.device)
    if form.without != "attention":
        mixed = torch.empty_like(mixed)
        _attend(form, shape, positions, qkv, norms[2], cache, tables, mixed, extra[2])
    if form.without == "out":
        return x
    if form.out is not None:
        return product(form.out, mixed, out_weight, Epilogue(residual=x, bias=extra[1]))
    return linear_add(mixed, out_weight, x, extra[1])


def _attend(
    form: MixtureForm,
    shape: _Shape,
    positions: Tensor,
    qkv: Tensor,
    norm: Tensor,
    cache: list[Tensor],
    tables: Tensor,
    out: Tensor,
    sinks: Tensor | None,
) -> None:
    rows, longest = qkv.shape[0], 0
    if not shape.is_oss:
        known = short_contexts(shape.kv, shape.dim, torch.bfloat16).get(rows, ())
        longest = next((most for most in known if tables.shape[1] * _BLOCK_SIZE <= most), 0)
    config = form.attention or decode_config(rows, shape.kv, shape.dim, torch.bfloat16, longest)
    shares = _shares(positions, shape.kv, config, form.reach)
    numbers = _numbers(rows, out.device)
    plan = PagedPlan(positions, numbers, tables, rows, shares=shares, reach=form.reach)
    scope = Scope(shape.dim**-0.5, shape.window)
    weights = None if shape.is_oss else norm
    angles = _angles(shape.dim, out.device)
    decode(qkv, weights, _EPS, angles, cache[0], cache[1], plan, config, out, scope, sinks)


def _mixed(form: MixtureForm, shape: _Shape, x: Tensor, routed: Routed, residual: Tensor) -> Tensor:
    """The experts, by the kernels that serve such rows."""
    gate_up, down = _stacks(shape, x.device)
    pairs, count, width = routed.experts.numel(), shape.routing.num_experts, shape.width
    gated = _noise(pairs, width, x.device)
    way = choose.way(x, gate_up, down, pairs, count, invariant=False, in_cuda=True)
    if way in {choose.Way.LISTED, choose.Way.ROUNDED_LISTED}:
        counting = listed if way is choose.Way.LISTED else rounded
        if form.without != "ups":
            gated = counting.gate_up(x, gate_up, None, routed, width, shape.activation, form.up)
        if form.without == "down":
            return residual
        return counting.down(gated, down, None, routed, residual, form.down)
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
    """Random numbers in place of the result of a launch that is left out."""
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
def _shares(positions: Tensor, num_kv: int, config: DecodeConfig, reach: int) -> Tensor:
    return decode_shares(positions, positions.shape[0], num_kv, config, reach=reach)


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
    extra: list[Tensor | None],
) -> Tensor:
    def multiplied(rows: Tensor, weight: Any) -> Tensor:  # noqa: ANN401
        dense = dequantise(weight, torch.float32) if isinstance(weight, Fp8Weight) else weight
        return rows.double() @ dense.double().T

    gate_up, down = _stacks(shape, x.device)
    normed = rms_norm(x, norms[0], _EPS)
    gated = reference.gate_up(normed, gate_up, None, routed, shape.routing, shape.activation)
    whole = reference.down(gated, down, None, routed, shape.routing, x).double()
    scale = (whole.square().mean(-1, keepdim=True) + _EPS).rsqrt()
    qkv = multiplied(whole * scale * norms[1].double(), qkv_weight)
    if extra[0] is not None:
        qkv += extra[0]
    plan = PagedPlan(positions, _numbers(x.shape[0], x.device), tables, x.shape[0])
    keys, values = (part.clone() for part in cache)
    mixed = attention_reference.attend(
        qkv.bfloat16(), None if shape.is_oss else norms[2], _EPS, _angles(shape.dim, x.device),
        keys, values, plan, Scope(shape.dim**-0.5, shape.window), extra[2],
    )  # fmt: skip
    made = whole + multiplied(mixed, out_weight)
    return made if extra[1] is None else made + extra[1]
