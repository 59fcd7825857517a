"""The experts' kernels agree with the plain torch definition, whatever their rows choose."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from kernels.experts import (
    DRAWN_TILES,
    Activation,
    Drawn,
    ExpertWeights,
    Routed,
    Routing,
    few,
    many,
    reference,
    router,
    takes_shared,
    verdict,
)
from kernels.experts.tiles import ExpertTiles
from kernels.fp8 import DualWeight, quantize_weight
from kernels.rms_norm import rms_norm
from tests.fakes.pairs import each_once
from tests.kernels.expert_cases import (
    CLAMPED,
    assert_near,
    drawn,
    formed,
    routed_rows,
)

FEW = 3
"""Rows, of which the interpreter takes seconds."""


ROUTINGS = [
    Routing(8, 2),
    Routing(5, 3, renormalises=False),
    Routing(12, 4, True, 4, 2, True, 2.5),
    Routing(17, 1, scale=0.5),
]


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("num_rows", [1, 16, 35, 513])
@pytest.mark.parametrize("has_more", [True, False])
def test_the_router_chooses_as_defined(
    routing: Routing, num_rows: int, device: torch.device, *, has_more: bool
) -> None:
    """The router chooses as defined, with a shared expert's gate and both biases, and without;
    sizes that no tile divides.
    """
    count, hidden = routing.num_experts, 70
    weights = ExpertWeights(drawn(count, hidden, seed=1) * 0.3)
    if has_more:
        weights = ExpertWeights(
            drawn(count + 1, hidden, seed=1) * 0.3, drawn(count, seed=2), drawn(count, seed=3)
        )
    x = drawn(num_rows, hidden)
    wanted = reference.route(x, weights, routing)
    moved = weights._replace(
        **{
            name: part.to(device)
            for name, part in weights._asdict().items()
            if isinstance(part, Tensor)
        }
    )
    for _ in range(2):  # the counters are as they were
        found = router.route(x.to(device), moved, routing)
        ours, theirs = found.experts.long().cpu().sort(1), wanted.experts.long().sort(1)
        assert torch.equal(ours.values, theirs.values)
        found_weights = found.weights.cpu().gather(1, ours.indices)
        torch.testing.assert_close(found_weights, wanted.weights.gather(1, theirs.indices))
        if has_more:
            assert found.shared is not None
            assert wanted.shared is not None
            torch.testing.assert_close(found.shared.cpu(), wanted.shared)


NORMED = [
    (torch.float32, 70, torch.float32),
    (torch.float16, 700, torch.float32),
    (torch.float32, 4240, torch.float32),
]
"""A row's dtype, columns, and the dtype of the norm: the last are too many to be read ahead."""


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("num_rows", [1, 4, 5, 16])
@pytest.mark.parametrize(("dtype", "hidden", "norm_dtype"), NORMED)
def test_rows_are_normed_in_the_same_launch(
    routing: Routing,
    num_rows: int,
    dtype: torch.dtype,
    hidden: int,
    norm_dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Rows are normed in the same launch as by a launch of their own, and their experts chosen as
    by `route`, one row after the other or all at once; with all biases and factors. Equal products
    choose the lowest experts.
    """
    count = routing.num_experts
    router_rows = (drawn(count + 1, hidden, seed=1) * 2 / hidden**0.5).to(dtype)
    router_rows[2] = router_rows[1]
    weights = ExpertWeights(
        router_rows, drawn(count, seed=2).to(dtype), drawn(count, seed=3),
        scales=drawn(count, seed=4).exp(),
    )  # fmt: skip
    x, norm = (
        (3 * drawn(num_rows, hidden)).to(dtype),
        (drawn(hidden, seed=6) + 1).to(norm_dtype),
    )
    wanted_rows = rms_norm(x, norm, 1e-5)
    moved = weights._replace(
        **{
            name: part.to(device)
            for name, part in weights._asdict().items()
            if isinstance(part, Tensor)
        }
    )
    for _ in range(2):  # the counters are as they were
        given = x.to(device), norm.to(device), 1e-5, moved, routing
        normed, found = router.norm_route(*given)
        torch.testing.assert_close(normed.cpu(), wanted_rows, rtol=2e-3, atol=2e-6)
        wanted = router.route(normed, moved, routing)
        torch.testing.assert_close(found.experts, wanted.experts, rtol=0, atol=0)
        torch.testing.assert_close(found.weights, wanted.weights)
        torch.testing.assert_close(found.shared, wanted.shared)


def test_too_many_rows_are_not_normed_in_the_same_launch(device: torch.device) -> None:
    """One tile's, whose every program reads them whole."""
    x = drawn(17, 40).to(device)
    with pytest.raises(ValueError, match="17 rows"):
        router.norm_route(x, x[0], 1e-6, ExpertWeights(drawn(6, 40).to(device)), Routing(6, 2))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("num_rows", [3, 9])
def test_normed_rows_that_are_no_numbers_choose_some_expert(
    num_rows: int, device: torch.device
) -> None:
    """One row after the other, and all at once: different experts, beside rows that are numbers."""
    x = drawn(num_rows, 40)
    x[1] = torch.nan
    weights, routing = ExpertWeights(drawn(6, 40, seed=1).to(device)), Routing(6, 2)
    norm = torch.ones(40, device=device)
    _, found = router.norm_route(x.to(device), norm, 1e-6, weights, routing)
    assert all(len(set(row)) == 2 for row in found.experts.tolist())
    assert int(found.experts.min()) >= 0
    assert int(found.experts.max()) < 6
    alone = router.norm_route(x[2:3].to(device), norm, 1e-6, weights, routing)[1]
    assert torch.equal(alone.experts[0], found.experts[2])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_rows_that_are_no_numbers_choose_some_expert(device: torch.device) -> None:
    """What pads a step must not lead a kernel astray."""
    x = torch.full((3, 40), torch.nan, device=device)
    found = router.route(x, ExpertWeights(drawn(6, 40).to(device)), Routing(6, 2))
    assert int(found.experts.min()) >= 0
    assert int(found.experts.max()) < 6


CASES = [
    ("plain", torch.float32, 48, 20, 5, 3, Activation(), False),
    ("plain", torch.bfloat16, 72, 70, 4, 2, CLAMPED, True),
    ("rows", torch.float32, 48, 20, 4, 2, Activation(), False),
    ("blocks", torch.float16, 128, 128, 3, 2, Activation(), False),
    ("blocks", torch.float32, 384, 256, 3, 2, CLAMPED, True),
    ("int4", torch.float32, 64, 32, 4, 2, CLAMPED, True),
    ("mxfp4", torch.float32, 96, 64, 4, 2, CLAMPED, True),
]


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    ("case", "choices"), each_once(CASES, [("any", 1), ("same", 18), ("unchosen", 3)]), ids=str
)
def test_experts_are_as_defined(
    case: tuple[str, torch.dtype, int, int, int, int, Activation, bool],
    choices: tuple[str, int],
    device: torch.device,
) -> None:
    """Experts are as defined in each format, for few rows and for many; an expert that no row
    chose, and all rows on the same.
    """
    form, dtype, hidden, width, count, active, act, biased = case
    kind, num_rows = choices
    if kind == "unchosen" and count - 2 < active:
        pytest.skip("too few experts are left")
    routed, routing = routed_rows(kind, num_rows, count, active), Routing(count, active)
    x, residual = drawn(num_rows, hidden).to(dtype), drawn(num_rows, hidden, seed=5).to(dtype)
    stacks = [
        formed((drawn(count * rows, depth, seed=rows) * 0.2).to(dtype), form)
        for rows, depth in ((2 * width, hidden), (hidden, width))
    ]
    biases: list[Tensor | None] = [None, None]
    if biased:
        biases = [
            drawn(count, 2 * width, seed=8).to(dtype),
            drawn(count, hidden, seed=9).to(dtype),
        ]
    wide = reference.gate_up(x, stacks[0], biases[0], routed, routing, act)
    wanted = reference.down(wide, stacks[1], biases[1], routed, routing, residual)
    on_card = [each.to(device) for each in stacks]
    bias, down_bias = (None if each is None else each.to(device) for each in biases)
    own = Routed(*(each.to(device) for each in routed[:2]))
    x, residual = x.to(device), residual.to(device)
    if num_rows <= FEW:
        gated = few.gate_up(x, on_card[0], bias, own, width, act)
        assert_near(gated, wide)
        assert_near(few.down(gated, on_card[1], down_bias, own, residual), wanted)
    listed = many.pair_list(own.experts, count)
    for _ in range(2):  # the counters are as they were
        gated = many.gate_up(x, on_card[0], bias, listed, num_rows * active, width, act)
        assert_near(gated, wide)
        assert_near(many.down(gated, on_card[1], down_bias, listed, own, residual), wanted)


SHARED = [
    ("plain", torch.float32, 48, 20, True, 1),
    ("plain", torch.bfloat16, 72, 70, False, 3),
    ("rows", torch.float32, 48, 20, True, 5),
    ("blocks", torch.float16, 128, 128, False, 2),
    ("int4", torch.float32, 64, 32, True, 2),
]
"""A form and a dtype, columns and gates, whether the shared expert has a gate, and rows."""


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("case", "kind"), each_once(SHARED, ["any", "same", "unchosen"]), ids=str)
def test_an_expert_that_all_rows_share_is_one_more_pair(
    case: tuple[str, torch.dtype, int, int, bool, int], kind: str, device: torch.device
) -> None:
    """A shared expert is one more pair of each row, with the weight of its gate or 1, whatever is
    loaded ahead of time.
    """
    form, dtype, hidden, width, gated, num_rows = case
    count, active = 6, 2
    routed, routing = routed_rows(kind, num_rows, count, active), Routing(count, active)
    x, residual = drawn(num_rows, hidden).to(dtype), drawn(num_rows, hidden, seed=5).to(dtype)
    sizes = (2 * width, hidden), (hidden, width)
    stacks = [
        formed((drawn(count * rows, depth, seed=rows) * 0.2).to(dtype), form)
        for rows, depth in sizes
    ]
    own = [
        formed((drawn(rows, depth, seed=rows + 1) * 0.2).to(dtype), form) for rows, depth in sizes
    ]
    shares = drawn(num_rows, seed=11).sigmoid() if gated else torch.ones(num_rows)
    act = Activation()
    wide = reference.gate_up(x, stacks[0], None, routed, routing, act)
    wanted = reference.down(wide, stacks[1], None, routed, routing, residual)
    alone = Routed(torch.zeros(num_rows, 1, dtype=torch.int32), shares[:, None]), Routing(1, 1)
    shared_wide = reference.gate_up(x, own[0], None, *alone, act)
    wanted = reference.down(shared_wide, own[1], None, *alone, wanted)
    pairs = torch.cat((wide.view(num_rows, active, -1), shared_wide[:, None]), 1).flatten(0, 1)

    stacks, own = ([each.to(device) for each in pair] for pair in (stacks, own))
    assert few.takes_shared(*stacks, *own)
    shared = few.SharedExpert(*own, shares.to(device) if gated else None)
    routed = Routed(*(each.to(device) for each in routed[:2]))
    found = torch.empty(0)
    for up_tiles in (None, ExpertTiles(8, 32), ExpertTiles(4, 32, held=True)):
        given = x.to(device), stacks[0], None, routed, width, act, up_tiles
        found = few.gate_up(*given, shared=shared)
        assert_near(found, pairs)
    for ahead, columns in ((0, 32), (1, 128), (9, 32)):
        tiles = ExpertTiles(8, columns, ahead=ahead)
        given = found, stacks[1], None, routed, residual.to(device), tiles
        assert_near(few.down(*given, shared=shared), wanted)


@pytest.mark.parametrize(
    ("hidden", "outputs", "columns"),
    [(70, 4, 128), (2048, 4, 1024), (2880, 2, 1024), (4096, 2, 1024), (7168, 1, 1024)],
)
def test_a_program_holds_so_many_gates_as_registers_do(
    hidden: int, outputs: int, columns: int
) -> None:
    """64 registers of a thread in 16 bits, or less; 112 where one gate and up take so many."""
    tiles = few._up_tiles("plain", hidden)
    assert (tiles.outputs, tiles.columns, tiles.held) == (outputs, columns, True)
    chunks = -(-hidden // columns)
    assert 2 * tiles.outputs * chunks * columns * 2 // (32 * tiles.warps * 4) <= 64 + 48 * (
        outputs == 1
    )
    assert not few._up_tiles("int4", hidden).held


@pytest.mark.parametrize("num_rows", [1, 4, 5, 64])
def test_few_rows_on_a_card_take_a_shared_expert(
    num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few rows on a card take a shared expert: not without one, not more rows, nor where bits must
    not depend on how many there are; a CPU has it apart.
    """
    monkeypatch.setattr(verdict, "serves", lambda *_: False)
    up, down, x = drawn(40 * 40, 48), drawn(40 * 48, 20), drawn(num_rows, 48)
    weights = ExpertWeights(drawn(41, 48), shared_gate_up=drawn(40, 48), shared_down=drawn(48, 20))
    on_card, routing = x.to("meta"), Routing(40, 4)
    assert takes_shared(on_card, up, down, weights, routing) == (num_rows <= 4)
    assert not takes_shared(on_card, up, down, weights, routing, invariant=True)
    assert not takes_shared(on_card, up, down, ExpertWeights(drawn(40, 48)), routing)
    biased = weights._replace(down_bias=drawn(40, 48))
    assert not takes_shared(on_card, up, down, biased, routing)
    assert not takes_shared(x, up, down, weights, routing)


def test_a_shared_expert_of_another_form_or_width_stays_apart() -> None:
    """A shared expert of another form or width stays apart, because kernels take one form, and
    pairs one width.
    """
    up, down = drawn(4 * 40, 48), drawn(4 * 48, 20)
    own = drawn(40, 48), drawn(48, 20)
    assert few.takes_shared(up, down, *own)
    assert not few.takes_shared(up, down, drawn(48, 48), drawn(48, 24))
    assert not few.takes_shared(up, down, quantize_weight(own[0]), quantize_weight(own[1]))
    assert not few.takes_shared(up, down, own[0], quantize_weight(own[1]))
    assert not few.takes_shared(up, down, DualWeight(own[0], quantize_weight(own[0])), own[1])


def test_few_rows_are_the_same_beside_any_others(device: torch.device) -> None:
    """Bit for bit: router and experts of rows alone and of all."""
    routing, weights = Routing(6, 2), ExpertWeights(drawn(6, 48, seed=1).to(device))
    stacks = drawn(6 * 40, 48, seed=2).to(device), drawn(6 * 48, 20, seed=3).to(device)

    def mixed(x: Tensor) -> Tensor:
        routed = router.route(x, weights, routing)
        gated = few.gate_up(x, stacks[0], None, routed, 20, Activation())
        return few.down(gated, stacks[1], None, routed, x)

    x = drawn(20, 48).to(device)
    whole = mixed(x)
    for row in (0, 7, 19):
        assert torch.equal(mixed(x[row : row + 1].contiguous())[0], whole[row])


@pytest.mark.parametrize("is_reference", [True, False])
def test_a_router_draws_when_it_is_told(device: torch.device, *, is_reference: bool) -> None:
    """Equal rows choose alike without, and independently with a draw, anew at each launch; as many
    distinct experts as uniform choices have: of 32 four, by 20 rows 29.8 on average.
    """
    count, active, num_rows = 32, 4, 20
    state = torch.zeros(1 + DRAWN_TILES, dtype=torch.int32, device=device)
    kept = torch.zeros(18, active, dtype=torch.int32, device=device)
    weights = ExpertWeights(drawn(count, 40, seed=1).to(device), drawn=Drawn(state, kept))
    x, routing = drawn(1, 40).expand(num_rows, 40).contiguous().to(device), Routing(count, active)
    route = reference.route if is_reference else router.route
    assert len(route(x, weights, routing).experts.unique()) == active
    state[0] = 1
    found = [route(x, weights, routing).experts.cpu() for _ in range(8)]
    assert torch.equal(kept.cpu(), found[-1][:18])
    assert all(len(set(row)) == active for each in found for row in each.tolist())
    assert not any(torch.equal(one, other) for one, other in pairwise(found))
    distinct = sum(len(each.unique()) for each in found) / len(found)
    assert abs(distinct - count * (1 - (1 - active / count) ** num_rows)) < 1
    hits = torch.cat(found).flatten().bincount(minlength=count)
    assert int(hits.min()) > 5
    assert int(hits.max()) < 40
    state[0] = 0
    assert len(route(x, weights, routing).experts.unique()) == active
