"""Experts in MXFP4 in CUDA C++: the kernel's source on an emulated card, how products are cut up, and
on a card its answers.
"""

import re
import subprocess
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import torch
import triton
from torch import Tensor

from kernels.experts import Activation, Routed, Routing, many, mxfp4, reference
from kernels.experts.many import PairList
from kernels.experts.mxfp4 import Mxfp4Tiles
from kernels.mxfp4 import Mxfp4Weight
from kernels.recorder import record_launches
from tests.kernels import emulated_ampere, emulated_experts

KIB: Final = 1024
ARCHES: Final = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, 121: 99}
"""With KiB of shared memory."""
GPT_OSS: Final = 2880
CLAMPED: Final = Activation(1.702, 1.0, 1.5)
TOLERANCE: Final = 1e-2
"""What rounding leaves: of weights that are exact, gates times ups and sums in bfloat16."""

emulated = pytest.mark.skipif(emulated_ampere.COMPILER is None, reason="needs g++")


class Mixture(NamedTuple):
    """Sizes of a mixture, and which experts its rows choose: any, all the same, or never the first
    and the last.
    """

    num_rows: int
    hidden: int
    width: int
    count: int
    active: int
    choices: str = "any"
    has_bias: bool = True
    activation: Activation = CLAMPED


class Inputs(NamedTuple):
    """All on one device: normed rows, both stacks and their biases, choices, what is added to."""

    x: Tensor
    stacks: tuple[Mxfp4Weight, Mxfp4Weight]
    biases: tuple[Tensor, Tensor] | tuple[None, None]
    routed: Routed
    residual: Tensor


def _drawn(mixture: Mixture, device: str = "cpu") -> Inputs:
    """The same every time. Powers make gates of about 1, and a few are far from the others."""
    generator = torch.Generator().manual_seed(mixture.num_rows + mixture.hidden)
    count, hidden, width = mixture.count, mixture.hidden, mixture.width

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).bfloat16().to(device)

    def stack(num_rows: int, depth: int) -> Mxfp4Weight:
        bits = torch.randint(0, 256, (num_rows, depth // 2), generator=generator)
        powers = torch.randint(118, 124, (num_rows, depth // 32), generator=generator)
        powers[torch.rand(powers.shape, generator=generator) < 0.02] = 90
        return Mxfp4Weight(bits.to(torch.uint8).to(device), powers.to(torch.uint8).to(device))

    if mixture.choices == "same":
        experts = torch.arange(mixture.active).expand(mixture.num_rows, -1)
    else:
        first, last = (1, count - 1) if mixture.choices == "unchosen" else (0, count)
        scores = torch.rand(mixture.num_rows, last - first, generator=generator)
        experts = scores.topk(mixture.active, dim=1).indices + first
    weights = torch.rand(experts.shape, generator=generator)
    biases = normal(count, 2 * width), normal(count, hidden)
    return Inputs(
        normal(mixture.num_rows, hidden),
        (stack(count * 2 * width, hidden), stack(count * hidden, width)),
        biases if mixture.has_bias else (None, None),
        Routed(experts.int().contiguous().to(device), weights.to(device)),
        normal(mixture.num_rows, hidden),
    )


def _listed(experts: Tensor, count: int, rows: int) -> PairList:
    """As `many.pair_list`, with more tiles than there are; those beyond them would be seen."""
    tiles, own = [], []
    chosen = experts.flatten().tolist()
    for expert in range(count):
        pairs = [pair for pair, each in enumerate(chosen) if each == expert]
        for start in range(0, len(pairs), rows):
            tile = pairs[start : start + rows]
            tiles.append(tile + [len(chosen)] * (rows - len(tile)))
            own.append(expert)
    beyond = 3
    return PairList(
        torch.tensor([*tiles, *[[0] * rows] * beyond], dtype=torch.int32),
        torch.tensor([*own, *[count * 1000] * beyond], dtype=torch.int32),
        torch.tensor([len(tiles)], dtype=torch.int32),
        rows,
    )


def _error(found: Tensor, exact: Tensor) -> float:
    return float((found.cpu().double() - exact.double()).norm() / exact.double().norm())


def _exact_gated(mixture: Mixture, inputs: Inputs) -> Tensor:
    """In float32, of all rows and weights as they are."""
    routing, bias = Routing(mixture.count, mixture.active), inputs.biases[0]
    own = None if bias is None else bias.float()
    given = inputs.x.float(), inputs.stacks[0], own, inputs.routed, routing
    return reference.gate_up(*given, mixture.activation)


def _exact_down(mixture: Mixture, inputs: Inputs, gated: Tensor) -> Tensor:
    routing, bias = Routing(mixture.count, mixture.active), inputs.biases[1]
    own = None if bias is None else bias.float()
    residual = inputs.residual.float()
    return reference.down(gated.float(), inputs.stacks[1], own, inputs.routed, routing, residual)


EMULATED: Final = (
    (Mixture(1, 96, 64, 4, 2), Mxfp4Tiles(2, 1, 1, 2, 1)),
    (Mixture(3, 288, 32, 5, 3, has_bias=False), Mxfp4Tiles(2, 1, 1, 1, 1)),
    (Mixture(7, 320, 96, 5, 2, "unchosen"), Mxfp4Tiles(2, 2, 1, 2, 1)),
    (Mixture(21, 160, 64, 3, 2, "same", activation=Activation()), Mxfp4Tiles(2, 2, 2, 2, 1)),
    (Mixture(13, 1056, 32, 3, 1), Mxfp4Tiles(4, 1, 2, 3, 1)),
)
"""A step that has columns for one lane, units for one warp; tiles of one pair and full ones."""


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For the emulated kernel's libraries."""
    return tmp_path_factory.mktemp("experts")


@emulated
@pytest.mark.parametrize("is_listed", [False, True])
@pytest.mark.parametrize(("mixture", "tiles"), EMULATED, ids=str)
def test_its_source_multiplies_right(
    mixture: Mixture, tiles: Mxfp4Tiles, room: Path, *, is_listed: bool
) -> None:
    """With copies as early and as late as they may be, from both ends, by few programs and by more
    than there are units: the same bits.
    """
    inputs = _drawn(mixture)
    listed = _listed(inputs.routed.experts, mixture.count, tiles.rows) if is_listed else None
    if not is_listed:
        tiles = tiles._replace(eights=1)
    exact = _exact_gated(mixture, inputs)
    wanted = _exact_down(mixture, inputs, exact.bfloat16())
    answers = []
    for grid, is_eager, is_back in ((3, False, False), (500, True, True), (1, False, True)):
        card = emulated_experts.Card(room, grid=grid, is_eager=is_eager, is_back=is_back)
        given = emulated_experts.Product(
            inputs.x, inputs.stacks[0], inputs.biases[0], inputs.routed, listed, mixture.count
        )
        gated = emulated_experts.gate_up(card, given, mixture.activation, tiles)
        assert _error(gated, exact) < TOLERANCE
        given = given._replace(
            x=exact.bfloat16(), stack=inputs.stacks[1], bias=inputs.biases[1]
        )
        out = emulated_experts.down(card, given, inputs.residual, tiles)
        if is_listed:
            parts = out.unflatten(0, inputs.routed.weights.shape)
            out = (parts * inputs.routed.weights.unsqueeze(-1)).sum(1) + inputs.residual
        assert _error(out, wanted) < TOLERANCE
        answers.append((gated, out))
    assert all(torch.equal(one, other) for each in answers for one, other in zip(each, answers[0]))
