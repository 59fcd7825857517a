"""Segments are cut so that every row meets every key once; a step of all kinds runs through."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.attention import ExtendSegment, library, paged
from kernels.attention.config import EXTEND_CONFIG, LIBRARY_GRAIN, PrefillConfig
from kernels.attention.prefill import parts_of
from kernels.attention.work import HostWork, prefill_work
from tests.kernels.attention_cases import (
    EPS,
    Case,
    Segments,
    Shape,
    distance,
    expected,
    laid_out,
    make_case,
)

SEGMENTS = st.lists(st.tuples(st.integers(0, 700), st.integers(2, 90)), min_size=1, max_size=5)
CONFIGS = st.builds(
    PrefillConfig,
    rows=st.sampled_from([16, 32, 128]),
    tile=st.sampled_from([16, 64]),
    warps=st.just(4),
    stages=st.just(2),
    target=st.sampled_from([1, 8, 132]),
    piece=st.sampled_from([16, 256]),
    waves=st.sampled_from([1, 4]),
    start=st.sampled_from([0, 640]),
    library=st.just(LIBRARY_GRAIN),
    cuda=st.just(False),
    fixed=st.just(False),
)


def _seen(work: HostWork, num_rows: int) -> list[list[tuple[int, int]]]:
    """The key ranges of each row's items, up to the row's own position."""
    seen: list[list[tuple[int, int]]] = [[] for _ in range(num_rows)]
    for row, rows, position, _, begin, end, _, _ in work.items.tolist():
        for offset in range(rows):
            seen[row + offset].append((begin, min(end, position + offset + 1)))
    return seen


@given(SEGMENTS, CONFIGS, st.sampled_from([1, 2, 4, 16]), st.integers(0, 3))
def test_every_row_meets_every_key_once(
    segments: list[tuple[int, int]], config: PrefillConfig, group: int, num_decodes: int
) -> None:
    """Every row meets every key once for any segments, heads and pieces; partial results have slots
    of their own.
    """
    laid = laid_out(segments, num_decodes)
    work = prefill_work(laid, num_decodes, 2 * group, 2, config, library=False)
    num_rows = sum(length for _, length in segments)
    seen = _seen(work, num_rows)
    for segment in laid:
        for offset in range(segment.num_rows):
            end = 0
            for begin, stop in sorted(seen[segment.first_row - num_decodes + offset]):
                assert begin == end or stop <= begin
                end = max(end, stop)
            assert end == segment.start + offset + 1
    slots = [
        slot + offset
        for _, rows, _, _, _, _, slot, _ in work.items.tolist()
        if slot >= 0
        for offset in range(rows)
    ]
    assert sorted(slots) == list(range(work.num_partials))
    merged = [first + i * stride for _, first, n, stride in work.merges.tolist() for i in range(n)]
    assert sorted(merged) == sorted(slots)


@given(SEGMENTS, CONFIGS)
def test_pieces_start_at_whole_tiles(
    segments: list[tuple[int, int]], config: PrefillConfig
) -> None:
    """The kernel's whole tiles rely on it; the longest items come first."""
    items = prefill_work(laid_out(segments, 0), 0, 4, 2, config, library=False).items
    assert not (items[:, 4] % config.tile).any()
    assert (np.diff(items[:, 5] - items[:, 4]) <= 0).all()


@pytest.mark.parametrize(("num_heads", "num_kv"), [(32, 8), (16, 8), (64, 8), (8, 4)])
@given(st.lists(st.tuples(st.integers(0, 100_000), st.integers(2, 3000)), min_size=1, max_size=20))
def test_steps_of_any_segments_share_one_scratch(
    num_heads: int, num_kv: int, segments: list[tuple[int, int]]
) -> None:
    """Steps of any segments fit into one scratch, whose size is known before the steps, however
    they are cut.
    """
    work = prefill_work(laid_out(segments, 0), 0, num_heads, num_kv, EXTEND_CONFIG, library=False)
    whole = prefill_work(laid_out([(0, 2)], 0), 0, num_heads, num_kv, EXTEND_CONFIG, library=False)
    sizes = [
        parts_of(torch.device("meta"), num_heads, num_kv, 128, one)[0].numel()
        for one in (work, whole)
    ]
    assert sizes == [2**24] * 2


def test_the_library_gets_whole_multiples() -> None:
    """The kernel computes the remainder of a segment, and segments that do not start at a
    multiple.
    """
    grain = LIBRARY_GRAIN
    segments = [
        ExtendSegment(0, 2 * grain + 7, grain, 0),
        ExtendSegment(2 * grain + 7, grain, 5, 1),
    ]
    config = PrefillConfig(rows=128, tile=64, warps=8, stages=3, target=1)
    work = prefill_work(segments, 0, 4, 2, config, library=True)
    assert work.library == (ExtendSegment(0, 2 * grain, grain, 0),)
    assert int(work.items[:, 1].sum()) == 7 + grain
    assert (work.items[:, 0] >= 2 * grain).all()
    nothing = prefill_work([ExtendSegment(0, grain, 0, 0)], 0, 4, 2, config, library=True)
    assert nothing.items.shape == (0, 8)


MIXED: Segments = ((3, 1), (40, 1), (0, 17), (20, 9))


def _attend(case: Case) -> torch.Tensor:
    plan, shape = case.paged_plan(), case.shape
    plan = paged.prepared(plan, shape.heads, case.keys, shape.dtype)
    args = case.qkv, case.qk_norm, EPS, case.cos_sin, case.keys, case.values, plan
    return paged.attend(*args)


def test_a_step_of_decodes_and_segments(device: torch.device) -> None:
    """All launches of a mixed step together, as configured for the card."""
    case = make_case(MIXED, Shape()).to(device)
    out = _attend(case)
    for got, want in zip(
        (out, case.keys, case.values), expected(make_case(MIXED, Shape())), strict=True
    ):
        assert distance(got.cpu(), want) < 1e-5


def test_segments_without_work_are_refused(device: torch.device) -> None:
    """A plan that was not prepared is an error, not a wrong answer."""
    case = make_case(MIXED, Shape()).to(device)
    args = case.qkv, case.qk_norm, EPS, case.cos_sin, case.keys, case.values, case.paged_plan()
    with pytest.raises(ValueError, match="work"):
        paged.attend(*args)


def _plain(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    group = queries.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = torch.einsum("thd,shd->hts", queries, keys) * scale
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores[0]).triu(1).bool(), -torch.inf)
    return torch.einsum("hts,shd->thd", scores.softmax(-1), values), scores.logsumexp(-1)


@pytest.mark.parametrize("start", [0, 24])
def test_two_calls_of_the_library_make_one_attention(start: int, device: torch.device) -> None:
    """Past and own keys are blended by their log-sum-exps; blocks are gathered in order."""
    case = make_case(((5, 1), (start, 10)), Shape())
    wanted = expected(case)[0]
    case = case.to(device)
    plan = case.paged_plan()
    args = case.qkv, case.qk_norm, EPS, case.cos_sin, case.keys, case.values, plan
    queries = paged.qk_norm_rope_write(*args, paged.choose.write_config())
    segment = plan.prefills[0]
    out = library.attend_segment(_plain, queries, case.keys, case.values, plan, segment)
    assert distance(out.flatten(1).cpu(), wanted[1:]) < 1e-5


@pytest.mark.gpu
def test_long_segments_by_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long segments go through the library on a card whose cuDNN works: 1024 rows of a cold
    segment, beside our kernel, also where ours is the faster one up to many more.
    """
    chosen = paged.choose.prefill_config

    def early(
        num_heads: int, keys: torch.Tensor, dtype: torch.dtype, **modes: bool
    ) -> PrefillConfig:
        return chosen(num_heads, keys, dtype, **modes)._replace(library=LIBRARY_GRAIN)

    monkeypatch.setattr(paged.choose, "prefill_config", early)
    segments = ((0, LIBRARY_GRAIN + 40), (LIBRARY_GRAIN, LIBRARY_GRAIN - 24))
    shape = Shape(heads=4, kv=2, dim=128, block_size=32, dtype=torch.bfloat16)
    assert library.form(shape.heads, shape.kv, shape.dim, shape.dtype) is not None
    case = make_case(segments, shape).to(torch.device("cuda"))
    plan = paged.prepared(case.paged_plan(), shape.heads, case.keys, shape.dtype)
    assert plan.work is not None
    assert [segment.num_rows for segment in plan.work.library] == [LIBRARY_GRAIN]
    assert distance(_attend(case).cpu(), expected(make_case(segments, shape))[0]) < 2e-2
