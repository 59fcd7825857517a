"""Segments in CUDA C++: how they are cut and where, and on a Hopper card what comes out."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from kernels.attention import extend_attention, paged
from kernels.attention.config import EXTEND_CONFIG, PrefillConfig
from kernels.attention.plan import ExtendSegment
from kernels.attention.prefill import prefill
from kernels.attention.work import prefill_work, to_device
from kernels.cuda.hopper import SHARED_BYTES
from tests.fakes.uninterpreted import run_uninterpreted
from tests.kernels.attention_cases import EPS, Case, Segments, Shape, distance, expected, make_case
from tests.kernels.test_attention_bucket import check_order, check_padded

PIECES = EXTEND_CONFIG._replace(piece=128)

FEW = 5
"""Multiprocessors, so that each of as many programs takes item after item."""

UNCUT = EXTEND_CONFIG._replace(piece=1 << 20)

QWEN3 = Shape(heads=32, kv=8, dim=128, block_size=32, dtype=torch.bfloat16)
SMALL = Shape(heads=8, kv=2, dim=128, block_size=32, dtype=torch.bfloat16)
SHAPES = [
    QWEN3,
    *(Shape(heads, 8, 128, 32, torch.bfloat16) for heads in (8, 16, 64)),
    Shape(40, 8, 128, 16, torch.bfloat16),
    Shape(12, 4, 128, 64, torch.bfloat16),
    Shape(4, 2, 128, 128, torch.bfloat16),
]

_IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
on_hopper = [
    pytest.mark.gpu,
    pytest.mark.skipif(not _IS_HOPPER or find_spec("cuda") is None, reason="needs a Hopper card"),
]


def test_what_it_serves() -> None:
    """What the kernel serves is checked in a process of its own, where Triton compiles; see
    `extend_attention_checks`.
    """
    checks = "check_shapes", "check_ampere", "check_blackwell", "check_compiler"
    run_uninterpreted("tests.kernels.extend_attention_checks", *checks)


def test_a_program_fits_the_card() -> None:
    """The tiles and barriers of a program fit into the card's shared memory."""
    assert extend_attention.shared_bytes() <= SHARED_BYTES


PASTS = st.lists(st.tuples(st.integers(0, 40_000), st.integers(2, 1500)), min_size=1, max_size=4)


def _last_end(config: PrefillConfig, laid: list[ExtendSegment]) -> int:
    """When the last program ends, in keys: rounds go through them back and forth."""
    items = prefill_work(laid, 0, 32, 8, config, library=False).items
    costs = np.repeat(items[:, 5] - items[:, 4], 8) + config.start
    rounds = np.zeros((-(-len(costs) // config.target), config.target))
    rounds.reshape(-1)[: len(costs)] = costs
    rounds[1::2] = rounds[1::2, ::-1]
    return int(rounds.sum(0).max())


@given(PASTS)
@example([(0, 991), (0, 960), (1, 1133), (3477, 2)])  # four rounds, and one tile of thrice the keys
def test_cuts_are_worth_it(pasts: list[tuple[int, int]]) -> None:
    """No mix ends later than uncut."""
    laid = [ExtendSegment(0, length, start, 0) for start, length in pasts]
    assert _last_end(EXTEND_CONFIG, laid) <= _last_end(UNCUT, laid)


def test_ten_tiles_are_cut_in_thirds() -> None:
    """80 programs of 8,500 keys on 132 places: halves take as long, thirds end earlier."""
    laid = [ExtendSegment(0, 300, 8192, 0)]
    items = prefill_work(laid, 0, 32, 8, EXTEND_CONFIG, library=False).items
    assert len(items) == 30
    assert _last_end(EXTEND_CONFIG, laid) < 0.8 * _last_end(UNCUT, laid)


MIXES: list[Segments] = [
    ((0, 128),),
    ((0, 2),),
    ((7, 1), (100, 37), (0, 65), (513, 200)),
    ((400, 16), (31, 16), (0, 128), (1000, 16), (77, 9), (255, 1), (128, 16)),  # halves of tiles
    ((1500, 33), (127, 2), (128, 130), (31, 95)),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_few_multiprocessors_take_many_rounds(shape: Shape) -> None:
    """Few multiprocessors take many rounds of the last mix, with pieces: both places of queries are
    used again, in both directions.
    """
    case = make_case(MIXES[-1], shape)
    segments, sizes = case.paged_plan().prefills, (case.num_decodes, shape.heads, shape.kv)
    work = prefill_work(segments, *sizes, PIECES, library=False)
    assert work.num_partials
    assert len(work.items) * shape.kv > 5 * FEW


def _attend(case: Case, config: PrefillConfig) -> torch.Tensor:
    """The segments of a step, whose rows lie behind its decodes; NaN where nothing was written."""
    plan, shape = case.paged_plan(), case.shape
    args = case.qkv, case.qk_norm, EPS, case.cos_sin, case.keys, case.values, plan
    queries = paged.qk_norm_rope_write(*args, paged.choose.write_config())
    sizes = plan.num_decodes, shape.heads, shape.kv
    work = to_device(prefill_work(plan.prefills, *sizes, config, library=False), case.qkv.device)
    out = case.qkv.new_full((len(case.qkv), shape.heads * shape.dim), torch.nan)
    prefill(queries, case.keys, case.values, plan, work, config, out)
    return out


class TestOnHopper:
    """Parity with float64, among NaN."""

    pytestmark = on_hopper

    @pytest.mark.parametrize(("config", "places"), [(EXTEND_CONFIG, None), (PIECES, FEW)])
    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("mix", MIXES)
    def test_extend_attention(
        self,
        mix: Segments,
        shape: Shape,
        config: PrefillConfig,
        places: int | None,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Segments of odd lengths behind odd pasts, whole and in pieces, each answer twice; side by
        side on the card, and one after the other.
        """
        if places is not None:
            monkeypatch.setattr(extend_attention, "multiprocessors", lambda _: places)
        case = make_case(mix, shape).to(torch.device("cuda"))
        out = _attend(case, config)
        wanted = expected(make_case(mix, shape))[0]
        wanted[: case.num_decodes] = torch.nan  # not computed here
        assert distance(out.cpu(), wanted) < 1e-2
        again = _attend(make_case(mix, shape).to(torch.device("cuda")), config)
        assert torch.equal(out.nan_to_num(), again.nan_to_num())

    @pytest.mark.parametrize("places", [None, FEW])
    @pytest.mark.parametrize("mix", [((40, 1), (0, 1), (100, 5), (0, 90)), ((300, 2),)])
    def test_a_padded_step_equals_the_exact_one(
        self, mix: Segments, places: int | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Bit for bit; items without rows do nothing."""
        if places is not None:
            monkeypatch.setattr(extend_attention, "multiprocessors", lambda _: places)
        check_padded(mix, SMALL, (5, 112), torch.device("cuda"), EXTEND_CONFIG)

    def test_rows_that_come_late_are_waited_for(self) -> None:
        """Though it may begin before the kernel ahead of it has ended."""
        check_order(SMALL, EXTEND_CONFIG)
