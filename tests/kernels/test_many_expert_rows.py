"""The experts' kernels for many rows are as the plain torch definition: lists, large tiles, rows
rounded to 8 bits, and experts that are widened first.
"""

import pytest
import torch
from torch import Tensor

from kernels.experts import (
    Activation,
    ExpertWeights,
    Routed,
    Routing,
    many,
    reference,
    rounds_rows,
    router,
    row_tiles,
    verdict,
    widened,
)
from kernels.fp8 import Fp8Weight, quantize_rows
from kernels.mxfp4 import Mxfp4Weight
from kernels.mxfp4 import dequantise as dequantise_mxfp4
from tests.kernels.expert_cases import (
    CLAMPED,
    TOLERANCE,
    assert_near,
    drawn,
    formed,
    routed_rows,
)

WIDE = [
    ("plain", torch.float32, 72, 70, 64),
    ("plain", torch.float16, 136, 140, 128),
    ("rows", torch.float16, 200, 140, 64),
    ("rows", torch.float32, 72, 70, 128),
    ("blocks", torch.float16, 128, 128, 128),
    ("int4", torch.float16, 64, 96, 128),
    ("mxfp4", torch.float16, 160, 96, 128),
]
"""A form, a dtype, columns, gates, and the rows of a tile."""


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("case", WIDE, ids=str)
def test_experts_of_large_tiles_are_as_defined(
    case: tuple[str, torch.dtype, int, int, int], device: torch.device
) -> None:
    """Some experts with more pairs than a tile has rows, and some with fewer."""
    form, dtype, hidden, width, rows = case
    count, active, num_rows = 3, 2, rows + 3
    routed, routing = routed_rows("any", num_rows, count, active), Routing(count, active)
    routed.experts[1:] = torch.tensor([2, 0], dtype=torch.int32)
    x, residual = drawn(num_rows, hidden).to(dtype), drawn(num_rows, hidden, seed=5).to(dtype)
    up, down = (
        formed((drawn(count * size, depth, seed=size) * 0.2).to(dtype), form)
        for size, depth in ((2 * width, hidden), (hidden, width))
    )
    wide = reference.gate_up(x, up, None, routed, routing, CLAMPED)
    wanted = reference.down(wide, down, None, routed, routing, residual)
    own = Routed(*(each.to(device) for each in routed[:2]))
    listed = many.pair_list(own.experts, count, rows)
    given = x.to(device), up.to(device), None, listed, num_rows * active, width, CLAMPED
    gated = many.gate_up(*given)
    assert_near(gated, wide)
    found = many.down(gated, down.to(device), None, listed, own, residual.to(device))
    assert_near(found, wanted)


ROUNDED = [
    ("rows", torch.float32, 72, 70, 64),
    ("rows", torch.float16, 200, 140, 128),
    ("blocks", torch.float32, 384, 256, 64),
    ("blocks", torch.float16, 128, 128, 128),
]
"""A form, a dtype, columns, gates, and the rows of a tile."""


def _rounded(x: Tensor) -> Tensor:
    """As the kernels read rows that they rounded to 8 bits."""
    values, scales = quantize_rows(x)
    return (values.float() * scales[:, None]).to(x.dtype)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("case", ROUNDED, ids=str)
def test_experts_of_rounded_rows_are_as_defined(
    case: tuple[str, torch.dtype, int, int, int], device: torch.device
) -> None:
    """Rows in 8 bits by experts in 8 bits; a row's numbers are the same beside any others."""
    form, dtype, hidden, width, rows = case
    count, active, num_rows = 3, 2, rows + 3
    routed, routing = routed_rows("any", num_rows, count, active), Routing(count, active)
    routed.experts[1:] = torch.tensor([2, 0], dtype=torch.int32)
    x, residual = drawn(num_rows, hidden).to(dtype), drawn(num_rows, hidden, seed=5).to(dtype)
    x[num_rows - 1] *= 2
    up, down = (
        formed((drawn(count * size, depth, seed=size) * 0.2).to(dtype), form)
        for size, depth in ((2 * width, hidden), (hidden, width))
    )
    wide = reference.gate_up(_rounded(x), up, None, routed, routing, Activation())
    wanted = reference.down(_rounded(wide), down, None, routed, routing, residual)
    on_card = up.to(device), down.to(device)

    def found(first: int) -> tuple[Tensor, Tensor]:
        """The results of the rows from `first` on."""
        own = Routed(*(each[first:].contiguous().to(device) for each in routed[:2]))
        num_pairs = own.experts.numel()
        listed = many.pair_list(own.experts, count, rows)
        values, scales = quantize_rows(x[first:].contiguous().to(device))
        out = torch.empty(num_pairs, width, dtype=dtype, device=device)
        given = values, on_card[0], None, listed, num_pairs, width, Activation()
        gated = many.gate_up(*given, out=out, scales=scales)
        values, scales = quantize_rows(wide[first * active :].contiguous().to(device))
        given_down = values, on_card[1], None, listed, own, residual[first:].contiguous().to(device)
        return gated, many.down(*given_down, scales=scales)

    # Tensor cores keep fewer bits of sums of such products than of others.
    tolerance = TOLERANCE[dtype if device.type == "cpu" else torch.float16]
    gated, summed = found(0)
    assert_near(gated, wide, tolerance)
    assert_near(summed, wanted, tolerance)
    fewer, fewer_summed = found(num_rows - 2)
    assert torch.equal(fewer, gated[-2 * active :])
    assert torch.equal(fewer_summed, summed[-2:])


LAYERS = [
    ("rows", torch.float32, 72, 70, True),
    ("blocks", torch.float32, 384, 256, False),
    ("blocks", torch.float16, 128, 128, True),
]
"""A form, a dtype, columns, gates, and whether there are biases."""


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_a_layer_rounds_rows_ahead_of_both_products(
    case: tuple[str, torch.dtype, int, int, bool], device: torch.device
) -> None:
    """A layer rounds rows ahead of both products: from rows and what they chose to their sums, as
    the torch definition of rounded rows.
    """
    form, dtype, hidden, width, biased = case
    count, active, num_rows = 3, 2, 70
    routed, routing = routed_rows("any", num_rows, count, active), Routing(count, active)
    x, residual = drawn(num_rows, hidden).to(dtype), drawn(num_rows, hidden, seed=5).to(dtype)
    up, down = (
        formed((drawn(count * size, depth, seed=size) * 0.2).to(dtype), form)
        for size, depth in ((2 * width, hidden), (hidden, width))
    )
    assert isinstance(up, Fp8Weight)
    assert isinstance(down, Fp8Weight)
    weights = ExpertWeights(x[:0])
    if biased:
        weights = weights._replace(
            gate_up_bias=drawn(count, 2 * width, seed=8).to(dtype),
            down_bias=drawn(count, hidden, seed=9).to(dtype),
        )
    own_bias, down_bias = weights.gate_up_bias, weights.down_bias
    wide = reference.gate_up(_rounded(x), up, own_bias, routed, routing, Activation())
    wanted = reference.down(_rounded(wide), down, down_bias, routed, routing, residual)
    moved = weights._replace(
        **{
            name: part.to(device)
            for name, part in weights._asdict().items()
            if isinstance(part, Tensor)
        }
    )
    own = Routed(*(each.to(device) for each in routed[:2]))
    given = x.to(device), up.to(device), down.to(device), moved, own, count, Activation()
    found = many.mix_rounded(*given, residual.to(device))
    # What is between both products is rounded from other bits. If these are so far away, a share of
    # the numbers becomes the neighbour in 8 bits, of which one is an eighth away at most.
    distance = torch.finfo(dtype).eps + (0.0 if device.type == "cpu" else 2**-10)
    assert_near(found, wanted, max(TOLERANCE[dtype], (8 * distance) ** 0.5 / 8))


@pytest.mark.parametrize("form", ["rows", "blocks", "plain"])
@pytest.mark.parametrize("num_rows", [12, 13])
def test_many_rows_are_rounded_by_experts_in_8_bits(
    num_rows: int, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many rows are rounded by experts in 8 bits on a card that multiplies such numbers; not where
    bits must not depend on how many rows there are, nor on a CPU.
    """
    count, active = 3, 2
    up, down = (
        formed(drawn(count * size, depth) * 0.2, form) for size, depth in ((512, 128), (128, 256))
    )
    x, routing = drawn(num_rows, 128).bfloat16(), Routing(count, active)
    given = up, down, routing
    monkeypatch.setattr(verdict, "serves", lambda *_: False)
    monkeypatch.setattr(row_tiles, "has_fp8", lambda _: True)
    assert rounds_rows(x.to("meta"), *given) == (num_rows > 12 and form != "plain")
    assert not rounds_rows(x.half().to("meta"), *given)
    assert not rounds_rows(x.to("meta"), *given, invariant=True)
    assert not rounds_rows(x, *given)
    monkeypatch.setattr(row_tiles, "has_fp8", lambda _: False)
    assert not rounds_rows(x.to("meta"), *given)


@pytest.mark.parametrize(("pairs", "rows"), [(96, 16), (97, 64), (383, 64), (384, 128)])
def test_more_pairs_of_an_expert_make_larger_tiles(pairs: int, rows: int) -> None:
    """Three experts' pairs, in tiles that all of them fill on average, and the largest but half."""
    assert row_tiles.list_rows(pairs, 3, torch.device("cpu")) == rows


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    ("num_rows", "count", "active", "kind"),
    [
        (1, 4, 2, "any"),
        (40, 3, 2, "any"),
        (90, 7, 3, "any"),
        (130, 2, 1, "any"),
        (4097, 7, 2, "unchosen"),
        (2800, 65, 3, "any"),
        (8193, 128, 1, "same"),
    ],
)
def test_a_list_has_every_pair_once(
    num_rows: int, count: int, active: int, kind: str, device: torch.device
) -> None:
    """A list has every pair once, in tiles of one expert, in order; entries beyond them have no
    meaning.
    """
    experts = routed_rows(kind, num_rows, count, active).experts
    listed = many.pair_list(experts.to(device), count)
    num_tiles, num_pairs = int(listed.num_tiles), experts.numel()
    assert num_tiles <= listed.experts.shape[0]
    tiles = listed.pairs.cpu().view(-1, listed.rows)[:num_tiles]
    found = []
    for tile, expert in zip(tiles.tolist(), listed.experts.tolist(), strict=False):
        own = [pair for pair in tile if pair < num_pairs]
        assert own
        assert set(tile) <= {*own, num_pairs}
        assert all(int(experts.flatten()[pair]) == expert for pair in own)
        found += own
    chosen = experts.flatten().tolist()
    assert found == sorted(range(num_pairs), key=lambda pair: (chosen[pair], pair))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("biased", [True, False])
def test_experts_in_mxfp4_are_widened_some_at_a_time(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, *, biased: bool
) -> None:
    """Bit for bit the numbers that they stand for, and what these answer; the last part is
    smaller than the others.
    """
    hidden, width, count, active, num_rows = 96, 64, 5, 2, 19
    monkeypatch.setattr(widened, "_PART_NUMBERS", 2 * 2 * width * hidden)
    stacks = [
        formed(drawn(count * rows, depth, seed=rows) * 0.2, "mxfp4").to(device)
        for rows, depth in ((2 * width, hidden), (hidden, width))
    ]
    assert isinstance(stacks[0], Mxfp4Weight)
    assert isinstance(stacks[1], Mxfp4Weight)
    held = []
    for part in widened.parts(stacks[0], count):
        held.append((part.first, part.num_experts))
        rows = slice(part.first * 2 * width, (part.first + part.num_experts) * 2 * width)
        assert torch.equal(part.stack, dequantise_mxfp4(stacks[0].rows(rows), torch.bfloat16))
    assert held == [(0, 2), (2, 2), (4, 1)]
    routed = Routed(*(each.to(device) for each in routed_rows("any", num_rows, count, active)[:2]))
    x, residual = (drawn(num_rows, hidden, seed=seed).bfloat16().to(device) for seed in (0, 5))
    weights = ExpertWeights(x)
    if biased:
        weights = weights._replace(
            gate_up_bias=drawn(count, 2 * width, seed=8).bfloat16().to(device),
            down_bias=drawn(count, hidden, seed=9).bfloat16().to(device),
        )
    routing = Routing(count, active)
    gated = reference.gate_up(x, stacks[0], weights.gate_up_bias, routed, routing, CLAMPED)
    wanted = reference.down(gated, stacks[1], weights.down_bias, routed, routing, residual)
    for _ in range(2):  # the counters are as they were
        found = many.mix_widened(
            x, stacks[0], stacks[1], weights, routed, count, CLAMPED, residual.clone()
        )
        assert_near(found, wanted)


@pytest.mark.parametrize(("dtype", "pairs", "wide"), [
    (torch.bfloat16, 36 * 8, True),
    (torch.bfloat16, 36 * 8 - 1, False),
    (torch.float16, 36 * 8, False),
])  # fmt: skip
def test_few_pairs_are_not_worth_widening(dtype: torch.dtype, pairs: int, *, wide: bool) -> None:
    """Few pairs are not worth widening, and a power of two that float16 lacks must not be rounded
    away.
    """
    stack = formed(drawn(8, 32), "mxfp4")
    assert widened.widens(torch.zeros(1, 32, dtype=dtype), stack, pairs, 8) is wide
    assert not widened.widens(torch.zeros(1, 32, dtype=torch.bfloat16), drawn(8, 32), pairs, 8)


def test_experts_of_many_rows_are_the_same_beside_any_others_if_invariant(
    device: torch.device,
) -> None:
    """Bit for bit; otherwise so many rows have tiles of their own."""
    routing, weights = Routing(20, 2), ExpertWeights(drawn(20, 48, seed=1).to(device))
    x = drawn(513, 48).to(device)
    whole = router.route(x, weights, routing, invariant=True)
    for row in (0, 250, 512):
        alone = router.route(x[row : row + 1].contiguous(), weights, routing, invariant=True)
        assert torch.equal(alone.experts[0], whole.experts[row])
        assert torch.equal(alone.weights[0], whole.weights[row])
