"""Plain torch definition of a mixture; the CPU path, and what the kernels must agree with.

An expert's products are taken of the rows that chose it, so a single matrix is widened at a time.
"""

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses
from torch import Tensor

from kernels.by_rows import by_rows
from kernels.experts.shapes import (
    GELU_TANH,
    Activation,
    Drawn,
    ExpertWeights,
    Routed,
    Routing,
)
from kernels.experts.stack import expert_of
from kernels.fp8 import DualWeight, Weight
from kernels.linear import reference as products

_GROUP_BEST = 2
"""Experts of a group whose scores say how good it is."""


def route(
    x: Tensor, weights: ExpertWeights, routing: Routing, *, invariant: bool = False
) -> Routed:
    """See `kernels.experts.route`."""
    count = routing.num_experts
    logits = products.linear(x, weights.router, None, invariant)
    shared = torch.sigmoid(logits[:, count].float()) if logits.shape[1] > count else None
    logits = _drawn_or(logits[:, :count], weights.drawn)
    if weights.router_bias is not None:
        logits = logits + weights.router_bias
    wide = logits.float()
    if routing.is_sigmoid:
        scores = by_rows(torch.sigmoid, wide) if invariant else torch.sigmoid(wide)
    else:
        scores = torch.softmax(wide, -1)
    wanted = scores if weights.choice_bias is None else scores + weights.choice_bias
    experts = _among_groups(wanted, routing).topk(routing.num_active, dim=-1).indices
    chosen = scores.gather(1, experts)
    if routing.renormalises:
        chosen = chosen / chosen.sum(-1, keepdim=True)
    chosen = chosen * routing.scale
    if weights.scales is not None:
        chosen = chosen * weights.scales[experts]
    if weights.drawn is not None:
        kept = weights.drawn.kept[: x.shape[0]]
        kept.copy_(experts[: kept.shape[0]])
    return Routed(experts.int(), chosen, shared)


def _drawn_or(logits: Tensor, drawn: Drawn | None) -> Tensor:
    """Numbers that are drawn, if the state says so; other ones each time."""
    if drawn is None:
        return logits
    drawn.state[1] += 1
    if not int(drawn.state[0]):
        return logits
    generator = torch.Generator(logits.device).manual_seed(int(drawn.state[1]))
    return torch.rand(logits.shape, generator=generator, device=logits.device).to(logits.dtype)


def _among_groups(scores: Tensor, routing: Routing) -> Tensor:
    """The scores [T, E], minus infinity for experts of groups that lose."""
    if routing.num_groups == 1:
        return scores
    grouped = scores.unflatten(1, (routing.num_groups, -1))
    best: Tensor = grouped.topk(min(_GROUP_BEST, grouped.shape[2]), dim=-1).values.sum(-1)
    winners = best.topk(routing.num_active_groups, dim=-1).indices
    loses = torch.ones_like(best, dtype=torch.bool).scatter_(1, winners, value=False)
    left: Tensor = grouped.masked_fill(loses.unsqueeze(-1), -torch.inf)
    return left.flatten(1)


def activate(gate_up: Tensor, activation: Activation) -> Tensor:
    """What is made of gates and ups [T, 2 I], gates first: [T, I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    slope, shift, limit, cubic = activation
    if limit:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    if activation == GELU_TANH:
        gated = F.gelu(gate, approximate="tanh")
    elif slope == 1.0 and not cubic:
        gated = F.silu(gate)
    else:
        turned = gate + cubic * gate**3 if cubic else gate  # in float16 a cube may be infinite
        gated = gate * torch.sigmoid(slope * turned)
    out: Tensor = gated * (up + shift if shift else up)
    return out


def gate_up(
    x: Tensor,
    stack: Weight,
    bias: Tensor | None,
    routed: Routed,
    routing: Routing,
    activation: Activation,
    *,
    invariant: bool = False,
) -> Tensor:
    """See `kernels.experts.gate_up`."""
    width, active = stack.shape[0] // routing.num_experts // 2, routing.num_active
    out = x.new_empty(x.shape[0] * active, width)
    activated = partial(activate, activation=activation)
    for index, pairs in _pairs_of(routed):
        rows = _product(x[pairs // active], stack, bias, index, routing.num_experts, invariant)
        out[pairs] = by_rows(activated, rows) if invariant else activated(rows)
    return out


def down(
    gated: Tensor,
    stack: Weight,
    bias: Tensor | None,
    routed: Routed,
    routing: Routing,
    residual: Tensor,
    *,
    invariant: bool = False,
) -> Tensor:
    """See `kernels.experts.down`."""
    rows = residual.new_empty(gated.shape[0], residual.shape[1])
    for index, pairs in _pairs_of(routed):
        rows[pairs] = _product(gated[pairs], stack, bias, index, routing.num_experts, invariant)
    weighed: Tensor = rows.unflatten(0, routed.weights.shape).float()
    weighed = weighed * routed.weights.unsqueeze(-1)
    return residual + weighed.sum(1).to(residual.dtype)


def _pairs_of(routed: Routed) -> list[tuple[int, Tensor]]:
    """Each expert that a row chose, and its pairs of row and place, row K + place, int64."""
    experts = routed.experts.flatten()
    return [(index, (experts == index).nonzero().flatten()) for index in experts.unique().tolist()]


def _product(
    x: Tensor, stack: Weight, bias: Tensor | None, index: int, count: int, invariant: bool
) -> Tensor:
    if isinstance(stack, DualWeight):
        raise TypeError("experts have one form")
    own = None if bias is None else bias[index]
    return products.linear(x, expert_of(stack, index, count), own, invariant)
