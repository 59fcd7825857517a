"""The kernels of a layer of the gated delta rule are its reference, for any spans of a step."""

from typing import Final

import pytest
import torch
from torch import Tensor

from kernels.delta_rule import (
    NO_SPAN,
    DeltaPlan,
    DeltaSizes,
    DeltaState,
    DeltaWeights,
    RowSpan,
    plan_spans,
)
from kernels.delta_rule import (
    device as on_device,
)
from kernels.delta_rule import (
    layer as plain,
)
from kernels.delta_rule.device import FEW_TILES, MANY_TILES, SOME_TILES
from kernels.delta_rule.fused import FusedTiles
from kernels.delta_rule.shapes import GateProduct, sizes_of
from kernels.delta_rule.streamed import StreamTiles, fitting_stages
from kernels.rms_norm import rms_norm
from tests.fakes.pairs import each_once
from tests.kernels.delta_cases import EPS, SIZES, Layer, drawn_rows, layer

WIDE: Final = DeltaSizes(num_key_heads=1, num_value_heads=2, key_dim=40, value_dim=72)
EVEN: Final = DeltaSizes(num_key_heads=1, num_value_heads=1, key_dim=16, value_dim=128)
SHAPES: Final = {"small": SIZES, "wide": WIDE, "even": EVEN}
REAL: Final = DeltaSizes(num_key_heads=16, num_value_heads=48, key_dim=128, value_dim=128)
TILES: Final = {
    "few": FEW_TILES,
    "some": SOME_TILES,
    "the other dimension": SOME_TILES._replace(lanes_first=not SOME_TILES.lanes_first),
    "shared heads": FusedTiles(num_warps=2, registers=128, columns=16, values=32),
    "a warp a program": FusedTiles(num_warps=1, registers=128, columns=8, values=16),
    "whole rows": FusedTiles(num_warps=8, registers=128, columns=128),
    "streamed": MANY_TILES,
    "streamed heads": StreamTiles(num_warps=8, registers=168, values=128, stages=2),
}
STEPS: Final = {
    "decodes": ([RowSpan(0, 1, 2), RowSpan(7, 1, 0), RowSpan(3, 1, 4)], ()),
    "a prompt": ([RowSpan(0, 130, 1)], ()),
    "prompts that go on": ([RowSpan(0, 64, 0), RowSpan(10, 70, 3), RowSpan(64, 2, 1)], (3, 1)),
    "both": ([RowSpan(5, 1, 0), RowSpan(0, 1, 3), RowSpan(0, 3, 1), RowSpan(128, 65, 2)], (0, 2)),
}


def drawn(of: Layer, begun: tuple[int, ...], spans: list[RowSpan]) -> None:
    """Numbers in the slots of sequences that have begun; the others hold NaN."""
    generator = torch.Generator().manual_seed(3)
    for slot in {span.slot for span in spans if span.start > 0} | set(begun):
        for part in of.state:
            part[slot] = torch.randn(part[slot].shape, generator=generator).to(part.dtype) / 4


def mixed(
    of: Layer, rows: tuple[Tensor, Tensor], plan: DeltaPlan, device: torch.device
) -> tuple[Tensor, DeltaState]:
    """A mixed step by the kernels."""
    weights = DeltaWeights(*[part.to(device) for part in of.weights])
    state = DeltaState(*[part.to(device) for part in of.state])
    moved = plan._replace(
        **{
            name: getattr(plan, name).to(device)
            for name in ("starts", "slots", "offsets", "chunks")
        }
    )
    given = rows[0].to(device), rows[1].to(device)
    sizes = sizes_of(*given, weights, state)
    out = on_device.mix(*given, weights, EPS, state, moved, sizes)
    return out.cpu(), DeltaState(*[part.cpu() for part in state])


def distance(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("name", "size"), each_once([*STEPS], ["wide", "even", "small"]))
def test_steps_are_those_of_the_reference(name: str, size: str, device: torch.device) -> None:
    """Out, matrices and tails; slots of others keep their bits."""
    (spans, begun), sizes = STEPS[name], SHAPES[size]
    rows = drawn_rows(sum(span.length for span in spans), 5, sizes=sizes)
    wanted, found = layer(5, sizes=sizes), layer(5, sizes=sizes)
    for of in (wanted, found):
        drawn(of, begun, spans)
    plan = plan_spans(spans, torch.device("cpu"))
    expected = plain.mix(*rows, wanted.weights, EPS, wanted.state, plan, sizes)
    out, state = mixed(found, rows, plan, device)
    assert distance(out, expected) < 1e-5
    used = {span.slot for span in spans}
    for part, was, own in zip(state, wanted.state, found.state, strict=True):
        for slot in range(5):
            if slot in used:
                assert distance(part[slot], was[slot]) < 1e-5
            else:
                assert torch.equal(part[slot].isnan(), own[slot].isnan())


@pytest.mark.usefixtures("poisoned")
def test_keys_that_repeat_lose_no_digits(device: torch.device) -> None:
    """Keys that repeat lose no digits. Nothing decays and every row corrects all of the last: a
    system far from the identity.
    """
    rows, gates = drawn_rows(130, 9)
    rows[1:, : SIZES.columns - SIZES.value_columns] = rows[0, : SIZES.columns - SIZES.value_columns]
    half = SIZES.num_value_heads
    gates[:, :half], gates[:, half:] = 9.0, -20.0
    wanted, found = layer(1), layer(1)
    plan = plan_spans([RowSpan(0, 130, 0)], torch.device("cpu"))
    expected = plain.mix(rows, gates, wanted.weights, EPS, wanted.state, plan, SIZES)
    out, state = mixed(found, (rows, gates), plan, device)
    assert distance(out, expected) < 1e-4
    assert distance(state.matrices, wanted.state.matrices) < 1e-4


@pytest.mark.usefixtures("poisoned")
def test_padding_changes_nothing_but_its_slot(device: torch.device) -> None:
    """A captured step has decodes below position 0, chunks without a span and spans of no rows."""
    spans = [RowSpan(4, 1, 0), RowSpan(0, 70, 1)]
    rows = drawn_rows(71, 6, sizes=WIDE)
    alone, padded = layer(4, sizes=WIDE), layer(4, sizes=WIDE)
    for of in (alone, padded):
        drawn(of, (), spans)
    plan = plan_spans(spans, torch.device("cpu"))
    expected, _ = mixed(alone, rows, plan, device)
    more = tuple(torch.cat((part[:1], part[:1], part[1:], part[:9])) for part in rows)
    ints = lambda *values: torch.tensor(values, dtype=torch.int32)  # noqa: E731
    chunks = torch.tensor([[2, 0], [2, 1], [NO_SPAN, 0]], dtype=torch.int32)
    wide = DeltaPlan(ints(4, -1, 0, -1), ints(0, 3, 1, 3), ints(0, 1, 2, 72, 72), 2, chunks)
    out, state = mixed(padded, (more[0], more[1]), wide, device)
    assert torch.equal(out[:1], expected[:1])
    assert torch.equal(out[2:72], expected[1:])
    assert not state.matrices[:2].isnan().any()
    assert state.matrices[2].isnan().all()


@pytest.mark.usefixtures("poisoned")
def test_rows_that_are_left_out_can_follow(device: torch.device) -> None:
    """A span stops where its state is kept; its rest, among the rows of others, comes after."""
    whole = [RowSpan(4, 1, 0), RowSpan(0, 130, 1), RowSpan(0, 5, 2)]
    parts = [whole[0], RowSpan(0, 70, 1), RowSpan(-1, 60, 3), whole[2]]
    rows = drawn_rows(136, 8, sizes=WIDE)
    at_once, stopped = layer(4, sizes=WIDE), layer(4, sizes=WIDE)
    for of in (at_once, stopped):
        drawn(of, (), whole)
    cpu, rest = torch.device("cpu"), slice(71, 131)
    expected, wanted = mixed(at_once, rows, plan_spans(whole, cpu), device)
    out, kept = mixed(stopped, rows, plan_spans(parts, cpu), device)
    assert kept.matrices[3].isnan().all()
    behind = stopped._replace(state=kept)
    cut = (rows[0][rest], rows[1][rest])
    out[rest], state = mixed(behind, cut, plan_spans([RowSpan(70, 60, 1)], cpu), device)
    assert distance(out, expected) < 1e-5
    for part, exact in zip(state, wanted, strict=True):
        assert distance(part[:3], exact[:3]) < 1e-5


def stepped(
    of: Layer,
    rows: Tensor,
    gates: Tensor | GateProduct,
    plan: DeltaPlan,
    device: torch.device,
    tiles: FusedTiles | StreamTiles,
) -> tuple[Tensor, DeltaState]:
    """Decodes by the kernels, cut as `tiles` say."""
    weights = DeltaWeights(*[part.to(device) for part in of.weights])
    state = DeltaState(*[part.to(device) for part in of.state])
    moved = plan._replace(starts=plan.starts.to(device), slots=plan.slots.to(device))
    if isinstance(gates, GateProduct):
        hidden, norm, eps, weight = gates
        given = GateProduct(hidden.to(device), norm.to(device), eps, weight.to(device))
    else:
        given = gates.to(device)
    rows = rows.to(device)
    out = rows.new_full((len(rows), of.weights.norm.shape[0] * gates.shape[1] // 2), torch.nan)
    sizes = sizes_of(rows, given, weights, state)
    on_device.decode(rows, given, weights, EPS, state, moved, sizes, out, tiles)
    return out.cpu(), DeltaState(*[part.cpu() for part in state])


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("tiles", "size"), each_once([*TILES], ["wide", "even", "small"]))
def test_decodes_are_those_of_the_reference(tiles: str, size: str, device: torch.device) -> None:
    """However programs are cut; again and again, as what they count begins at nothing each time.
    Sequences that begin have tails of NaN. Padding moves nothing but its own slot.
    """
    sizes = SHAPES[size]
    wanted, found = layer(5, sizes=sizes), layer(5, sizes=sizes)
    for start in (0, 1, 2):
        spans = [RowSpan(start, 1, 2), RowSpan(-1, 1, 3), RowSpan(start, 1, 0)]
        rows, gates = drawn_rows(3, start, sizes=sizes)
        plan = plan_spans(spans, torch.device("cpu"))
        expected = plain.mix(rows, gates, wanted.weights, EPS, wanted.state, plan, sizes)
        out, state = stepped(found, rows, gates, plan, device, TILES[tiles])
        found = found._replace(state=state)
        assert distance(out[[0, 2]], expected[[0, 2]]) < 1e-5
        assert out[1].isfinite().all()
        for slot in (0, 2):
            assert distance(state.matrices[slot], wanted.state.matrices[slot]) < 1e-5
            assert torch.equal(state.tails[slot], wanted.state.tails[slot])
        assert state.matrices[1].isnan().all()


@pytest.mark.usefixtures("poisoned")
def test_four_taps_in_16_bits_are_one_word(device: torch.device) -> None:
    """Four taps in 16 bits are one word, as sequences of an engine have them; what that rounds is
    allowed.
    """
    exact, found = layer(3), layer(3, dtype=torch.bfloat16)
    for start in (0, 1):
        rows, gates = drawn_rows(2, start, dtype=torch.bfloat16)
        plan = plan_spans([RowSpan(start, 1, 2), RowSpan(start, 1, 0)], torch.device("cpu"))
        wide = rows.float(), gates.float()
        expected = plain.mix(*wide, exact.weights, EPS, exact.state, plan, SIZES)
        out, state = stepped(found, rows, gates, plan, device, StreamTiles())
        found = found._replace(state=state)
        assert distance(out, expected) < 3e-2
        for slot in (0, 2):
            assert distance(state.matrices[slot], exact.state.matrices[slot]) < 3e-2


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("width", [40, 1500])
def test_gates_may_be_their_product(width: int, device: torch.device) -> None:
    """The gates may be computed as their product, in one part of the columns or in several, of
    which the last is not full.
    """
    drawn_by = torch.Generator().manual_seed(width)
    rows, _ = drawn_rows(2, 7)
    hidden, norm = torch.randn(2, width, generator=drawn_by), torch.rand(width)
    weight = torch.randn(2 * SIZES.num_value_heads, width, generator=drawn_by) * width**-0.5
    gates = rms_norm(hidden, norm, 1e-5) @ weight.T
    wanted, found = layer(2), layer(2)
    plan = plan_spans([RowSpan(0, 1, 1), RowSpan(0, 1, 0)], torch.device("cpu"))
    expected = plain.mix(rows, gates, wanted.weights, EPS, wanted.state, plan, SIZES)
    product = GateProduct(hidden, norm, 1e-5, weight)
    out, state = stepped(found, rows, product, plan, device, FEW_TILES)
    assert distance(out, expected) < 1e-5
    assert distance(state.matrices, wanted.state.matrices) < 1e-5
    with pytest.raises(TypeError, match="numbers"):
        stepped(found, rows, product, plan, device, MANY_TILES)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("tiles", TILES)
@pytest.mark.parametrize("num", [1, 2, 9, 40])
def test_decodes_of_a_27b(tiles: str, num: int) -> None:
    """Decodes of a 27B in bfloat16, with and without their product: the same bits each time,
    whichever program comes last.
    """
    cuda, dtype = torch.device("cuda"), torch.bfloat16
    exact, rounded = layer(num, sizes=REAL), layer(num, sizes=REAL, dtype=dtype)
    weight = (torch.randn(96, 5120) / 5120**0.5).to(dtype)
    products = (False, True) if isinstance(TILES[tiles], FusedTiles) and num <= 2 else (False,)
    for start, with_product in enumerate((*products, *products)):
        plan = plan_spans([RowSpan(start, 1, at) for at in range(num)], torch.device("cpu"))
        rows, gates = drawn_rows(num, start, sizes=REAL, dtype=dtype)
        given: Tensor | GateProduct = gates
        if with_product:
            hidden = torch.randn(num, 5120).to(dtype)
            given = GateProduct(hidden, torch.ones(5120), 1e-6, weight)
            gates = (rms_norm(hidden.float(), torch.ones(5120), 1e-6) @ weight.float().T).to(dtype)
        wide = rows.float(), gates.float()
        wanted = plain.mix(*wide, exact.weights, EPS, exact.state, plan, REAL)
        runs = [stepped(rounded, rows, given, plan, cuda, TILES[tiles]) for _ in range(3)]
        out, state = runs[0]
        for again, same in runs[1:]:
            assert torch.equal(out, again)
            assert torch.equal(state.matrices, same.matrices)
            assert torch.equal(state.tails, same.tails)
        rounded = rounded._replace(state=state)
        assert distance(out, wanted) < 3e-2
        assert distance(state.matrices, exact.state.matrices) < 3e-2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("lengths", [(1,) * 9, (700,), (1, 1, 130, 64)])
def test_the_sizes_of_a_27b(lengths: tuple[int, ...]) -> None:
    """The sizes of a 27B in bfloat16, within what that rounds, in a step that goes on behind
    another.
    """
    cuda, dtype = torch.device("cuda"), torch.bfloat16
    exact, rounded = layer(len(lengths), sizes=REAL), layer(len(lengths), sizes=REAL, dtype=dtype)
    for start in (0, 1):
        spans = [RowSpan(start * length, length, at) for at, length in enumerate(lengths)]
        plan = plan_spans(spans, torch.device("cpu"))
        rows = drawn_rows(sum(lengths), start, sizes=REAL, dtype=dtype)
        wide = rows[0].float(), rows[1].float()
        wanted = plain.mix(*wide, exact.weights, EPS, exact.state, plan, REAL)
        out, state = mixed(rounded, rows, plan, cuda)
        rounded = rounded._replace(state=state)
        assert distance(out, wanted) < 3e-2
        assert distance(state.matrices, exact.state.matrices) < 3e-2


@pytest.mark.parametrize(("card_kib", "stages"), [(227, 4), (163, 4), (99, 3), (48, 2), (16, 1)])
def test_stages_of_states_fit_a_card(card_kib: int, stages: int) -> None:
    """A 27B's tile of a state has 32 KiB; compiled, four stages of it take 102.4 KiB."""
    tile_bytes = 4 * REAL.key_dim * MANY_TILES.values
    assert fitting_stages(card_kib * 1024, tile_bytes, MANY_TILES.stages) == stages
