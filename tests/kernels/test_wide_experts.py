"""Experts of many pairs in CUDA C++: the source on an emulated card, how products are cut up, and
on a Hopper card the answers.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest
import torch
from torch import Tensor

from kernels.experts import Activation, choose, many, wide
from kernels.experts.choose import Way
from kernels.experts.wide import WideProduct
from kernels.mxfp4 import Mxfp4Weight
from kernels.recorder import record_launches
from tests.kernels import emulated_ampere, emulated_wide
from tests.kernels.drawn_mixtures import (
    Inputs,
    Mixture,
    drawn_inputs,
    exact_down,
    exact_gated,
    relative_error,
)

TOLERANCE: Final = 4e-3
"""The tolerance for one rounding to bfloat16."""

KIB: Final = 1024

EMULATED: Final = (
    (Mixture(60, 192, 128, 5, 2, "unchosen"), 64),
    (Mixture(9, 320, 192, 2, 1, "same"), 32),
    (Mixture(110, 128, 64, 2, 1, "same", has_bias=False, activation=Activation()), 128),
)
"""Mixtures and pairs of a tile: tiles that are full and nearly empty, widths that programs do not
divide."""

emulated = pytest.mark.skipif(emulated_ampere.COMPILER is None, reason="needs g++")


class Both:
    """The two products of a mixture on an emulated card."""

    def __init__(self, mixture: Mixture, rows: int, room: Path) -> None:
        self.mixture, self.room = mixture, room
        self.inputs: Inputs = drawn_inputs(mixture, "placed")
        self.listed = many.pair_list(self.inputs.routed.experts, mixture.count, rows)
        sizes = mixture.active, mixture.has_bias, rows
        self.up = WideProduct(True, mixture.hidden, mixture.width, *sizes)
        self.down = WideProduct(False, mixture.width, mixture.hidden, *sizes)

    def gated(self, **how: int) -> Tensor:
        """The gated numbers as `wide.gate_up` stores them."""
        given = wide.turned(self.inputs.x), self._stack(0), self.inputs.biases[0], self.listed
        behind = self.inputs.routed.experts.numel(), self.mixture.activation, self.room
        return emulated_wide.run(self.up, *given, *behind, **how)

    def products(self, gated: Tensor, **how: int) -> Tensor:
        """The products that `wide.down` sums."""
        given = gated, self._stack(1), self.inputs.biases[1], self.listed
        return emulated_wide.run(self.down, *given, len(gated), None, self.room, **how)

    def _stack(self, number: int) -> Mxfp4Weight:
        stack = self.inputs.stacks[number]
        assert isinstance(stack, Mxfp4Weight)
        return stack

    def off(self, gated: Tensor, products: Tensor) -> tuple[float, float]:
        """Relative errors of both."""
        natural = wide.natural(gated)
        weights = self.inputs.routed.weights
        parts = products.float().unflatten(0, weights.shape) * weights.unsqueeze(-1)
        out = parts.sum(1) + self.inputs.residual.float()
        return (
            relative_error(natural, exact_gated(self.mixture, self.inputs)),
            relative_error(out, exact_down(self.mixture, self.inputs, natural)),
        )


@emulated
@pytest.mark.parametrize(("mixture", "rows"), EMULATED, ids=str)
def test_products_are_as_defined(mixture: Mixture, rows: int, tmp_path: Path) -> None:
    """Products are as defined with copies as early and as late as they may be, threads from both
    ends, by few programs and by many: the same bits.
    """
    both = Both(mixture, rows, tmp_path)
    answers = []
    for grid, is_late in ((2, True), (7, False)):
        how = {"grid": grid, "is_eager": not is_late, "is_back": not is_late}
        gated = both.gated(**how)
        products = both.products(gated, **how)
        assert max(both.off(gated, products)) < TOLERANCE
        answers.append((gated, products))
    for one, other in zip(*answers, strict=True):
        assert torch.equal(one, other)


MISTAKES: Final = (
    ("arrive_behind_copies(full + 8 * s)", "arrive(full + 8 * s)"),
    ("if (n >= STAGES) wait(empty", "if (n > STAGES) wait(empty"),
    ("if (turn >= 2) wait(unscaled", "if (turn > 2) wait(unscaled"),
    ("k == 0 && step > 0 && at.is_first", "k == 3 && at.is_first"),
    ("if (k == 1) load_words(now", "if (k == 2) load_words(now"),
    ("natural = UP ? own * OWN / 2 + gate_at(place)", "natural = UP ? own * OWN / 2 + place"),
    ("pair < num_pairs ? UP", "true ? UP"),
    ("pair < num_pairs) *(uint4*)", "true) *(uint4*)"),
    ("turn / 2 & 1", "turn & 1"),
    ("num_rows - row - OUT", "FEATURES"),
    ("chunk ^ (line % 8)", "chunk"),
    ("if (16 * i < count) copy16", "if (16 * i < count - 16) copy16"),
)


@emulated
@pytest.mark.parametrize(("right", "wrong"), MISTAKES)
def test_an_emulated_card_sees_mistakes(
    right: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An emulated card sees mistakes in how the kernel waits, copies, and finds its places: a
    fault, or a wrong answer.
    """
    text = wide.wide_experts.path.read_text()
    assert right in text
    source = tmp_path / "wide.cu"
    source.write_text(text.replace(right, wrong))
    monkeypatch.setattr(wide.wide_experts, "path", source)
    both = Both(Mixture(40, 320, 192, 3, 1), 32, tmp_path)
    is_right = []
    for is_late in (True, False):
        if not all(is_right):
            break
        how = {"grid": 1, "is_eager": not is_late, "is_back": not is_late}
        try:
            gated = both.gated(**how)
            is_right.append(max(both.off(gated, both.products(gated, **how))) < TOLERANCE)
        except AssertionError:
            is_right.append(False)
    assert not all(is_right)


def test_what_serves_fits_into_an_h200() -> None:
    """gpt-oss-20b, with several tiles of columns on their way."""
    for is_up in (True, False):
        product = WideProduct(is_up, 2880, 2880, 4, True, wide.ROWS)
        assert product.stages > 4
        assert product.shared_bytes <= 227 * KIB


def test_hopper_serves_what_it_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond what programs list themselves; where it can be compiled, and the card was right."""
    monkeypatch.setattr(wide, "runs_on", lambda _: True)

    def way(form: str, num_pairs: int, *, in_cuda: bool = True, invariant: bool = False) -> Way:
        inputs = drawn_inputs(Mixture(1, 256, 128, 8, 2), form)
        given = inputs.x.expand(num_pairs // 2, -1), *inputs.stacks, num_pairs, 8
        return choose.way(*given, invariant=invariant, in_cuda=in_cuda)

    assert way("mxfp4", 130) is Way.WIDE
    assert way("mxfp4", 290, in_cuda=False) is Way.WIDENED
    assert way("mxfp4", 130, invariant=True) is Way.FEW
    assert way("rows", 60) is Way.MANY
    monkeypatch.setattr(wide, "runs_on", lambda _: False)
    assert way("mxfp4", 130) is Way.MANY


def test_on_a_pretended_device_its_compilation_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a pretended device the compilation is recorded once for all numbers of rows and
    experts.
    """
    monkeypatch.setattr(wide, "turned", lambda x: x)
    meta = torch.device("meta")
    with record_launches() as recorded:
        for num_rows, count in ((40, 8), (50, 12)):
            inputs = drawn_inputs(Mixture(num_rows, 256, 128, count, 2), "mxfp4")
            experts, stack = inputs.routed.experts.to(meta), inputs.stacks[0]
            assert isinstance(stack, Mxfp4Weight)
            own = Mxfp4Weight(stack.pairs.to(meta), stack.powers.to(meta))
            listed = many.PairList(experts, experts, experts, wide.ROWS)
            sizes = listed, experts.numel(), 128, Activation()
            gated = wide.gate_up(inputs.x.to(meta), own, None, *sizes)
            assert gated.shape == (2 * num_rows, 128)
    (kernel,) = recorded.values()
    assert kernel.name == "wide_experts"


_IS_HOPPER: Final = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)

ON_CARD: Final = (
    *(Mixture(num_rows, 512, 256, 6, 3) for num_rows in (1, 33, 64, 100, 257, 600)),
    Mixture(300, 512, 512, 5, 2, "unchosen"),
    Mixture(200, 768, 256, 4, 2, "same"),
    Mixture(70, 768, 256, 4, 2, "same", has_bias=False, activation=Activation()),
    Mixture(600, 2048, 768, 64, 8),
)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.gpu
@pytest.mark.skipif(not _IS_HOPPER or find_spec("cuda") is None, reason="needs a Hopper card")
@pytest.mark.parametrize("mixture", ON_CARD, ids=str)
def test_products_on_a_card(mixture: Mixture) -> None:
    """Against float32, in tiles of all sizes; each answer twice."""
    host, card = drawn_inputs(mixture, "mxfp4"), drawn_inputs(mixture, "placed", "cuda")
    gates, downs = card.stacks
    assert isinstance(gates, Mxfp4Weight)
    assert isinstance(downs, Mxfp4Weight)
    exact = exact_gated(mixture, host)
    for rows in (wide.ROWS, 64, 32):
        listed = many.pair_list(card.routed.experts, mixture.count, rows)
        sizes = listed, exact.shape[0], mixture.width, mixture.activation
        answers = []
        for _ in range(2):
            gated = wide.gate_up(card.x, gates, card.biases[0], *sizes)
            behind = card.biases[1], listed, card.routed, card.residual
            answers.append((gated, wide.down(gated, downs, *behind)))
        natural = wide.natural(answers[0][0]).cpu()
        assert relative_error(natural, exact) < TOLERANCE
        assert relative_error(answers[0][1], exact_down(mixture, host, natural)) < TOLERANCE
        for one, other in zip(*answers, strict=True):
            assert torch.equal(one, other)
