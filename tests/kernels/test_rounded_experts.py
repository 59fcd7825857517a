"""Experts in 8 bits of rows that are rounded, in CUDA C++ for Hopper: the source on an emulated
card, how products are cut up, and on a card the answers.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest
import torch
from torch import Tensor

from kernels.cuda import hopper
from kernels.experts import Activation, Routed, choose, rounded, row_tiles
from kernels.experts.choose import Way
from kernels.experts.counted import CountedProduct
from kernels.experts.rounded import RoundedTiles
from kernels.fp8 import Fp8Weight
from kernels.recorder import record_launches
from tests.fakes.pairs import each_once
from tests.kernels import emulated_ampere, emulated_experts
from tests.kernels.drawn_mixtures import (
    Inputs,
    Mixture,
    drawn_inputs,
    exact_down,
    exact_gated,
    in_8_bits,
    relative_error,
)
from tests.kernels.expert_cases import CLAMPED

FORMS: Final = ("rows", "blocks")
MOST: Final = 416
"""Rows that it serves at most, if each chooses two of 16 experts."""
TOLERANCE: Final = 5e-3
"""What rounding to bfloat16 leaves, and sums of fewer bits."""

emulated = pytest.mark.skipif(emulated_ampere.COMPILER is None, reason="needs g++")


def _wanted(mixture: Mixture, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Gates times ups, float32, and what is down behind them in bfloat16: of rounded rows."""
    gated = exact_gated(mixture, inputs._replace(x=in_8_bits(inputs.x)))
    return gated, exact_down(mixture, inputs, in_8_bits(gated.bfloat16()))


EMULATED: Final = (
    (Mixture(3, 256, 128, 5, 2, has_bias=False), RoundedTiles(2, 2, 8, 8)),
    (Mixture(7, 384, 256, 5, 3, "unchosen", activation=Activation()), RoundedTiles(1, 7, 16, 16)),
    (Mixture(21, 384, 128, 3, 2, "same"), RoundedTiles(2, 3, 16, 24)),
    (Mixture(50, 128, 256, 4, 2, has_bias=False), RoundedTiles(2, 3, 32, 32)),
    (Mixture(70, 256, 128, 3, 2, "same"), RoundedTiles(3, 2, 56, 56)),
    (Mixture(330, 128, 128, 40, 2), RoundedTiles(2, 3, 16, 32)),
)
"""More stages than steps, tiles of one pair and full ones, experts with several of them, x of one
tile or of three in a program, groups without a unit, more pairs than threads.
"""


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For the emulated kernel's libraries."""
    return tmp_path_factory.mktemp("rounded")


@emulated
@pytest.mark.parametrize(("form", "case"), each_once(FORMS, EMULATED), ids=str)
def test_its_source_multiplies_right(
    form: str, case: tuple[Mixture, RoundedTiles], room: Path
) -> None:
    """The source multiplies right with threads from both ends, by few programs and by many: the
    same bits.
    """
    mixture, tiles = case
    inputs = drawn_inputs(mixture, form)
    exact, wanted = _wanted(mixture, inputs)
    answers = []
    for grid, is_back in ((12, False), (40, True)):
        card = emulated_experts.Card(room, rounded.rounded_experts.path, grid, is_back=is_back)
        given = emulated_experts.Product(
            inputs.x, inputs.stacks[0], inputs.biases[0], inputs.routed, mixture.count
        )
        gated = emulated_experts.rounded_gate_up(card, given, mixture.activation, tiles)
        assert relative_error(gated, exact) < TOLERANCE
        given = given._replace(x=exact.bfloat16(), stack=inputs.stacks[1], bias=inputs.biases[1])
        products = emulated_experts.rounded_down(card, given, tiles)
        parts = products.float().unflatten(0, inputs.routed.weights.shape)
        out = (parts * inputs.routed.weights.unsqueeze(-1)).sum(1) + inputs.residual
        assert relative_error(out, wanted) < TOLERANCE
        answers.append((gated, products))
    for one, other in zip(*answers, strict=True):
        assert torch.equal(one, other)


MISTAKES: Final = (
    ("(step / STAGES - 1) & 1", "(step / STAGES) & 1"),
    ("meet_team<128 * GROUPS>();  // all have done", "// all have done"),
    ("stage = 0, parity ^= 1", "stage = 0"),
    ("chunk / 2 % 8 ^ row % 8", "chunk / 2 % 8"),
    ("base += (own.sizes[base_tile - first_tile] + 7) / 8 * 8", "base += 8"),
    ("load_scales(next_scales, row_of(unit + GROUPS))", "load_scales(next_scales, row)"),
    ("while (tile >= loaded_end) load_x(), base = 0", "while (tile >= loaded_end) load_x()"),
    # Programs that rank pairs otherwise than others miss some.
    ("__popc(before)", "(blockIdx.x % 2 ? __popc(alike) - 1 - __popc(before) : __popc(before))"),
    ("unit.x_scales[column]", "unit.x_scales[0]"),
)


@emulated
@pytest.mark.parametrize(("right", "wrong"), MISTAKES)
def test_an_emulated_card_sees_mistakes(right: str, wrong: str, room: Path, tmp_path: Path) -> None:
    """An emulated card sees mistakes in how the kernel waits, counts, and finds its places: a
    fault, or a wrong answer.
    """
    text = rounded.rounded_experts.path.read_text()
    assert right in text
    source = tmp_path / "rounded.cu"
    source.write_text(text.replace(right, wrong))
    mixture = Mixture(330, 384, 128, 40, 2)
    inputs = drawn_inputs(mixture, "blocks")
    exact, _ = _wanted(mixture, inputs)
    given = emulated_experts.Product(
        inputs.x, inputs.stacks[0], inputs.biases[0], inputs.routed, mixture.count
    )
    is_right = []
    for tiles, grid, at_end in (
        (RoundedTiles(2, 2, 16, 32), 20, False),
        (RoundedTiles(2, 2, 32, 32), 30, True),
    ):
        if not all(is_right):
            break
        card = emulated_experts.Card(room, source, grid, is_back=at_end)
        try:
            gated = emulated_experts.rounded_gate_up(card, given, mixture.activation, tiles)
        except AssertionError:
            is_right.append(False)
        else:
            is_right.append(relative_error(gated, exact) < TOLERANCE)
    assert not all(is_right)


@pytest.mark.parametrize("sizes", [(128, 2048, 768, 8), (256, 2048, 512, 8)], ids=str)
@pytest.mark.parametrize("pairs_of_two", [1, 16, 104])
def test_what_serves_fits_into_an_h200(sizes: tuple[int, int, int, int], pairs_of_two: int) -> None:
    """The kernels that serve fit into an H200's shared memory, with the pairs that a program counts
    and the tiles that it holds.
    """
    count, hidden, width, active = sizes
    for is_up, depth, out in ((True, hidden, width), (False, width, hidden)):
        product = CountedProduct(is_up, "blocks", count, depth, out, active, has_bias=True)
        tiles = rounded.tiles_of(product)
        assert rounded.fits(product, tiles)
        assert rounded.num_programs(product, tiles, pairs_of_two * count // 2, 132) == 132


def test_too_many_pairs_are_refused() -> None:
    """More than a program has place for, of tiles or in all."""
    product = CountedProduct(True, "blocks", 64, 128, 128, 1, has_bias=False)
    tiles = RoundedTiles(2, 4, 8, 32)
    with pytest.raises(ValueError, match="64 pairs of 64 experts"):
        rounded.num_programs(product, tiles, 64, 4)
    assert rounded.num_programs(product, tiles, 64, 10) == 10
    with pytest.raises(ValueError, match="2049 pairs of"):
        rounded.num_programs(product, tiles, 2049, 400)


def test_it_serves_rows_of_some_pairs_on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel serves rows of some pairs on Hopper, from half as many pairs as experts on; not
    where bits must not depend on how many rows there are, nor in other forms, nor without a check
    that was right.
    """
    monkeypatch.setattr(hopper, "runs_on", lambda _: True)
    monkeypatch.setattr(row_tiles, "has_fp8", lambda _: True)
    inputs = drawn_inputs(Mixture(MOST + 1, 256, 128, 16, 2), "blocks")

    def way(num_rows: int, x: Tensor = inputs.x, **given: bool) -> Way:
        known = {"invariant": False, "in_cuda": True} | given
        return choose.way(x[:num_rows], *inputs.stacks, 2 * num_rows, 16, **known)

    assert way(4) is Way.ROUNDED_LISTED
    assert way(4).rounds
    assert not way(3).rounds
    assert way(MOST) is Way.ROUNDED_LISTED
    assert way(MOST + 1) is Way.ROUNDED  # by Triton
    monkeypatch.setattr(rounded, "MOST_PAIRS", 2 * MOST - 1)
    assert way(MOST) is Way.ROUNDED
    monkeypatch.setattr(rounded, "MOST_PAIRS", 2 * MOST)
    assert way(MOST) is Way.ROUNDED_LISTED
    assert way(4, invariant=True) is Way.FEW
    assert way(4, with_shared=True) is not Way.ROUNDED_LISTED
    assert way(5, with_shared=True) is Way.ROUNDED_LISTED
    assert way(5, in_cuda=False) is Way.MANY
    assert way(5, inputs.x.float()) is Way.MANY
    monkeypatch.setattr(hopper, "runs_on", lambda _: False)
    assert way(4) is not Way.ROUNDED_LISTED


def test_on_a_pretended_device_its_compilation_is_recorded() -> None:
    """On a pretended device the compilation is recorded once for all numbers of rows and
    experts.
    """
    meta = torch.device("meta")
    with record_launches() as recorded:
        for num_rows, count in ((2, 8), (70, 12)):
            inputs = drawn_inputs(Mixture(num_rows, 256, 128, count, 2), "blocks")
            routed = Routed(inputs.routed.experts.to(meta), inputs.routed.weights.to(meta))
            stack = inputs.stacks[0]
            assert isinstance(stack, Fp8Weight)
            own = Fp8Weight(stack.values.to(meta), stack.scales.to(meta))
            gated = rounded.gate_up(inputs.x.to(meta), own, None, routed, 128, CLAMPED)
            assert gated.shape == (2 * num_rows, 128)
    (kernel,) = recorded.values()
    assert kernel.name == "rounded_experts"


_HAS_CARD: Final = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)

ON_CARD: Final = (
    *(Mixture(num_rows, 512, 256, 6, 3) for num_rows in (1, 2, 5, 8, 9, 16, 17, 33, 64, 200)),
    Mixture(70, 512, 512, 5, 2, "unchosen"),
    Mixture(300, 768, 256, 4, 2, "same"),
    Mixture(7, 768, 256, 4, 2, "same", has_bias=False, activation=Activation()),
    *(Mixture(num_rows, 2048, 768, 64, 8) for num_rows in (2, 40, 200)),
)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.gpu
@pytest.mark.skipif(not _HAS_CARD or find_spec("cuda") is None, reason="needs a Hopper card")
class TestOnCard:
    """Against float32 of rounded rows; each answer twice."""

    @pytest.mark.parametrize("form", FORMS)
    @pytest.mark.parametrize("mixture", ON_CARD, ids=str)
    def test_products(self, mixture: Mixture, form: str) -> None:
        """Both products: of the rows, and of gates times ups."""
        card = drawn_inputs(mixture, form, "cuda")
        exact, wanted = _wanted(mixture, drawn_inputs(mixture, form))
        gated_exact = exact.bfloat16().cuda()
        answers = []
        for _ in range(2):
            gated = rounded.gate_up(
                card.x, card.stacks[0], card.biases[0], card.routed, mixture.width,
                mixture.activation,
            )  # fmt: skip
            torch.cuda.synchronize()
            out = rounded.down(
                gated_exact, card.stacks[1], card.biases[1], card.routed, card.residual
            )
            answers.append((gated, out))
        for gated, out in answers:
            assert relative_error(gated, exact) < TOLERANCE
            assert relative_error(out, wanted) < TOLERANCE
            assert torch.equal(gated, answers[0][0])
            assert torch.equal(out, answers[0][1])
