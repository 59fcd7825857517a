"""A program: whether experts in MXFP4 in CUDA C++ are right on a card, at a model's own sizes.

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

from kernels.experts import reference
from kernels.experts.shapes import Activation, Routed, Routing
from kernels.linear.int4_check import fault_of
from kernels.mxfp4 import GROUP, Mxfp4Weight


class CheckedMixture(msgspec.Struct, frozen=True):
    """The sizes of a mixture that a kernel is compiled for."""

    hidden: int
    width: int
    active: int
    has_bias: bool
    activation: Activation


class _Asked(msgspec.Struct):
    mixture: CheckedMixture
    device: int


class MixtureInputs(NamedTuple):
    """The inputs of one layer: rows and what is added to them, stacks, biases, and choices."""

    x: Tensor
    residual: Tensor
    stacks: tuple[Mxfp4Weight, Mxfp4Weight]
    biases: tuple[Tensor, Tensor] | tuple[None, None]
    routed: Routed
    routing: Routing


Products = Callable[[CheckedMixture, MixtureInputs, bool], tuple[Tensor, Tensor]]
"""Gates times ups of each pair, and the rows; the flag is for a list of pairs."""

CASES: Final = ((1, False), (3, False), (8, True), (64, True))
"""Rows, and whether a list has their pairs: together they launch each kernel of a model's steps."""

_EXPERTS: Final = 2
"""Times as many experts as a row chooses: the number is no constant of the kernel."""


def by_kernel(
    mixture: CheckedMixture, inputs: MixtureInputs, is_listed: bool
) -> tuple[Tensor, Tensor]:
    """As a layer is served. Raises `RuntimeError` and `ValueError`."""
    from kernels.choose import shared_bytes
    from kernels.experts import many, mxfp4

    x, routed, listed = inputs.x, inputs.routed, None
    if is_listed:
        room = shared_bytes(x.device)
        rows = mxfp4.list_rows(x.shape[0], mixture.hidden, mixture.width, room)
        listed = many.pair_list(routed.experts, inputs.routing.num_experts, rows)
    gates, downs = inputs.stacks
    up_bias, down_bias = inputs.biases
    gated = mxfp4.gate_up(x, gates, up_bias, routed, listed, mixture.width, mixture.activation)
    return gated, mxfp4.down(gated, downs, down_bias, routed, listed, inputs.residual)


def first_fault(
    mixture: CheckedMixture, device: torch.device, products: Products = by_kernel
) -> str:
    """What is wrong with the first of `CASES` that is, in one line; "" if none is."""
    stacks = _stacks(mixture, device)
    for num_rows, is_listed in CASES:
        try:
            fault = _fault(mixture, _drawn(mixture, stacks, num_rows, device), is_listed, products)
        except (RuntimeError, ValueError) as error:
            fault = str(error).partition("\n")[0] or type(error).__name__
        if fault:
            size = f"{mixture.hidden} x {mixture.width}, {num_rows} rows"
            return f"{size}{' of a list' if is_listed else ''}: {fault}"
    return ""


def _fault(
    mixture: CheckedMixture, inputs: MixtureInputs, is_listed: bool, products: Products
) -> str:
    gated, out = products(mixture, inputs, is_listed)
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


def _stacks(mixture: CheckedMixture, device: torch.device) -> tuple[Mxfp4Weight, Mxfp4Weight]:
    """Drawn stacks, the same every time: their powers make gates of about 1, but for a few."""
    generator = torch.Generator(device).manual_seed(mixture.hidden)
    count, hidden, width = _EXPERTS * mixture.active, mixture.hidden, mixture.width

    def drawn(num_rows: int, depth: int) -> Mxfp4Weight:
        pairs = torch.empty(num_rows, depth // 2, dtype=torch.uint8, device=device)
        powers = torch.empty(num_rows, depth // GROUP, dtype=torch.uint8, device=device)
        pairs.random_(0, 256, generator=generator)
        powers.random_(117, 123, generator=generator)
        powers[:, ::17] = 90
        return Mxfp4Weight(pairs, powers)

    return drawn(count * 2 * width, hidden), drawn(count * hidden, width)


def _drawn(
    mixture: CheckedMixture,
    stacks: tuple[Mxfp4Weight, Mxfp4Weight],
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
