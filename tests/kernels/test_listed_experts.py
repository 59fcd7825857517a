"""Experts of some rows in CUDA C++: the source on an emulated card, how products are cut up, and on
a card the answers.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest
import torch
from torch import Tensor

from kernels.experts import Activation, Routed, choose, listed
from kernels.experts.choose import Way
from kernels.experts.counted import CountedProduct
from kernels.experts.listed import ListedTiles
from kernels.experts.pair_sums import add_pairs
from kernels.fp8 import Fp8Weight
from kernels.recorder import record_launches
from tests.kernels import emulated_ampere, emulated_experts
from tests.kernels.drawn_mixtures import (
    Mixture,
    drawn_inputs,
    exact_down,
    exact_gated,
    relative_error,
)
from tests.kernels.expert_cases import CLAMPED

KIB: Final = 1024
FORMS: Final = ("rows", "blocks", "placed")
TOLERANCE: Final = 1e-2
"""What rounding leaves: of weights that are exact, gates times ups in bfloat16."""

emulated = pytest.mark.skipif(emulated_ampere.COMPILER is None, reason="needs g++")


EMULATED: Final = (
    (Mixture(3, 512, 256, 5, 2, has_bias=False), ListedTiles(2, 2, 8, 1)),
    (Mixture(7, 768, 384, 5, 3, "unchosen", activation=Activation()), ListedTiles(3, 7, 16, 1)),
    (Mixture(21, 384, 512, 3, 2, "same"), ListedTiles(2, 2, 16, 1, eights=2)),
    (Mixture(50, 512, 256, 4, 2, has_bias=False), ListedTiles(2, 3, 24, 1)),
)
"""More stages than steps, tiles of one pair and full ones, experts with several of them, x of one
tile or of three in a program.
"""


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For the emulated kernel's libraries."""
    return tmp_path_factory.mktemp("listed")


IN_FORMS: Final = (
    *((mixture, tiles, form) for mixture, tiles in EMULATED for form in FORMS),
    (Mixture(21, 320, 192, 3, 2, "same"), ListedTiles(2, 2, 16, 1, eights=2), "placed"),
    (Mixture(50, 96, 96, 4, 2, "unchosen"), ListedTiles(2, 3, 16, 1, eights=2), "placed"),
)
"""The latter have steps that are half empty, or nearly."""


@emulated
@pytest.mark.parametrize(("mixture", "tiles", "form"), IN_FORMS, ids=str)
def test_its_source_multiplies_right(
    mixture: Mixture, tiles: ListedTiles, form: str, room: Path
) -> None:
    """The source multiplies right with copies as early and as late as they may be, with threads
    from both ends, by few programs and by many: the same bits.
    """
    inputs = drawn_inputs(mixture, form)
    exact = exact_gated(mixture, inputs)
    wanted = exact_down(mixture, inputs, exact.bfloat16())
    answers = []
    for grid, is_eager, is_back in ((4, False, False), (40, True, True)):
        card = emulated_experts.Card(room, listed.listed_experts.path, grid, is_eager, is_back)
        given = emulated_experts.Product(
            inputs.x, inputs.stacks[0], inputs.biases[0], inputs.routed, mixture.count
        )
        gated = emulated_experts.listed_gate_up(card, given, mixture.activation, tiles)
        assert relative_error(gated, exact) < TOLERANCE
        given = given._replace(x=exact.bfloat16(), stack=inputs.stacks[1], bias=inputs.biases[1])
        products = emulated_experts.listed_down(card, given, tiles)
        parts = products.unflatten(0, inputs.routed.weights.shape)
        out = (parts * inputs.routed.weights.unsqueeze(-1)).sum(1) + inputs.residual
        assert relative_error(out, wanted) < TOLERANCE
        answers.append((gated, products))
    for one, other in zip(*answers, strict=True):
        assert torch.equal(one, other)


MISTAKES: Final = (
    ("wait_groups<STAGES - 1>();", "wait_groups<STAGES>();"),
    ("__syncthreads();  // all have done with the rows", "// all have done with the rows"),
    ("LIFT = 0x7B807B80", "LIFT = 0x7B007B00"),
    ("SIZES = 0x07F007F0", "SIZES = 0x07E007E0"),
    ("slot = slot == (STAGES - 1) * SLOT ? 0 : slot + SLOT;", ""),
    ("v.x, v.y, 0x5410", "v.x, v.y, 0x7632"),
    ("8 * n + (int)quad, count - 1", "(int)quad, count - 1"),
    ("load_scales(next_scales, row_of(unit + WARPS))", "load_scales(next_scales, row)"),
    ("while (tile >= loaded_end) load_x(), base = 0", "while (tile >= loaded_end) load_x()"),
    # Programs that rank pairs otherwise than others, as they did by arrival, miss some.
    (
        "alike & ((1u << lane) - 1)",
        "blockIdx.x % 2 ? alike >> 1 >> lane : alike & ((1u << lane) - 1)",
    ),
)


@emulated
@pytest.mark.parametrize(("right", "wrong"), MISTAKES)
def test_an_emulated_card_sees_mistakes(right: str, wrong: str, room: Path, tmp_path: Path) -> None:
    """An emulated card sees mistakes in how the kernel waits, copies, and finds its places: a
    fault, or a wrong answer.
    """
    text = listed.listed_experts.path.read_text()
    assert right in text
    source = tmp_path / "listed.cu"
    source.write_text(text.replace(right, wrong))
    mixture = Mixture(37, 384, 256, 3, 2)
    inputs = drawn_inputs(mixture, "blocks")
    exact = exact_gated(mixture, inputs)
    given = emulated_experts.Product(
        inputs.x, inputs.stacks[0], inputs.biases[0], inputs.routed, mixture.count
    )
    is_right = []
    for tiles, grid, at_end in (
        (ListedTiles(2, 2, 24, 1), 2, False),
        (ListedTiles(2, 2, 16, 1, eights=2), 5, True),
    ):
        if not all(is_right):
            break
        card = emulated_experts.Card(room, source, grid, is_eager=at_end, is_back=at_end)
        try:
            gated = emulated_experts.listed_gate_up(card, given, mixture.activation, tiles)
        except AssertionError:
            is_right.append(False)
        else:
            is_right.append(relative_error(gated, exact) < TOLERANCE)
    assert not all(is_right)


@pytest.mark.usefixtures("poisoned")
def test_a_row_is_the_weighed_sum_of_its_pairs(device: torch.device) -> None:
    """A row is the weighed sum of its pairs, with a residual; outputs that no tile divides."""
    generator = torch.Generator().manual_seed(1)
    products = torch.randn(21, 700, generator=generator)
    weights = torch.rand(7, 3, generator=generator)
    residual = torch.randn(7, 700, generator=generator)
    out = torch.empty(7, 700, device=device)
    add_pairs(*(each.to(device) for each in (products, weights, residual)), out)
    wanted = residual + (products.view(7, 3, 700) * weights[:, :, None]).sum(1)
    torch.testing.assert_close(out.cpu(), wanted)


@pytest.mark.parametrize(
    ("form", "sizes", "num_pairs"),
    [
        *((form, (128, 2048, 768, 8), rows * 8) for form in FORMS[:2] for rows in (2, 31)),
        *((form, (256, 2048, 512, 8), rows * 8) for form in FORMS[:2] for rows in (2, 63)),
        *(("mxfp4", (32, 2880, 2880, 4), rows * 4) for rows in (3, 64, 128)),
    ],
)
def test_what_serves_fits_into_an_h200(
    form: str, sizes: tuple[int, int, int, int], num_pairs: int
) -> None:
    """The kernels that serve fit into an H200's shared memory, and the ranges of tiles into what a
    program holds of them.
    """
    count, hidden, width, active = sizes
    for is_up, depth, out in ((True, hidden, width), (False, width, hidden)):
        product = CountedProduct(is_up, form, count, depth, out, active, has_bias=True)
        tiles = listed.tiles_of(product)
        assert listed.fits(product, tiles, 227 * KIB)
        programs = listed.num_programs(product, tiles, num_pairs, tiles.blocks * 132)
        assert programs == tiles.blocks * 132
    with pytest.raises(ValueError, match="pairs of"):
        listed.num_programs(product, tiles, listed.MOST_PAIRS + 1, tiles.blocks * 132)


def test_a_long_range_of_tiles_is_refused() -> None:
    """A program has place for the pairs of eight."""
    product = CountedProduct(True, "rows", 64, 128, 16, 1, has_bias=False)
    tiles = ListedTiles(8, 4, 8, 2)
    with pytest.raises(ValueError, match="64 pairs of 64 experts"):
        listed.num_programs(product, tiles, 64, 4)


def test_lists_serve_what_a_card_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists serve what a card has run, from two rows on; with a shared expert among the pairs, more
    than launches are joined for.
    """
    monkeypatch.setattr(listed, "runs_on", lambda _: True)
    monkeypatch.setattr(listed, "shared_bytes", lambda _: 227 * KIB)
    inputs = drawn_inputs(Mixture(6, 512, 256, 16, 2), "blocks")

    def way(num_rows: int, x: Tensor = inputs.x, **given: bool) -> Way:
        known = {"invariant": False, "in_cuda": True} | given
        return choose.way(x[:num_rows], *inputs.stacks, 2 * num_rows, 16, **known)

    assert way(1) is Way.FEW
    assert way(2) is Way.LISTED  # by blocks; with a scale for each row from three on
    assert way(2, with_shared=True) is Way.FEW
    assert way(4, with_shared=True) is Way.MANY
    assert way(5, with_shared=True) is Way.LISTED
    assert way(2, invariant=True) is Way.FEW
    assert way(6, in_cuda=False) is Way.MANY
    assert way(6, inputs.x.float()) is Way.MANY
    plain = torch.empty(0, 512), torch.empty(0, 256)
    assert choose.way(inputs.x, *plain, 12, 16, invariant=False, in_cuda=True) is Way.MANY
    by_rows = drawn_inputs(Mixture(3, 512, 256, 16, 2), "rows")
    for num_rows, found in ((2, Way.FEW), (3, Way.LISTED)):
        given = by_rows.x[:num_rows], *by_rows.stacks, 2 * num_rows, 16
        assert choose.way(*given, invariant=False, in_cuda=True) is found
    monkeypatch.setattr(listed, "runs_on", lambda _: False)
    assert way(6) is Way.MANY


def test_on_a_pretended_device_its_compilation_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a pretended device the compilation is recorded once for all numbers of rows and experts
    that use the same tiles.
    """
    monkeypatch.setattr(listed, "capability", lambda _: (9, 0))
    monkeypatch.setattr(listed, "shared_bytes", lambda _: 227 * KIB)
    meta = torch.device("meta")
    with record_launches() as recorded:
        for num_rows, count in ((2, 8), (5, 12)):
            inputs = drawn_inputs(Mixture(num_rows, 256, 128, count, 2), "blocks")
            routed = Routed(inputs.routed.experts.to(meta), inputs.routed.weights.to(meta))
            stack = inputs.stacks[0]
            assert isinstance(stack, Fp8Weight)
            own = Fp8Weight(stack.values.to(meta), stack.scales.to(meta))
            gated = listed.gate_up(inputs.x.to(meta), own, None, routed, 128, CLAMPED)
            assert gated.shape == (2 * num_rows, 128)
    (kernel,) = recorded.values()
    assert kernel.name == "listed_experts"
    assert '"ARCH":90' in kernel.specialisation


_HAS_CARD: Final = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)

ON_CARD: Final = (
    *(Mixture(num_rows, 512, 256, 6, 3) for num_rows in (1, 2, 5, 8, 9, 16, 17, 33, 64)),
    Mixture(70, 512, 512, 5, 2, "unchosen"),
    Mixture(64, 768, 256, 4, 2, "same"),
    Mixture(7, 768, 256, 4, 2, "same", has_bias=False, activation=Activation()),
    *(Mixture(num_rows, 2048, 768, 64, 8) for num_rows in (2, 8, 40, 128)),
)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.gpu
@pytest.mark.skipif(
    not _HAS_CARD or find_spec("cuda") is None, reason="needs a card with 227 KB from Hopper on"
)
class TestOnCard:
    """Against float32; each answer twice."""

    @pytest.mark.parametrize("form", FORMS)
    @pytest.mark.parametrize("mixture", ON_CARD, ids=str)
    def test_products(self, mixture: Mixture, form: str) -> None:
        """Products by the tiles that serve; in 8 bits also with numbers of rows that other kernels
        serve.
        """
        host, card = drawn_inputs(mixture, form), drawn_inputs(mixture, form, "cuda")
        exact = exact_gated(mixture, host)
        wanted = exact_down(mixture, host, exact.bfloat16())
        gated_exact = exact.bfloat16().cuda()
        answers = []
        for _ in range(2):
            gated = listed.gate_up(
                card.x, card.stacks[0], card.biases[0], card.routed, mixture.width,
                mixture.activation,
            )  # fmt: skip
            torch.cuda.synchronize()
            out = listed.down(
                gated_exact, card.stacks[1], card.biases[1], card.routed, card.residual
            )
            answers.append((gated, out))
        for gated, out in answers:
            assert relative_error(gated, exact) < TOLERANCE
            assert relative_error(out, wanted) < TOLERANCE
            assert torch.equal(gated, answers[0][0])
            assert torch.equal(out, answers[0][1])
