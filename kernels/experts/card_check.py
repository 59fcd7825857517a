"""A program: whether experts' kernels in CUDA C++ are right on a card, at a model's own sizes.

Owns the products, and what counts as wrong. Must not know what follows from a fault. A process of
its own, because a kernel may break its context: the input is JSON, a `CheckedMixture` and the
`device` by its number; the answer is JSON, one line that names the first fault, "" for none.
"""

import sys
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
import torch
from torch import Tensor

from kernels.experts import listed, many, reference, wide
from kernels.experts.shapes import Activation, Routed, Routing
from kernels.experts.stack import Stack
from kernels.fp8 import BLOCK, FP8, Fp8Weight
from kernels.linear.int4_check import fault_of
from kernels.mxfp4 import GROUP, Mxfp4Weight


class CheckedMixture(msgspec.Struct, frozen=True):
    """What a kernel is compiled for: the sizes of a mixture, and how its stacks are stored."""

    hidden: int
    width: int
    active: int
    has_bias: bool
    activation: Activation
    form: str = "mxfp4"


class _Asked(msgspec.Struct):
    mixture: CheckedMixture
    device: int


class MixtureInputs(NamedTuple):
    """The inputs of one layer: rows and what is added to them, stacks, biases, and choices."""

    x: Tensor
    residual: Tensor
    stacks: tuple[Stack, Stack]
    biases: tuple[Tensor, Tensor] | tuple[None, None]
    routed: Routed
    routing: Routing


Products = Callable[[CheckedMixture, MixtureInputs, int], tuple[Tensor, Tensor]]
"""Gates times ups of each pair, and the rows; the number says how many eights of pairs a tile has,
0: each pair is alone.
"""

_CASES: Final = ((8, 1), (8, 2), (64, 1), (64, 2))
_MXFP4_CASES: Final = ((1, 0), (3, 0), (8, 2), (64, 2), (200, wide.ROWS // 8))
"""Rows, and eights of pairs in a tile: together they launch each kernel of a model's steps. Of 64
rows experts have several tiles, which several programs share; of 200 tiles that are full and tiles
that are not.
"""

_EXPERTS: Final = 2
"""Times as many experts as a row chooses: the number is no constant of the kernel."""


def cases_of(form: str) -> tuple[tuple[int, int], ...]:
    """What is checked of such stacks."""
    return _MXFP4_CASES if form == "mxfp4" else _CASES


def by_kernel(mixture: CheckedMixture, inputs: MixtureInputs, eights: int) -> tuple[Tensor, Tensor]:
    """As a layer is served. Raises `RuntimeError` and `ValueError`."""
    from kernels.experts import mxfp4

    (gates, downs), (up_bias, down_bias) = inputs.stacks, inputs.biases
    if not eights:
        assert isinstance(gates, Mxfp4Weight)
        assert isinstance(downs, Mxfp4Weight)
        behind = up_bias, inputs.routed, mixture.width, mixture.activation
        gated = mxfp4.gate_up(inputs.x, gates, *behind)
        return gated, mxfp4.down(gated, downs, down_bias, inputs.routed, inputs.residual)
    count, form = inputs.routing.num_experts, mixture.form
    if 8 * eights == wide.ROWS:
        return _by_list(mixture, inputs)
    sizes = mixture.hidden, mixture.width, mixture.active, mixture.has_bias
    up = listed.ListedProduct(True, form, count, *sizes)
    down = listed.ListedProduct(False, form, count, sizes[1], sizes[0], *sizes[2:])
    first = inputs.x, gates, up_bias, inputs.routed, mixture.width, mixture.activation
    gated = listed.gate_up(*first, listed.tiles_of(up, eights))
    second = gated, downs, down_bias, inputs.routed, inputs.residual
    return gated, listed.down(*second, listed.tiles_of(down, eights))


def _by_list(mixture: CheckedMixture, inputs: MixtureInputs) -> tuple[Tensor, Tensor]:
    (gates, downs), (up_bias, down_bias), routed = inputs.stacks, inputs.biases, inputs.routed
    assert isinstance(gates, Tensor | Mxfp4Weight)
    assert isinstance(downs, Tensor | Mxfp4Weight)
    pairs = many.pair_list(routed.experts, inputs.routing.num_experts, wide.ROWS)
    first = inputs.x, gates, up_bias, pairs, routed.experts.numel(), mixture.width
    gated = wide.gate_up(*first, mixture.activation)
    out = wide.down(gated, downs, down_bias, pairs, routed, inputs.residual)
    return wide.natural(gated, gates), out


def first_fault(
    mixture: CheckedMixture, device: torch.device, products: Products = by_kernel
) -> str:
    """What is wrong with the first of its cases that is, in one line; "" if none is."""
    stacks = _stacks(mixture, device)
    for num_rows, eights in cases_of(mixture.form):
        try:
            fault = _fault(mixture, _drawn(mixture, stacks, num_rows, device), eights, products)
        except (RuntimeError, ValueError) as error:
            fault = str(error).partition("\n")[0] or type(error).__name__
        if fault:
            size = f"{mixture.hidden} x {mixture.width}, {num_rows} rows"
            return f"{size}{f' in tiles of {8 * eights}' if eights else ''}: {fault}"
    return ""


def _fault(mixture: CheckedMixture, inputs: MixtureInputs, eights: int, products: Products) -> str:
    gated, out = products(mixture, inputs, eights)
    (gates, downs), routed, routing = inputs.stacks, inputs.routed, inputs.routing
    up_bias, down_bias = [None if bias is None else bias.float() for bias in inputs.biases]
    wanted = reference.gate_up(
        inputs.x.float(), gates, up_bias, routed, routing, mixture.activation
    )
    # By the gates that were found: each product is judged alone.
    sums = reference.down(gated.float(), downs, down_bias, routed, routing, inputs.residual.float())
    for name, found, exact in (("gates and ups", gated, wanted), ("down", out, sums)):
        if fault := fault_of(found.cpu(), exact.cpu()):
            return f"{name}: {fault}"
    return ""


def _stacks(mixture: CheckedMixture, device: torch.device) -> tuple[Stack, Stack]:
    """Drawn stacks, the same every time: their scales make gates of about 1, of MXFP4 but for a
    few.
    """
    generator = torch.Generator(device).manual_seed(mixture.hidden)
    count, hidden, width = _EXPERTS * mixture.active, mixture.hidden, mixture.width

    def drawn(num_rows: int, depth: int) -> Stack:
        if mixture.form != "mxfp4":
            values = torch.empty(num_rows, depth, dtype=torch.bfloat16, device=device)
            values.normal_(0.0, 16.0, generator=generator)
            blocks = -(-num_rows // BLOCK), -(-depth // BLOCK)
            shape = blocks if mixture.form == "blocks" else (num_rows,)
            scales = torch.rand(shape, generator=generator, device=device) + 0.5
            return Fp8Weight(values.to(FP8), scales / (16 * depth**0.5))
        pairs = torch.empty(num_rows, depth // 2, dtype=torch.uint8, device=device)
        powers = torch.empty(num_rows, depth // GROUP, dtype=torch.uint8, device=device)
        pairs.random_(0, 256, generator=generator)
        powers.random_(117, 123, generator=generator)
        powers[:, ::17] = 90
        return Mxfp4Weight(pairs, powers)

    return drawn(count * 2 * width, hidden), drawn(count * hidden, width)


def _drawn(
    mixture: CheckedMixture,
    stacks: tuple[Stack, Stack],
    num_rows: int,
    device: torch.device,
) -> MixtureInputs:
    generator = torch.Generator(device).manual_seed(num_rows)
    count, hidden = _EXPERTS * mixture.active, mixture.hidden

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device).bfloat16()

    scores = torch.rand(num_rows, count, generator=generator, device=device)
    experts = scores.topk(mixture.active, dim=1).indices.int().contiguous()
    weights = torch.rand(num_rows, mixture.active, generator=generator, device=device)
    biases = normal(count, 2 * mixture.width), normal(count, hidden)
    return MixtureInputs(
        normal(num_rows, hidden),
        normal(num_rows, hidden),
        stacks,
        biases if mixture.has_bias else (None, None),
        Routed(experts, weights),
        Routing(count, mixture.active),
    )


def main() -> int:
    """Check what stdin names."""
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=_Asked)
    device = torch.device("cuda", asked.device)
    torch.cuda.set_device(device)
    with torch.inference_mode():
        fault = first_fault(asked.mixture, device)
    sys.stdout.buffer.write(msgspec.json.encode(fault))
    return 0


if __name__ == "__main__":
    sys.exit(main())
