"""A step padded to fixed sizes computes what the exact one does, and nothing beside it."""

# ruff: noqa: ANN001, ANN202, N803 - device code is typed by Triton

from dataclasses import replace

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.attention import NO_ROW, PagedPlan, reference
from kernels.attention.config import LIBRARY_GRAIN, DecodeConfig, PrefillConfig, WriteConfig
from kernels.attention.decode import decode
from kernels.attention.prefill import prefill
from kernels.attention.shares import decode_shares
from kernels.attention.work import SegmentBucket, prefill_work, segment_bucket, to_device
from kernels.attention.write import qk_norm_rope_write
from tests.kernels.attention_cases import EPS, Case, Runs, Segments, Shape, laid_out, make_case
from tests.kernels.test_attention_work import CONFIGS

# Few programs: the interpreter takes a millisecond for each that has nothing to do.
DECODES = DecodeConfig(tile=16, warps=4, stages=2, target=4, rows=16, fan=2)
TILES = PrefillConfig(rows=32, tile=16, warps=4, stages=2, target=4, piece=16)
LIVES = st.lists(st.tuples(st.integers(0, 40_000), st.integers(2, 90)), max_size=6)


class _Asked(Exception):
    """For so many numbers."""


def _raise(_: torch.device, numbers: int) -> Tensor:
    raise _Asked(numbers)


@pytest.mark.parametrize("num_heads", [16, 32, 40, 64])
@pytest.mark.parametrize("num_rows", [32, 368, 1008])
def test_partial_results_take_what_a_bucket_can_need(
    num_heads: int, num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounded up once, where scratch is: twice was 128 MiB for 34."""
    config = PrefillConfig(rows=128, tile=128, warps=8, stages=2, target=132, waves=4)
    bucket = segment_bucket(num_rows, 16, num_heads, 8, config)
    work = bucket.work(torch.empty(bucket.num_words, dtype=torch.int32, device="meta"))
    queries = torch.empty(num_rows, num_heads, 128, device="meta")
    keys = torch.empty(1, 16, 8, 128, device="meta")
    plan = PagedPlan(keys, keys, keys, 0)
    monkeypatch.setattr("kernels.attention.prefill.scratch", _raise)
    with pytest.raises(_Asked) as asked:
        prefill(queries, keys, keys, plan, work, config, queries)
    assert asked.value.args[0] <= 1.01 * bucket.num_partials * num_heads * 129


@given(LIVES, CONFIGS, st.sampled_from([1, 2, 4, 16]), st.integers(1, 8), st.integers(0, 5))
def test_a_bucket_holds_the_work_of_any_segments(
    segments: list[tuple[int, int]], config: PrefillConfig, group: int, num_kv: int, spare: int
) -> None:
    """Items, merges and partial results of any segments stay within the bounds of their bucket,
    whatever their pasts. With fixed cuts the bounds are chosen, and `holds` says for which
    segments.
    """
    laid, num_rows = laid_out(segments, 3), sum(length for _, length in segments)
    bucket = segment_bucket(num_rows + spare, len(segments) + spare, group * num_kv, num_kv, config)
    assume(bucket.holds(laid))
    words = np.zeros(bucket.num_words, np.int32)
    bucket.lay_out(laid, 3, words)
    exact = prefill_work(laid, 3, group * num_kv, num_kv, config, library=False)
    work = bucket.work(torch.from_numpy(words))
    assert exact.num_partials <= work.num_partials
    for padded, wanted in ((work.items, exact.items), (work.merges, exact.merges)):
        assert np.array_equal(padded[: len(wanted)].numpy(), wanted)
        assert not padded[len(wanted) :].any()
    assert work.merges.shape[0] == bucket.num_rows


@given(LIVES, CONFIGS, st.sampled_from([1, 2, 4, 16]), st.lists(st.integers(0, 63), min_size=7))
def test_segments_may_begin_later_than_they_were_cut_for(
    segments: list[tuple[int, int]], config: PrefillConfig, group: int, steps: list[int]
) -> None:
    """Every row still meets every key once, and what else the words say stays."""
    laid, num_rows = laid_out(segments, 0), sum(length for _, length in segments)
    bucket = segment_bucket(num_rows, len(segments), group * 2, 2, config)
    words, moves = np.zeros((2, bucket.num_words), np.int32)
    bucket.lay_out(laid, 0, words)
    none = len(segments)
    owners = np.array([row if row % 3 else none for row in range(none + 1)], np.int32)
    moves[:] = none
    bucket.follow(words, owners, moves)
    by_table = np.array([*steps[:none], *[0] * (none - len(steps[:none])), 0], np.int32)
    moved = words + by_table[moves]
    seen: list[list[tuple[int, int]]] = [[] for _ in range(num_rows)]
    items = bucket.work(torch.from_numpy(moved)).items.tolist()
    before = bucket.work(torch.from_numpy(words)).items.tolist()
    for (row, rows, position, table, begin, end, slot, _), old in zip(items, before, strict=True):
        assert (row, rows, table, begin, slot) == (*old[:2], *old[3:5], old[6])
        for offset in range(rows):
            seen[row + offset].append((begin, min(end, position + offset + 1)))
    assert np.array_equal(moved[bucket._first_merge :], words[bucket._first_merge :])
    for first_row, length, start, table in laid:
        for offset in range(length):
            end = 0
            for begin, stop in sorted(seen[first_row + offset]):
                assert begin == end or stop <= begin
                end = max(end, stop)
            assert end == start + by_table[owners[table]] + offset + 1


def test_the_bounds_are_no_larger_than_needed() -> None:
    """Some segments behind long pasts come within a tile's keys of every bound."""
    config = PrefillConfig(rows=16, tile=16, warps=4, stages=2, target=16, piece=16)
    bucket = segment_bucket(32, 2, 2, 2, config)
    assert (bucket.num_items, bucket.num_partials) == (8 + 3, 16 * 8 + 32)
    work = prefill_work(laid_out([(10_000, 16), (9_990, 16)], 0), 0, 2, 2, config, library=False)
    assert len(work.items) == 8
    assert work.num_partials == 16 * 8
    assert len(work.merges) == bucket.num_rows


@pytest.mark.parametrize("segments", [((0, 9),), ((0, 3), (0, 3), (0, 2))])
def test_what_does_not_fit_is_refused(segments: Segments) -> None:
    """More rows, or more segments, than the bounds are made for."""
    bucket = segment_bucket(8, 2, 4, 2, PrefillConfig(16, 16, 4, 2, target=8))
    with pytest.raises(ValueError, match="do not fit"):
        bucket.lay_out(laid_out(segments, 0), 0, np.zeros(bucket.num_words, np.int32))


def test_the_library_has_no_bucket() -> None:
    """The work of the library is not known before the segments are."""
    with pytest.raises(ValueError, match="library"):
        segment_bucket(LIBRARY_GRAIN, 1, 4, 2, PrefillConfig(64, 32, 4, 4, target=264))


class Padded:
    """A case's step among the padding of a room for `num_decodes` decodes and for segments."""

    def __init__(
        self, case: Case, num_decodes: int, bucket: SegmentBucket, runs: Runs = ()
    ) -> None:
        plan, device = case.paged_plan(), case.qkv.device
        used = plan.num_decodes
        num_extended = case.qkv.shape[0] - used
        kept = torch.tensor([*range(used), *range(num_decodes, num_decodes + num_extended)])
        self.kept = kept.to(device)
        num_rows, dummy = num_decodes + bucket.num_rows, len(case.segments)
        self.qkv = torch.randn(num_rows, case.qkv.shape[1], device=device).to(case.qkv.dtype)
        self.qkv[self.kept] = case.qkv
        positions = torch.zeros(num_rows, dtype=torch.int32, device=device)
        positions[used:num_decodes] = NO_ROW
        positions[self.kept] = plan.positions
        table_rows = torch.full_like(positions, dummy)
        table_rows[self.kept] = plan.table_rows
        named = {int(block) for block in case.tables.unique()}
        self.dummy_block = next(b for b in range(len(case.keys)) if b not in named)
        padding = torch.full_like(case.tables[:1], self.dummy_block)
        prefills = [s._replace(first_row=s.first_row - used + num_decodes) for s in plan.prefills]
        words = np.zeros(bucket.num_words, np.int32)
        bucket.lay_out(prefills, num_decodes, words, runs)
        self.plan = PagedPlan(
            positions=positions,
            table_rows=table_rows,
            block_tables=torch.cat((case.tables, padding)),
            num_decodes=num_decodes,
            prefills=tuple(prefills),
            work=bucket.work(torch.from_numpy(words).to(device)),
        )


def _exact(case: Case, config: PrefillConfig) -> PagedPlan:
    plan, shape = case.paged_plan(), case.shape
    work = prefill_work(
        plan.prefills, plan.num_decodes, shape.heads, shape.kv, config, library=False
    )
    return replace(plan, work=to_device(work, case.qkv.device))


def attend_padded(case: Case, qkv: Tensor, plan: PagedPlan) -> Tensor:
    """All launches of a step, as `kernels.attention.paged` has them."""
    out = torch.full_like(qkv[:, : case.shape.heads * case.shape.dim], torch.nan)
    return _attend_into(out, case, qkv, plan)


def _attend_into(out: Tensor, case: Case, qkv: Tensor, plan: PagedPlan) -> Tensor:
    shape, work = case.shape, plan.work
    assert work is not None
    if plan.num_decodes and plan.shares is None:
        shares = decode_shares(plan.positions, plan.num_decodes, shape.kv, DECODES, work.shared)
        plan = replace(plan, shares=shares)
    args = qkv, case.qk_norm, EPS, case.cos_sin, case.keys, case.values, plan
    if plan.num_decodes and work.shared is None:
        decode(*args, DECODES, out)
    if plan.num_decodes < len(qkv):
        queries = qk_norm_rope_write(*args, WriteConfig())
        prefill(queries, case.keys, case.values, plan, work, work.config, out)
    if work.shared is not None:
        decode(*args, DECODES, out)
    return out


def check_padded(
    segments: Segments,
    shape: Shape,
    sizes: tuple[int, int],
    device: torch.device,
    config: PrefillConfig = TILES,
) -> None:
    """`sizes` are the bucket's rows of decodes and of segments."""
    case, alone = make_case(segments, shape).to(device), make_case(segments, shape).to(device)
    padded = Padded(case, sizes[0], segment_bucket(sizes[1], 4, shape.heads, shape.kv, config))
    out = attend_padded(case, padded.qkv, padded.plan)
    wanted = attend_padded(alone, alone.qkv, _exact(alone, config))
    assert torch.equal(out[padded.kept], wanted)
    others = torch.ones(len(out), dtype=torch.bool, device=device)
    others[padded.kept] = False
    assert out[others].isnan().all()
    for cache, expected in ((case.keys, alone.keys), (case.values, alone.values)):
        cache[padded.dummy_block] = torch.nan
        torch.testing.assert_close(cache.float(), expected.float(), rtol=0, atol=0, equal_nan=True)


PASTS = st.sampled_from([0, 1, 15, 16, 37, 70])
MIXES = st.tuples(
    st.lists(st.tuples(PASTS, st.just(1)), max_size=3),
    st.lists(st.tuples(PASTS, st.integers(2, 9)), min_size=0, max_size=3),
).filter(lambda mix: len(mix[0]) + len(mix[1]) > 0)


@given(mix=MIXES, spare=st.tuples(st.integers(0, 2), st.integers(1, 9)))
@settings(max_examples=4)
def test_a_padded_step_equals_the_exact_one(
    mix: tuple[list[tuple[int, int]], list[tuple[int, int]]],
    spare: tuple[int, int],
    device: torch.device,
) -> None:
    """Bit for bit, whatever is mixed and however much is padding; nothing else is written."""
    decodes, segments = mix
    sizes = max(1, len(decodes) + spare[0]), sum(length for _, length in segments) + spare[1]
    check_padded((*decodes, *segments), Shape(heads=2, kv=1, dim=16), sizes, device)


@pytest.mark.parametrize(
    "shape",
    [
        Shape(heads=6, kv=2, dim=48, block_size=32),
        Shape(heads=8, kv=2, dim=64, dtype=torch.float16),
        Shape(heads=4, kv=2, dim=64, dtype=torch.bfloat16, cache_dtype=torch.float8_e4m3fn),
    ],
)
def test_any_heads_are_padded(shape: Shape, device: torch.device) -> None:
    """Odd sizes, halves and float8; a cut segment behind a past beside a whole one."""
    check_padded(((40, 1), (0, 1), (100, 5), (0, 11)), shape, (5, 23), device)


@pytest.mark.parametrize("positions", [[NO_ROW] * 3, [NO_ROW, 40, NO_ROW], [0, 200, 5]])
def test_a_launch_of_padding_waits_for_the_kernel_ahead(
    positions: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch of padding waits for the kernel ahead. If it ended before that kernel, the next one
    would wait for nothing else.
    """
    waits: list[None] = []
    monkeypatch.setattr("triton.language.extra.cuda.gdc_wait", lambda: waits.append(None))
    monkeypatch.setattr("triton.language.extra.cuda.gdc_launch_dependents", lambda: None)
    monkeypatch.setattr("kernels.attention.device.has_pdl", lambda _: True)
    case = make_case(tuple((max(position, 0), 1) for position in positions), Shape())
    plan = replace(
        case.paged_plan(), num_decodes=3, positions=torch.tensor(positions, dtype=torch.int32)
    )
    config = DECODES._replace(fan=4)  # of this test alone, because launches are kept
    plan = replace(plan, shares=decode_shares(plan.positions, 3, case.shape.kv, config))
    args = case.qkv, case.qk_norm, EPS, case.cos_sin, case.keys, case.values, plan
    decode(*args, config, torch.empty(3, case.shape.heads * case.shape.dim))
    assert len(waits) >= case.shape.kv


@triton.jit
def _late_copy_kernel(from_ptr, to_ptr, count, BLOCK: tl.constexpr, LATE_NS: tl.constexpr):
    """The next kernel may begin at once; what it needs is there LATE_NS later."""
    tl.extra.cuda.gdc_launch_dependents()
    begin = tl.extra.cuda.globaltimer()
    now = begin
    while now - begin < LATE_NS:
        now = tl.extra.cuda.globaltimer()
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(to_ptr + at, tl.load(from_ptr + at, at < count), at < count)


def check_order(shape: Shape, config: PrefillConfig) -> None:
    """Nothing but segments in a bucket, on the card: its decodes have nothing to do, and yet all
    wait for rows that come late.
    """
    case = make_case(((0, 11), (40, 9)), shape)
    case, alone = case.to(torch.device("cuda")), case.to(torch.device("cuda"))
    padded = Padded(case, 16, segment_bucket(24, 4, shape.heads, shape.kv, config))
    wanted = attend_padded(alone, alone.qkv, _exact(alone, config))
    # Made ahead: a plain launch between the rows and the decodes would hold the order too.
    shares = decode_shares(padded.plan.positions, 16, case.shape.kv, DECODES)
    plan = replace(padded.plan, shares=shares)
    out = attend_padded(case, padded.qkv, plan)  # compiled, and all its memory taken
    for _ in range(20):
        qkv = torch.full_like(padded.qkv, torch.nan)
        torch.cuda.synchronize()
        grid = (triton.cdiv(qkv.numel(), 1024),)
        _late_copy_kernel[grid](padded.qkv, qkv, qkv.numel(), BLOCK=1024, LATE_NS=300_000)
        _attend_into(out, case, qkv, plan)
        assert torch.equal(out[padded.kept], wanted)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_segments_wait_for_their_rows_past_decodes_that_are_padding() -> None:
    """Though each kernel may begin before the one ahead of it has ended."""
    check_order(Shape(heads=4, kv=2, dim=64, dtype=torch.bfloat16), TILES)


def test_the_reference_leaves_padding_alone() -> None:
    """What serves a CPU computes the same rows, and no number for the others."""
    case = make_case(((3, 1), (20, 1), (0, 17), (33, 9)), Shape())
    alone = make_case(case.segments, case.shape)
    padded = Padded(case, 5, segment_bucket(40, 4, case.shape.heads, case.shape.kv, TILES))
    args = case.qk_norm, EPS, case.cos_sin, case.keys, case.values
    out = reference.attend(padded.qkv, *args, padded.plan)
    args = alone.qk_norm, EPS, alone.cos_sin, alone.keys, alone.values
    wanted = reference.attend(alone.qkv, *args, alone.paged_plan())
    assert torch.equal(out[padded.kept], wanted)
    assert int(out.isnan().all(1).sum()) == len(out) - len(wanted)
