"""Mixtures with all that their kernels read, drawn from their sizes, and the exact answers."""

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.experts import Activation, Routed, Routing, reference
from kernels.experts.stack import Stack
from kernels.fp8 import BLOCK, FP8, Fp8Weight, quantize_rows, quantize_weight
from kernels.mxfp4 import Mxfp4Weight, place
from tests.kernels.expert_cases import CLAMPED


class Mixture(NamedTuple):
    """Sizes of a mixture; its rows choose any experts, all the same, or never the first and the
    last.
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
    stacks: tuple[Stack, Stack]
    biases: tuple[Tensor, Tensor] | tuple[None, None]
    routed: Routed
    residual: Tensor


def drawn_inputs(mixture: Mixture, form: str, device: str = "cpu") -> Inputs:
    """Inputs drawn the same every time for stacks of this form, with gates of about 1. A few powers
    of MXFP4 are far from the others; "placed" are the same numbers as kernels in CUDA C++ read
    them.
    """
    generator = torch.Generator().manual_seed(mixture.num_rows + mixture.hidden)
    count, hidden, width = mixture.count, mixture.hidden, mixture.width

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).bfloat16().to(device)

    def stack(num_rows: int, depth: int) -> Stack:
        if form in {"mxfp4", "placed"}:
            bits = torch.randint(0, 256, (num_rows, depth // 2), generator=generator)
            powers = torch.randint(118, 124, (num_rows, depth // 32), generator=generator)
            powers[torch.rand(powers.shape, generator=generator) < 0.02] = 90
            pairs, powers = bits.to(torch.uint8).to(device), powers.to(torch.uint8).to(device)
            weight = Mxfp4Weight(pairs, powers)
            return place(weight) if form == "placed" else weight
        dense = torch.randn(num_rows, depth, generator=generator) * depth**-0.5
        # Some numbers are subnormal in e4m3.
        dense[torch.rand(dense.shape, generator=generator) < 0.1] *= 2**-12
        if form == "rows":
            return quantize_weight(dense.to(device))
        scales = torch.rand(-(-num_rows // BLOCK), -(-depth // BLOCK), generator=generator) + 0.5
        return Fp8Weight((dense * 32).to(FP8).to(device), (scales / 32).to(device))

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


def relative_error(found: Tensor, exact: Tensor) -> float:
    """The relative error by the norms of all numbers."""
    return float((found.cpu().double() - exact.double()).norm() / exact.double().norm())


def in_8_bits(x: Tensor) -> Tensor:
    """What rows say once they are rounded to 8 bits, one scale each; float32."""
    values, scales = quantize_rows(x.cpu())
    return values.float() * scales[:, None]


def exact_gated(mixture: Mixture, inputs: Inputs) -> Tensor:
    """In float32, of all rows and weights as they are."""
    routing, bias = Routing(mixture.count, mixture.active), inputs.biases[0]
    own = None if bias is None else bias.float()
    given = inputs.x.float(), inputs.stacks[0], own, inputs.routed, routing
    return reference.gate_up(*given, mixture.activation)


def exact_down(mixture: Mixture, inputs: Inputs, gated: Tensor) -> Tensor:
    """In float32, behind these gates times ups."""
    routing, bias = Routing(mixture.count, mixture.active), inputs.biases[1]
    own = None if bias is None else bias.float()
    residual = inputs.residual.float()
    return reference.down(gated.float(), inputs.stacks[1], own, inputs.routed, routing, residual)
