"""Mixtures of experts: a router chooses a few of many gated networks for every row.

Owns the checked entries, in the order in which a layer calls them. Must not know layers. A stack of
experts is one weight (`kernels.experts.stack`): [E 2 I, hidden] of gates and ups, each expert's I
gates before its I ups, and [E hidden, I] behind them, in every form that a product takes but the
doubled one. A pair is a row and one of its K experts: pair t K + j is row t with its expert j.

With `invariant` a row's result is bit for bit the same whatever rows stand beside it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.choose import uses_triton
from kernels.experts import reference
from kernels.experts.shapes import (
    DRAWN_TILES,
    GELU_TANH,
    Activation,
    Drawn,
    ExpertWeights,
    Routed,
    Routing,
    check_router,
    check_stacks,
)
from kernels.fp8 import Fp8Weight, Weight
from kernels.mxfp4 import Mxfp4Weight
from kernels.rms_norm import bias_norm, rms_norm

__all__ = [
    "DRAWN_TILES",
    "GELU_TANH",
    "Activation",
    "Drawn",
    "ExpertWeights",
    "Routed",
    "Routing",
    "check_on_card",
    "fault_on_card",
    "mix",
    "norm_route",
    "reads_placed",
    "rounds_rows",
    "route",
    "takes_shared",
]


def route(
    x: Tensor, weights: ExpertWeights, routing: Routing, *, invariant: bool = False
) -> Routed:
    """Choose and weigh the experts of each row of x [T, hidden]. Raises `ValueError`."""
    check_router(x, weights, routing)
    if uses_triton(x):
        from kernels.experts import router

        return router.route(x, weights, routing, invariant=invariant)
    return reference.route(x, weights, routing, invariant=invariant)


def norm_route(
    x: Tensor,
    norm: Tensor,
    eps: float,
    weights: ExpertWeights,
    routing: Routing,
    bias: Tensor | None = None,
    *,
    invariant: bool = False,
) -> tuple[Tensor, Routed]:
    """`rms_norm(x, norm, eps)` of x [T, hidden], and the experts of these rows as `route` chooses
    them. Few rows are one launch. With a `bias` [hidden] x becomes `x + bias` first. Raises
    `ValueError`.
    """
    check_router(x, weights, routing)
    if bias is not None:
        normed = bias_norm(x, bias, norm, eps)
        return normed, route(normed, weights, routing, invariant=invariant)
    if uses_triton(x) and not invariant:
        from kernels.experts import choose, router

        if x.shape[0] <= choose.JOINED_ROWS:
            return router.norm_route(x, norm, eps, weights, routing)
    normed = rms_norm(x, norm, eps)
    return normed, route(normed, weights, routing, invariant=invariant)


def takes_shared(
    x: Tensor,
    gate_up: Weight,
    down: Weight,
    weights: ExpertWeights,
    routing: Routing,
    *,
    invariant: bool = False,
) -> bool:
    """Whether `mix` of these rows can compute the shared expert of `weights` too, as one more pair
    of each row: of few rows on a card, where it is as wide as the others and in their form; not if
    `invariant`, because more rows would have it apart.
    """
    shared_up, shared_down = weights.shared_gate_up, weights.shared_down
    if not uses_triton(x) or invariant or shared_up is None or shared_down is None:
        return False
    from kernels.experts import choose, few

    num_pairs = x.shape[0] * routing.num_active
    given = x, gate_up, down, num_pairs, routing.num_experts
    is_few = choose.way(*given, invariant=False, with_shared=True) is choose.Way.FEW
    is_few = is_few and x.shape[0] <= choose.JOINED_ROWS
    if not is_few or weights.gate_up_bias is not None or weights.down_bias is not None:
        return False
    return few.takes_shared(gate_up, down, shared_up, shared_down)


def rounds_rows(
    x: Tensor, gate_up: Weight, down: Weight, routing: Routing, *, invariant: bool = False
) -> bool:
    """Whether `mix` rounds these rows to 8 bits, and what is between both products, one scale a
    row: more than a few on a card, by experts in 8 bits. A check must round the same rows.
    """
    if not uses_triton(x):
        return False
    from kernels.experts import choose

    num_pairs = x.shape[0] * routing.num_active
    given = x, gate_up, down, num_pairs, routing.num_experts
    return choose.way(*given, invariant=invariant).rounds


def mix(
    x: Tensor,
    gate_up: Weight,
    down: Weight,
    weights: ExpertWeights,
    routed: Routed,
    routing: Routing,
    activation: Activation,
    residual: Tensor,
    *,
    with_shared: bool = False,
    invariant: bool = False,
) -> Tensor:
    """`residual` plus the weighed sum of what each row's experts make of x, [T, hidden];
    `with_shared`, where it `takes_shared`, the shared expert among them.

    May overwrite `residual`: use the result only. The reference rounds gates, ups and each expert's
    output to x's dtype; the kernels round what is between both products, and the sum. Raises
    `ValueError`.
    """
    check_stacks(x, gate_up, down, routing.num_experts)
    if uses_triton(x):
        given = x, gate_up, down, weights, routed, routing, activation, residual
        return _on_card(*given, with_shared=with_shared, invariant=invariant)
    if with_shared:
        raise ValueError("the reference takes a shared expert apart")
    gated = reference.gate_up(
        x, gate_up, weights.gate_up_bias, routed, routing, activation, invariant=invariant
    )
    return reference.down(
        gated, down, weights.down_bias, routed, routing, residual, invariant=invariant
    )


def _on_card(
    x: Tensor,
    gate_up: Weight,
    down: Weight,
    weights: ExpertWeights,
    routed: Routed,
    routing: Routing,
    activation: Activation,
    residual: Tensor,
    *,
    with_shared: bool,
    invariant: bool,
) -> Tensor:
    """`mix` by the kernels that `choose` names."""
    from kernels.experts import choose, few, listed, many, mxfp4, rounded, wide

    width, num_pairs = down.shape[1], routed.experts.numel()
    count, (up_bias, down_bias) = routing.num_experts, (weights.gate_up_bias, weights.down_bias)
    given = x, gate_up, down, num_pairs, count
    way = choose.way(*given, invariant=invariant, with_shared=with_shared)
    if way is choose.Way.LISTED:
        gated = listed.gate_up(x, gate_up, up_bias, routed, width, activation)
        return listed.down(gated, down, down_bias, routed, residual)
    if way is choose.Way.ROUNDED_LISTED:
        gated = rounded.gate_up(x, gate_up, up_bias, routed, width, activation)
        return rounded.down(gated, down, down_bias, routed, residual)
    if way is choose.Way.FEW_MXFP4:
        assert isinstance(gate_up, Mxfp4Weight)
        assert isinstance(down, Mxfp4Weight)
        gated = mxfp4.gate_up(x, gate_up, up_bias, routed, width, activation)
        return mxfp4.down(gated, down, down_bias, routed, residual)
    if way is choose.Way.FEW:
        shared = None
        if with_shared:
            assert weights.shared_gate_up is not None
            assert weights.shared_down is not None
            shared = few.SharedExpert(weights.shared_gate_up, weights.shared_down, routed.shared)
        gated = few.gate_up(x, gate_up, up_bias, routed, width, activation, shared=shared)
        return few.down(gated, down, down_bias, routed, residual, shared=shared)
    if way is choose.Way.WIDENED:
        assert isinstance(gate_up, Mxfp4Weight)
        assert isinstance(down, Mxfp4Weight)
        parts = gate_up, down, weights, routed, count, activation, residual
        return many.mix_widened(x, *parts)
    if way is choose.Way.ROUNDED:
        assert isinstance(gate_up, Fp8Weight)
        assert isinstance(down, Fp8Weight)
        in_8_bits = gate_up, down, weights, routed, count, activation, residual
        return many.mix_rounded(x, *in_8_bits)
    if way is choose.Way.WIDE:
        assert isinstance(gate_up, Mxfp4Weight)
        assert isinstance(down, Mxfp4Weight)
        pairs = many.pair_list(routed.experts, count, wide.ROWS)
        gated = wide.gate_up(x, gate_up, up_bias, pairs, num_pairs, width, activation)
        return wide.down(gated, down, down_bias, pairs, routed, residual)
    pairs = many.pair_list(routed.experts, count)
    gated = many.gate_up(x, gate_up, up_bias, pairs, num_pairs, width, activation)
    return many.down(gated, down, down_bias, pairs, routed, residual)


def check_on_card(
    device: torch.device,
    gate_up: Weight,
    down: Weight,
    routing: Routing,
    activation: Activation,
    command: Sequence[str],
    *,
    has_bias: bool,
) -> str:
    """Find out whether experts of these sizes and this form are right on a CUDA device by the
    kernels in CUDA C++, and say it in one line. Before a check, and where they are not, Triton's
    kernels serve. `command` runs the module `kernels.experts.card_check`, which may break its
    context.
    """
    from kernels.experts import verdict
    from kernels.experts.card_check import CheckedMixture
    from kernels.experts.tiles import stored

    sizes = gate_up.shape[1], down.shape[1], routing.num_active
    mixture = CheckedMixture(*sizes, has_bias, activation, stored(gate_up).form)
    return verdict.check(device, mixture, command).text


def fault_on_card(device: torch.device) -> str:
    """What `check_on_card` has found wrong there; "" for nothing."""
    from kernels.experts import verdict

    return verdict.fault_on(device)


def reads_placed(gate_up: Weight, down: Weight, routing: Routing, dtype: torch.dtype) -> bool:
    """Whether rows of this dtype are multiplied by kernels that read placed experts alone
    (`kernels.mxfp4.place`), however many they are; after `check_on_card`.
    """
    from kernels.experts import choose

    return choose.reads_placed(gate_up, down, routing.num_active, routing.num_experts, dtype)
