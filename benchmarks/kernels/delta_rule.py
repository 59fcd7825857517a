"""A layer of the gated delta rule at the 27B's sizes: decodes, prompts, rows that are verified.

Owns the sizes and their floors. It is what lies between the layer's products: convolution, gates,
rule and norm.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.kernels.case import KernelCase, Variant, within
from kernels.delta_rule import (
    CHUNK,
    DeltaPlan,
    DeltaRing,
    DeltaSizes,
    DeltaState,
    DeltaWeights,
    RowSpan,
    mix,
    plan_spans,
    plan_verified,
    verify,
)
from kernels.delta_rule import layer as reference

EPS = 1e-6
SIZES = DeltaSizes(num_key_heads=16, num_value_heads=48, key_dim=128, value_dim=128)
"""The sizes of Qwen3.6-27B."""

HALF = DeltaSizes(num_key_heads=8, num_value_heads=24, key_dim=128, value_dim=128)
SMALL = DeltaSizes(num_key_heads=1, num_value_heads=2, key_dim=16, value_dim=16)
WIDTH = 4
TOLERANCE = 2e-2
"""The tolerance for bfloat16 operands in a chain of products."""

DECODES = (1, 8, 64, 256)
PROMPTS = ((2048, 1), (8192, 1), (16_384, 1), (2048, 4), (1024, 8), (300, 1), (32, 1))
"""Rows of a sequence, sequences."""

VERIFIED = ((1, 1), (3, 1), (4, 1), (8, 1), (16, 1), (3, 8), (4, 8), (1, 64), (3, 64))


def cases(device: torch.device) -> Iterator[KernelCase]:
    """Small ones for the interpreter."""
    if device.type == "cpu":
        yield mixed("decode 2", [1] * 2, SMALL, device)
        yield mixed("prompt 70", [70], SMALL, device)
        yield verified(3, 2, SMALL, device)
        return
    for num in DECODES:
        yield mixed(f"decode {num}", [1] * num, SIZES, device)
    for length, num in PROMPTS:
        yield mixed(f"prompt {num} x {length}", [length] * num, SIZES, device)
    yield mixed("prompt 1 x 8192, half the heads", [8192], HALF, device)
    yield mixed("decode 64 + prompt 448", [*[1] * 64, 448], SIZES, device)
    for num_rows, num in VERIFIED:
        yield verified(num_rows, num, SIZES, device)


class DeltaRuleLayer(NamedTuple):
    """What all calls of a case share: spans that go on behind a state, and weights."""

    plan: DeltaPlan
    weights: DeltaWeights
    wide: DeltaWeights


def drawn_layer(lengths: Sequence[int], sizes: DeltaSizes, device: torch.device) -> DeltaRuleLayer:
    """Equal sizes give the same layer, so a variant computes with the weights of the expected
    answer.
    """
    heads, seeded = sizes.num_value_heads, torch.Generator(device).manual_seed(1)
    conv = torch.randn(sizes.columns, WIDTH, device=device, generator=seeded)
    norm = torch.randn(sizes.value_dim, device=device, generator=seeded)
    spans = [RowSpan(CHUNK, length, slot) for slot, length in enumerate(lengths)]
    weights = DeltaWeights(
        conv=conv.div_(2).to(torch.bfloat16),
        decay=torch.linspace(-4.0, 1.0, heads, device=device),
        dt_bias=torch.ones(heads, device=device),
        norm=norm.to(torch.bfloat16),
    )
    wide = weights._replace(conv=weights.conv.float(), norm=weights.norm.float())
    return DeltaRuleLayer(plan_spans(spans, device), weights, wide)


def mixed(name: str, lengths: Sequence[int], sizes: DeltaSizes, device: torch.device) -> KernelCase:
    given = cache(lambda: drawn_layer(lengths, sizes, device))

    def run(rows: Tensor, gates: Tensor, matrices: Tensor, tails: Tensor) -> tuple[Tensor, ...]:
        state = DeltaState(matrices, tails)
        out = mix(rows, gates, given().weights, EPS, state, given().plan)
        return out, matrices, tails

    def expected(*inputs: Tensor) -> tuple[Tensor, ...]:
        rows, gates, *kept = [part.float() for part in inputs]
        state = DeltaState(*kept)
        out = reference.mix(rows, gates, given().wide, EPS, state, given().plan, sizes)
        return out, *state

    return _case(name, lengths, sizes, lambda: _inputs(lengths, sizes, device), run, expected, 0)


def verified(
    num_rows: int,
    num: int,
    sizes: DeltaSizes,
    device: torch.device,
    variants: Mapping[str, Callable[..., Tensor]] | None = None,
) -> KernelCase:
    """Rows that follow as many earlier rows, of whose drafts all but one were accepted and are
    folded. A span of one row is a decode of an engine that verifies. `variants` are called as
    `verify` is.
    """
    lengths, most = [num_rows] * num, num_rows - 1
    given = cache(lambda: drawn_layer(lengths, sizes, device))
    spans = [RowSpan(CHUNK, length, slot, max(0, most - 1)) for slot, length in enumerate(lengths)]
    taken, plan = plan_verified(spans, device), plan_spans(spans, device)

    def make() -> tuple[Tensor, ...]:
        ring = drawn(device, num, max(1, most), sizes.columns)
        gates = drawn(device, num, max(1, most), 2 * sizes.num_value_heads)
        return *_inputs(lengths, sizes, device), ring, gates

    def run(
        call: Callable[..., Tensor], rows: Tensor, gates: Tensor, *kept: Tensor
    ) -> tuple[Tensor, ...]:
        state, ring = DeltaState(*kept[:2]), DeltaRing(*kept[2:])
        out = call(rows, gates, given().weights, EPS, state, ring, taken, plan)
        return out, *state

    def expected(*inputs: Tensor) -> tuple[Tensor, ...]:
        rows, gates, *kept = [part.float() for part in inputs]
        state, ring = DeltaState(*kept[:2]), DeltaRing(*kept[2:])
        out = reference.verify(rows, gates, given().wide, EPS, state, ring, taken, plan, sizes)
        return out, *state

    ring_bytes = 2 * num * (2 * most - 1 if most else 0) * sizes.columns
    name, calls = f"verify {num} x {num_rows}", variants or {"entry": verify}
    runs = [Variant(each, partial(run, call)) for each, call in calls.items()]
    case = _case(name, lengths, sizes, make, runs[0].run, expected, ring_bytes)
    return replace(case, variants=runs)


def _case(
    name: str,
    lengths: Sequence[int],
    sizes: DeltaSizes,
    make: Callable[[], tuple[Tensor, ...]],
    run: Callable[..., tuple[Tensor, ...]],
    expected: Callable[..., tuple[Tensor, ...]],
    more_bytes: int,
) -> KernelCase:
    """Rows are read and written once, states too."""
    row_bytes = 2 * (sizes.columns + 2 * sizes.value_columns)
    numbers = sizes.num_value_heads * sizes.key_dim * sizes.value_dim
    state_bytes = 2 * (4 * numbers + 2 * (WIDTH - 1) * sizes.columns)
    return KernelCase(
        name=f"delta {name}",
        make=make,
        variants=[Variant("entry", run)],
        expected=expected,
        moved_bytes=sum(lengths) * row_bytes + len(lengths) * state_bytes + more_bytes,
        flops=sum(_flops(length, sizes) for length in lengths if length > CHUNK),
        accept=within(TOLERANCE),
    )


def _flops(num_rows: int, sizes: DeltaSizes) -> int:
    """Products of chunks: scores of keys and of queries, the solved system with values, scores with
    updates; keys, queries and updates with the state.
    """
    key, value = sizes.key_dim, sizes.value_dim
    per_row = 2 * CHUNK * (2 * key + 2 * value) + 2 * 3 * key * value
    return num_rows * sizes.num_value_heads * per_row


def _inputs(lengths: Sequence[int], sizes: DeltaSizes, device: torch.device) -> tuple[Tensor, ...]:
    """Rows, gates, states and tails."""
    num, num_rows, heads = len(lengths), sum(lengths), sizes.num_value_heads
    return (
        drawn(device, num_rows, sizes.columns + sizes.value_columns),
        drawn(device, num_rows, 2 * heads),
        torch.randn(num, heads, sizes.key_dim, sizes.value_dim, device=device).div_(4),
        drawn(device, num, WIDTH - 1, sizes.columns),
    )


def drawn(device: torch.device, *shape: int) -> Tensor:
    return torch.randn(shape, device=device).to(torch.bfloat16)
