"""Rows that may be taken back, by the kernels: as in the reference, and decodes to the last bit."""

from typing import Final

import pytest
import torch
from torch import Tensor

from kernels.delta_rule import (
    DeltaPlan,
    DeltaRing,
    DeltaSizes,
    DeltaState,
    DeltaWeights,
    RowSpan,
    VerifyPlan,
    plan_spans,
    plan_verified,
)
from kernels.delta_rule import layer as plain
from kernels.delta_rule.row_steps import FEW_ROW_TILES, MANY_ROW_TILES, RowTiles
from kernels.delta_rule.verified import verify
from tests.fakes.pairs import each_pair, seldom
from tests.kernels.delta_cases import EPS, SIZES, Layer, drawn_rows, layer

CPU: Final = torch.device("cpu")
WIDE: Final = DeltaSizes(num_key_heads=1, num_value_heads=2, key_dim=40, value_dim=72)
ONE_KEY: Final = DeltaSizes(num_key_heads=1, num_value_heads=2, key_dim=16, value_dim=12)
"""No more heads than share a key: the interpreter runs the programs of each in turn."""
EVEN: Final = DeltaSizes(num_key_heads=1, num_value_heads=2, key_dim=32, value_dim=32)
REAL: Final = DeltaSizes(num_key_heads=16, num_value_heads=48, key_dim=128, value_dim=128)
TILES: Final = [FEW_ROW_TILES, MANY_ROW_TILES]
OTHER_TILES: Final = [
    RowTiles(lanes=4, registers=255, stages=2),
    RowTiles(lanes=16, streams=True, group=8, num_warps=8),
]
DTYPES: Final = [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)]
TILE_IDS: Final = ["few", "many", "four lanes", "sixteen lanes"]
MOST: Final = 7
NUM_SLOTS: Final = 8
STEPS: Final = {
    "a decode": [RowSpan(6, 1, 3, 0)],
    "a decode behind drafts": [RowSpan(6, 1, 3, 2)],
    "nothing to fold": [RowSpan(6, 4, 3, 0)],
    "all there is": [RowSpan(9, 1 + MOST, 0, MOST), RowSpan(0, 1, 4, 0), RowSpan(9, 2, 1, MOST)],
    "padding": [RowSpan(5, 3, 2, 1), RowSpan(-1, 2, 7), RowSpan(8, 1, 0, 5), RowSpan(-1, 0, 7)],
    "beside prompts": [
        RowSpan(0, 70, 4),
        RowSpan(5, 2, 2, 1),
        RowSpan(64, 3, 0),
        RowSpan(4, 5, 1, 3),
    ],
}


def begun(of: Layer) -> Layer:
    """Slots of sequences that have begun, and rings of drafts; slots 4 and up hold NaN."""
    generator = torch.Generator().manual_seed(3)
    for part in (*of.state, *of.ring):
        drawn = torch.randn(part[:4].shape, generator=generator)
        part[:4] = drawn.to(part.dtype) / 4
    return of


def moved(of: Layer, device: torch.device) -> Layer:
    return Layer(
        DeltaWeights(*[part.to(device) for part in of.weights]),
        DeltaState(*[part.to(device) for part in of.state]),
        DeltaRing(*[part.to(device) for part in of.ring]),
    )


def planned(spans: list[RowSpan], device: torch.device) -> tuple[VerifyPlan, DeltaPlan]:
    return plan_verified(spans, device), plan_spans(spans, device)


def verified(
    of: Layer,
    rows: tuple[Tensor, Tensor],
    spans: list[RowSpan],
    sizes: DeltaSizes = SIZES,
    tiles: RowTiles | None = None,
) -> Tensor:
    """Verify rows by the kernels; the layer's states move on."""
    device = of.state.matrices.device
    given = [part.to(device) for part in rows]
    plans = planned(spans, device)
    return verify(*given, of.weights, EPS, of.state, of.ring, *plans, sizes, tiles)


def own_rows(spans: list[RowSpan]) -> list[int]:
    """The rows of spans that do not pad the step."""
    found, first = [], 0
    for span in spans:
        found += range(first, first + span.length) if span.start >= 0 else ()
        first += span.length
    return found


def distance(found: Tensor, wanted: Tensor) -> float:
    return float((found.cpu().double() - wanted.double()).norm() / wanted.double().norm())


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    ("name", "size", "tile"), each_pair([*STEPS], ["small", "wide", "even"], TILE_IDS[:2])
)
def test_steps_are_those_of_the_reference(
    name: str, size: str, tile: str, device: torch.device
) -> None:
    """Out, matrices, tails and rings; slots and rows of no span keep their content."""
    spans, sizes = STEPS[name], {"small": SIZES, "wide": WIDE, "even": EVEN}[size]
    tiles = TILES[TILE_IDS.index(tile)]
    rows = drawn_rows(sum(span.length for span in spans), 5, sizes=sizes)
    of = begun(layer(NUM_SLOTS, sizes=sizes, most_rows=MOST))
    found = moved(begun(layer(NUM_SLOTS, sizes=sizes, most_rows=MOST)), device)
    expected = plain.verify(*rows, of.weights, EPS, of.state, of.ring, *planned(spans, CPU), sizes)
    out = verified(found, rows, spans, sizes, tiles)
    own = own_rows(spans)
    assert distance(out[own], expected[own]) < 1e-5
    for part, wanted in zip((*found.state, *found.ring), (*of.state, *of.ring), strict=True):
        assert torch.equal(part.cpu().isnan(), wanted.isnan())
        torch.testing.assert_close(part.cpu(), wanted, atol=1e-5, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("tiles", [*TILES, *seldom(*OTHER_TILES)], ids=TILE_IDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_state_does_not_know_what_was_guessed(
    dtype: torch.dtype, tiles: RowTiles, device: torch.device
) -> None:
    """Rounds of drafts, some of which are kept, and the same rows one by one: not a bit differs,
    beside other sequences or alone.
    """
    guessed, single = (
        moved(begun(layer(NUM_SLOTS, sizes=ONE_KEY, most_rows=MOST, dtype=dtype)), device)
        for _ in range(2)
    )
    at, kept = 70, 0
    for count, wanted in ((4, 2), (1 + MOST, MOST), (3, 0), (1, 0)):
        rows = drawn_rows(count + 3, at, sizes=ONE_KEY, dtype=dtype)
        others = [RowSpan(0, 1, 5, 0), RowSpan(9, 2, 2, 0)]
        spans = [others[0], RowSpan(at, count, 1, kept), others[1]]
        out = verified(guessed, rows, spans, ONE_KEY, tiles)
        kept = min(wanted, count - 1)
        for row in range(1, 2 + kept):
            part = rows[0][row : row + 1], rows[1][row : row + 1]
            expected = verified(single, part, [RowSpan(at, 1, 1, 0)], ONE_KEY, tiles)
            assert torch.equal(out[row : row + 1], expected)
            if row == 1:
                for found, wanted_part in zip(guessed.state, single.state, strict=True):
                    assert torch.equal(found[1], wanted_part[1])
            at += 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [EVEN, REAL], ids=["even", "27b"])
def test_no_tiles_change_a_state(
    sizes: DeltaSizes, dtype: torch.dtype, device: torch.device
) -> None:
    """Steps of few and of many sequences have others: the same bits, but for other lanes."""
    if sizes is REAL and device.type == "cpu":
        pytest.skip("the interpreter takes minutes")
    spans = STEPS["all there is"]
    rows = drawn_rows(sum(span.length for span in spans), 5, sizes=sizes, dtype=dtype)
    states = []
    for tiles in (*TILES, RowTiles(stages=2, group=8, num_warps=2), RowTiles(num_warps=8)):
        of = layer(NUM_SLOTS, sizes=sizes, most_rows=MOST, dtype=dtype)
        found = moved(begun(of), device)
        verified(found, rows, spans, sizes, tiles)
        states.append(found.state.matrices[:4])
    assert states[0].isfinite().all()
    for state in states[1:]:
        assert torch.equal(state, states[0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("tiles", [*TILES, *OTHER_TILES], ids=TILE_IDS)
def test_the_sizes_of_a_27b_in_a_graph(tiles: RowTiles) -> None:
    """The sizes of a 27B in a graph, in bfloat16, within what that rounds; replayed with other
    spans than it was captured with.
    """
    cuda, dtype, most_rows = torch.device("cuda"), torch.bfloat16, 12
    of = begun(layer(NUM_SLOTS, sizes=REAL, most_rows=MOST))
    found = moved(begun(layer(NUM_SLOTS, sizes=REAL, most_rows=MOST, dtype=dtype)), cuda)
    spans = [[RowSpan(9, 4, 0, 3), RowSpan(7, 1, 1, 0), RowSpan(-1, 0, 7)]]
    spans.append([RowSpan(13, 1, 0, 0), RowSpan(8, 3, 1, 0), RowSpan(3, 8, 2, MOST)])
    words = [planned(each, cuda) for each in spans]
    taken = words[0][0]._replace(most_folds=most_rows)
    plan, rows = words[0][1], drawn_rows(most_rows, 1, sizes=REAL, dtype=dtype)
    given = [part.to(cuda) for part in rows]
    saved = [part.clone() for part in (*found.state, *found.ring)]

    def run() -> Tensor:
        return verify(*given, found.weights, EPS, found.state, found.ring, taken, plan, REAL, tiles)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    for part, before in zip((*found.state, *found.ring), saved, strict=True):
        part.copy_(before)
    for each, (own_taken, own_plan) in zip(spans, words, strict=True):
        for held, new in zip((*taken[:3], *plan[:3]), (*own_taken[:3], *own_plan[:3]), strict=True):
            held.copy_(new)
        graph.replay()
        wide = [part.float() for part in rows]
        expected = plain.verify(
            *wide, of.weights, EPS, of.state, of.ring, *planned(each, CPU), REAL
        )
        own = own_rows(each)
        assert distance(out[own], expected[own]) < 3e-2
        assert distance(found.state.matrices[:4], of.state.matrices[:4]) < 3e-2
        assert distance(found.ring.rows[:4], of.ring.rows[:4]) < 1e-2
