"""Mixtures of experts: a router chooses a few of many gated networks for every row.

Owns the checked entries, in the order in which a layer calls them. Must not know layers. A stack of
experts is one weight (`kernels.experts.stack`): [E 2 I, hidden] of gates and ups, each expert's I
gates before its I ups, and [E hidden, I] behind them, in every form that a product takes but the
doubled one. A pair is a row and one of its K experts: pair t K + j is row t with its expert j.

With `invariant` a row's result is bit for bit the same whatever rows stand beside it.
"""

from typing import Final

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
from kernels.fp8 import Weight

_PAIRS_OF_EXPERT: Final = 4
_WIDE_PAIRS_OF_EXPERT: Final = 2
"""A list is built where pairs share experts: of more pairs than a fourth of the experts, or than
half where these are in 16 bits. On an H200 8 rows of 128 experts in bfloat16 take 124 us without a
list and 128 with one, in 8 bits 99 and 93.
"""

__all__ = [
    "DRAWN_TILES",
    "GELU_TANH",
    "Activation",
    "Drawn",
    "ExpertWeights",
    "Routed",
    "Routing",
    "mix",
    "route",
]


def route(
    x: Tensor, weights: ExpertWeights, routing: Routing, *, invariant: bool = False
) -> Routed:
    """Choose and weigh the experts of each row of x [T, hidden]. Raises `ValueError`."""
    check_router(x, weights, routing)
    if uses_triton(x):
        from kernels.experts import router

        return router.route(x, weights, routing)
    return reference.route(x, weights, routing, invariant=invariant)


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
    invariant: bool = False,
) -> Tensor:
    """`residual` plus the weighed sum of what each row's experts make of x, [T, hidden].

    May overwrite `residual`: use the result only. The reference rounds gates, ups and each expert's
    output to x's dtype; the kernels round what is between both products, and the sum. Raises
    `ValueError`.
    """
    check_stacks(x, gate_up, down, routing.num_experts)
    if uses_triton(x):
        given = x, gate_up, down, weights, routed, routing, activation, residual
        return _on_card(*given, invariant=invariant)
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
    invariant: bool,
) -> Tensor:
    """`mix` by the kernels for few rows, or by those for many."""
    from kernels.experts import few, many

    width, num_pairs = down.shape[1], routed.experts.numel()
    biases = weights.gate_up_bias, weights.down_bias
    share = _WIDE_PAIRS_OF_EXPERT if isinstance(gate_up, Tensor) else _PAIRS_OF_EXPERT
    if invariant or num_pairs * share <= routing.num_experts:
        gated = few.gate_up(x, gate_up, biases[0], routed, width, activation)
        return few.down(gated, down, biases[1], routed, residual)
    listed = many.pair_list(routed.experts, routing.num_experts)
    gated = many.gate_up(x, gate_up, biases[0], listed, num_pairs, width, activation)
    return many.down(gated, down, biases[1], listed, routed, residual)
