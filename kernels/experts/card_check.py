"""A program: whether experts' kernels in CUDA C++ are right on a card, at a model's own sizes.

Owns the products, and what counts as wrong. Must not know what follows from a fault. A process of
its own, because a kernel may break its context: the input is JSON, a `CheckedMixture` and the
`device` by its number; the answer is JSON, one line that names the first fault, "" for none.
"""

import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec
import torch
from torch import Tensor

from kernels.experts import listed, many, reference, rounded, wide
from kernels.experts.shapes import Activation, Routed, Routing
from kernels.experts.stack import Stack
from kernels.fp8 import BLOCK, FP8, Fp8Weight
from kernels.fp8.reference import quantize_rows
from kernels.linear.int4_check import fault_of
from kernels.mxfp4 import GROUP, Mxfp4Weight, place


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


class CheckedKernel(StrEnum):
    """What multiplies: a program a pair, or programs that count pairs, some of rows that they
    round, or that take them by a list.
    """

    ALONE = "each pair alone"
    COUNTED = "counted"
    ROUNDED = "counted and rounded"
    BY_LIST = "by a list"


class CheckedCase(NamedTuple):
    """A product of the check: a number of rows, by one of the kernels."""

    num_rows: int
    kernel: CheckedKernel = CheckedKernel.COUNTED

    def __str__(self) -> str:
        return f"{self.num_rows} rows, {self.kernel}"


Products = Callable[[CheckedMixture, MixtureInputs, CheckedCase], tuple[Tensor, Tensor]]
"""Gates times ups of each pair, and the rows."""

_CASES: Final = (
    CheckedCase(8),
    CheckedCase(64),
    *(CheckedCase(rows, CheckedKernel.ROUNDED) for rows in (8, 64, 300)),
)
_MXFP4_CASES: Final = (
    *(CheckedCase(rows, CheckedKernel.ALONE) for rows in (1, 3)),
    CheckedCase(8),
    CheckedCase(64),
    CheckedCase(200, CheckedKernel.BY_LIST),
)
"""Together they launch each kernel of a model's steps. Of 64 rows experts have several tiles, which
several programs share; of 200 and 300 tiles that are full and tiles that are not.
"""

_EXPERTS: Final = 2
"""Times as many experts as a row chooses: the number is no constant of the kernel."""


def cases_of(form: str) -> tuple[CheckedCase, ...]:
    """What is checked of such stacks."""
    return _MXFP4_CASES if form == "mxfp4" else _CASES


def by_kernel(
    mixture: CheckedMixture, inputs: MixtureInputs, case: CheckedCase
) -> tuple[Tensor, Tensor]:
    """As a layer is served. Raises `RuntimeError` and `ValueError`."""
    from kernels.experts import mxfp4

    (gates, downs), (up_bias, down_bias) = inputs.stacks, inputs.biases
    first = inputs.x, gates, up_bias, inputs.routed, mixture.width, mixture.activation
    if case.kernel is CheckedKernel.ALONE:
        assert isinstance(gates, Mxfp4Weight)
        assert isinstance(downs, Mxfp4Weight)
        gated = mxfp4.gate_up(inputs.x, gates, *first[2:])
        return gated, mxfp4.down(gated, downs, down_bias, inputs.routed, inputs.residual)
    if case.kernel is CheckedKernel.BY_LIST:
        return _by_list(mixture, inputs)
    counting = rounded if case.kernel is CheckedKernel.ROUNDED else listed
    gated = counting.gate_up(*first)
    return gated, counting.down(gated, downs, down_bias, inputs.routed, inputs.residual)


def _by_list(mixture: CheckedMixture, inputs: MixtureInputs) -> tuple[Tensor, Tensor]:
    (gates, downs), (up_bias, down_bias), routed = inputs.stacks, inputs.biases, inputs.routed
    assert isinstance(gates, Mxfp4Weight)
    assert isinstance(downs, Mxfp4Weight)
    pairs = many.pair_list(routed.experts, inputs.routing.num_experts, wide.ROWS)
    first = inputs.x, gates, up_bias, pairs, routed.experts.numel(), mixture.width
    gated = wide.gate_up(*first, mixture.activation)
    out = wide.down(gated, downs, down_bias, pairs, routed, inputs.residual)
    return wide.natural(gated), out


def first_fault(
    mixture: CheckedMixture, device: torch.device, products: Products = by_kernel
) -> str:
    """What is wrong with the first of its cases that is, in one line; "" if none is."""
    stacks = _stacks(mixture, device)
    for case in cases_of(mixture.form):
        try:
            fault = _fault(mixture, _drawn(mixture, stacks, case.num_rows, device), case, products)
        except (RuntimeError, ValueError) as error:
            fault = str(error).partition("\n")[0] or type(error).__name__
        if fault:
            return f"{mixture.hidden} x {mixture.width}, {case}: {fault}"
    return ""


def as_read(x: Tensor, case: CheckedCase) -> Tensor:
    """Rows as the products of a case read them, float32."""
    if case.kernel is not CheckedKernel.ROUNDED:
        return x.float()
    # On the host: on a card torch multiplies by 1 / 448, and a row whose largest number is 3.5 has
    # then another scale than 2^-7. A sixteenth of its numbers are in the middle between two.
    values, scales = quantize_rows(x.cpu(), None, 0.0)
    return (values.float() * scales[:, None]).to(x.device)


def _fault(
    mixture: CheckedMixture, inputs: MixtureInputs, case: CheckedCase, products: Products
) -> str:
    gated, out = products(mixture, inputs, case)
    (gates, downs), routed, routing = inputs.stacks, inputs.routed, inputs.routing
    up_bias, down_bias = [None if bias is None else bias.float() for bias in inputs.biases]
    x, read = as_read(inputs.x, case), as_read(gated, case)
    wanted = reference.gate_up(x, gates, up_bias, routed, routing, mixture.activation)
    # By the gates that were found: each product is judged alone.
    sums = reference.down(read, downs, down_bias, routed, routing, inputs.residual.float())
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
        return place(Mxfp4Weight(pairs, powers))

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
