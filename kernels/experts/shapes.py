"""A mixture of experts: how a row's are chosen, what they apply, and the tensors of a layer.

Owns the shapes and the check that they fit together. Must not know how the layer is computed.
"""

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import torch
from torch import Tensor

from kernels.fp8 import Weight


class Routing(NamedTuple):
    """How a row's experts are chosen and weighed.

    A router gives each of `num_experts` a score: the softmax over all, or with `is_sigmoid` the
    sigmoid of each. The `num_active` best are chosen, by the scores plus a bias where there is one.
    With groups, experts that follow each other are a group, and only those of the
    `num_active_groups` best compete; a group is as good as its two best experts together. The
    weights are the scores, which with `renormalises` are divided by their sum, times `scale`.
    """

    num_experts: int
    num_active: int
    is_sigmoid: bool = False
    num_groups: int = 1
    num_active_groups: int = 1
    renormalises: bool = True
    scale: float = 1.0


class Activation(NamedTuple):
    """What an expert makes of a gate g and its up u: `g sigmoid(slope (g + cubic g^3)) (u +
    shift)`, with g at most `limit` and u between -`limit` and `limit` unless that is 0. The
    defaults are SwiGLU, `GELU_TANH` is the gelu that is approximated by tanh.
    """

    slope: float = 1.0
    shift: float = 0.0
    limit: float = 0.0
    cubic: float = 0.0


GELU_TANH: Final = Activation(slope=2 * (2 / math.pi) ** 0.5, cubic=0.044715)
"""gelu(g) is about g (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))) / 2, and (1 + tanh(x)) / 2 is
sigmoid(2 x).
"""


class Drawn(NamedTuple):
    """What lets a router draw its experts instead of reading them off its products: uniform, and
    independent between rows, layers and steps. Only drawn weights have it, to measure speed:
    their rows choose alike, and so too few experts.

    `state` int32 [1 + TILES]: whether it draws now, which no graph has to be captured anew for,
    and how often each tile of rows has drawn; all layers share it. `kept` int32 [rows, K] are the
    experts that the last launches chose, those of later rows left out.
    """

    state: Tensor
    kept: Tensor


DRAWN_TILES: Final = 4096
"""The tiles for which `Drawn.state` has numbers. Later tiles begin with the first again."""


class ExpertWeights(NamedTuple):
    """A mixture's weights beside the experts' two stacks; E experts, I gates each.

    `router` [E, hidden], or [E + 1, hidden] with the row that gates the shared expert, and
    `router_bias` [E], which is added to the products, are in the rows' dtype; `choice_bias` float32
    [E] is added to scores only to choose. `gate_up_bias` [E, 2 I] and `down_bias` [E, hidden].
    `shared_gate_up` [2 S, hidden] and `shared_down` [hidden, S] are an expert of S gates that every
    row goes through. With `drawn` a router can draw. The weights of expert e are multiplied by
    `scales` float32 [E].
    """

    router: Tensor
    router_bias: Tensor | None = None
    choice_bias: Tensor | None = None
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    shared_gate_up: Weight | None = None
    shared_down: Weight | None = None
    drawn: Drawn | None = None
    scales: Tensor | None = None

    def tensors(self) -> Iterator[Weight]:
        """The weights that there are."""
        return (each for each in self if each is not None and not isinstance(each, Drawn))


class Routed(NamedTuple):
    """What a router says of T rows: `experts` int32 [T, K], each row's K experts, with their
    `weights` float32 [T, K]; and `shared` float32 [T], the weight of the shared expert, if that has
    a gate.
    """

    experts: Tensor
    weights: Tensor
    shared: Tensor | None = None


def check_router(x: Tensor, weights: ExpertWeights, routing: Routing) -> None:
    """Raises `ValueError` for what does not fit together."""
    router, (count, active) = weights.router, routing[:2]
    has_gate = router.shape[0] - count
    if router.ndim != 2 or router.shape[1] != x.shape[1] or has_gate not in {0, 1}:
        raise ValueError(f"x {tuple(x.shape)}, router {tuple(router.shape)} of {count} experts")
    if router.dtype != x.dtype:
        raise ValueError(f"x {x.dtype}, router {router.dtype}")
    if not 0 < active <= count or count % routing.num_groups:
        raise ValueError(f"{active} of {count} experts in {routing.num_groups} groups")
    room = count // routing.num_groups * routing.num_active_groups
    if not active <= room <= count:
        raise ValueError(f"{active} experts of {routing.num_active_groups} groups of {room} in all")
    for bias, dtype in (
        (weights.router_bias, x.dtype),
        (weights.choice_bias, torch.float32),
        (weights.scales, torch.float32),
    ):
        if bias is not None and (bias.shape != (count,) or bias.dtype != dtype):
            raise ValueError(f"bias {tuple(bias.shape)} {bias.dtype} of {count} experts")


def check_stacks(x: Tensor, gate_up: Weight, down: Weight, count: int) -> None:
    """Raises `ValueError` for stacks of `count` experts that do not fit x [T, hidden]."""
    hidden, width = x.shape[1], down.shape[1]
    wanted = (2 * width * count, hidden), (hidden * count, width)
    if (tuple(gate_up.shape), tuple(down.shape)) != wanted:
        found = tuple(gate_up.shape), tuple(down.shape)
        raise ValueError(f"stacks {found} of {count} experts, not {wanted}")
