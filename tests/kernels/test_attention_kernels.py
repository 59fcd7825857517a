"""The Triton attention kernels equal the definition, at sizes that fit nothing and among NaN."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.attention import choose, paged
from kernels.attention import prefill as prefill_file
from kernels.attention.config import DecodeConfig, PrefillConfig, WriteConfig
from kernels.attention.decode import _counters, decode
from kernels.attention.prefill import merge_programs, prefill
from kernels.attention.shares import decode_shares
from kernels.attention.work import prefill_work, to_device
from kernels.attention.write import qk_norm_rope_write
from tests.fakes.pairs import every_second, seldom
from tests.kernels.attention_cases import EPS, Case, Segments, Shape, distance, expected, make_case

# The interpreter truncates to bfloat16 where a GPU rounds.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 3e-2}

SMALL = DecodeConfig(tile=16, warps=4, stages=2, target=8, rows=16, fan=2)
TILES = PrefillConfig(rows=32, tile=16, warps=4, stages=2, target=1)
F8 = torch.float8_e4m3fn


def check_case(case: Case, out: torch.Tensor) -> None:
    wanted = expected(make_case(case.segments, case.shape))
    tolerance = TOLERANCE[case.shape.dtype]
    if case.shape.cache_dtype == F8:
        # The interpreter loses the carry when it rounds to float8: 1.99 becomes 1.
        tolerance = 4e-2 if out.is_cuda else 0.2
    for got, want in zip((out, case.keys, case.values), wanted, strict=True):
        assert distance(got.cpu(), want) < tolerance


def run_decode(
    case: Case, config: DecodeConfig, positions: torch.Tensor | None = None, reach: int = 0
) -> torch.Tensor:
    shape = case.shape
    out = torch.full_like(case.qkv[:, : shape.heads * shape.dim], torch.nan)
    plan = case.paged_plan()
    if positions is not None:
        plan = dataclasses.replace(plan, positions=positions)
    shares = decode_shares(plan.positions, plan.num_decodes, shape.kv, config, reach=reach)
    plan = dataclasses.replace(plan, shares=shares, reach=reach)
    args = case.qkv, case.qk_norm, EPS, case.cos_sin, case.keys, case.values, plan
    decode(*args, config, out, shape.scope, shape.sink_scores(out.device))
    return out


def run_prefill(case: Case, config: PrefillConfig) -> torch.Tensor:
    shape, plan = case.shape, case.paged_plan()
    out = torch.full_like(case.qkv[:, : shape.heads * shape.dim], torch.nan)
    host = prefill_work(
        plan.prefills, plan.num_decodes, shape.heads, shape.kv, config, library=False
    )
    work = to_device(host, case.qkv.device)
    plan = dataclasses.replace(plan, work=work)
    args = case.qkv, case.qk_norm, EPS, case.cos_sin, case.keys, case.values, plan
    queries = qk_norm_rope_write(*args, WriteConfig(heads=4), borrows=shape.borrows)
    sinks = shape.sink_scores(out.device)
    prefill(queries, case.keys, case.values, plan, work, config, out, shape.scope, sinks)
    return out


SHAPES = [
    Shape(heads=1, kv=1, dim=16),
    Shape(heads=6, kv=2, dim=48, block_size=32),
    Shape(heads=16, kv=1, dim=32, block_size=64),
    Shape(heads=2, kv=2, dim=256, block_size=128),
    Shape(heads=8, kv=2, dim=128, dtype=torch.float16),
    Shape(heads=8, kv=4, dim=32, cache_dtype=F8),
    Shape(heads=4, kv=2, dim=64, dtype=torch.bfloat16, cache_dtype=F8),
]

DECODES: list[Segments] = [
    ((0, 1),),
    ((1, 1),),
    ((100, 1),),
    ((15, 1), (16, 1), (17, 1), (0, 1), (64, 1)),
    ((3, 1), (150, 1), (1, 1), (31, 1)),
]


@pytest.mark.parametrize("segments", DECODES)
@pytest.mark.parametrize(("dtype", "start"), [(torch.float32, 0), (torch.bfloat16, 2)])
def test_decodes_equal_the_definition(
    segments: Segments, dtype: torch.dtype, start: int, device: torch.device
) -> None:
    """Any contexts at once, cut into any parts; nothing but the own slots is written."""
    case = make_case(segments, Shape(dtype=dtype)).to(device)
    check_case(case, run_decode(case, SMALL._replace(start=start)))
    assert not _counters(device).any()


@pytest.mark.parametrize(
    ("contexts", "longest", "num_kv"),
    [
        *(((context,), 256, 6) for context in (0, 1, 33, 255, 256)),
        ((0, 32), 256, 6),
        ((255, 256), 256, 6),
        ((255, 0, 256, 9), 256, 2),
        ((256, 0, 3, 200, 256, 129, 128, 1), 256, 2),
        ((256, 0, 3, 200, 256, 129, 128, 1), 256, 6),
        *(((context,), 1024, 2) for context in (0, 64, 129, 300, 1024)),
        ((512, 257), 1024, 2),
        ((1000, 3), 1024, 6),
        ((700, 0, 1024, 9), 1024, 2),
        ((700, 0, 1024, 9), 1024, 6),
        ((1024, 0, 3, 500, 256, 129, 128, 1), 1024, 2),
    ],
)
def test_few_short_contexts_equal_the_definition(
    contexts: tuple[int, ...], longest: int, num_kv: int, device: torch.device
) -> None:
    """Few short contexts take fewer programs, which plan and launch both know of. In float16,
    because the interpreter truncates to bfloat16.
    """
    shape = Shape(heads=6, kv=num_kv, dim=48, block_size=32, dtype=torch.float16)
    case = make_case(tuple((context, 1) for context in contexts), shape).to(device)
    assert longest in choose.short_contexts(num_kv, shape.dim, shape.dtype)[len(contexts)]
    plan = dataclasses.replace(case.paged_plan(), longest=longest)
    plan = paged.prepared(plan, shape.heads, case.keys, shape.dtype)
    args = case.qkv, case.qk_norm, EPS, case.cos_sin, case.keys, case.values, plan
    out = paged.attend(*args, shape.scope)
    check_case(case, out)
    assert plan.shares is not None
    any_context = dataclasses.replace(plan, longest=0)
    with pytest.raises(ValueError, match="configuration"):
        paged.attend(*args[:-1], any_context, shape.scope)


def test_a_program_serves_several_rows(device: torch.device) -> None:
    """More rows than programs: most are begun and ended by one of them, some are cut."""
    contexts = (0, 70, 16, 5, 33, 15, 48, 1, 90, 31, 64)
    case = make_case(tuple((context, 1) for context in contexts), Shape()).to(device)
    for start, slack in ((0, 0), (2, 1), (5, 2)):
        check_case(case, run_decode(case, SMALL._replace(start=start, slack=slack)))
        assert not _counters(device).any()


@given(
    st.lists(st.integers(-1, 300), min_size=1, max_size=16), st.integers(0, 6), st.integers(0, 3)
)
def test_every_tile_has_one_program(contexts: list[int], start: int, slack: int) -> None:
    """The shares follow each other from the first row to the last, none is much too large, and no
    row is cut near its ends."""
    config = SMALL._replace(start=start, slack=slack)
    positions = torch.tensor(contexts, dtype=torch.int32)
    shares = decode_shares(positions, len(contexts), 2, config).tolist()
    costs = [max(1, -(-past // config.tile)) + start if past >= 0 else 0 for past in contexts]
    reached = 0
    for row, passed, place, length, share in shares:
        assert place == reached
        assert sum(costs[:row]) + passed == place
        assert share == max(1, -(-sum(costs) // (config.target // 2)))
        assert 0 <= length <= share + start + 2 * slack
        if passed:
            assert start + slack < passed < costs[row] - slack
        reached += length
    assert reached == sum(costs)


@given(st.integers(1, 16))
def test_equal_short_rows_stay_whole(num_rows: int) -> None:
    """Cutting them would take longer than they do."""
    config = SMALL._replace(start=6, slack=3)
    positions = torch.full((num_rows,), 5 * config.tile, dtype=torch.int32)
    shares = decode_shares(positions, num_rows, 2, config).tolist()
    assert all(passed == 0 for _, passed, *_ in shares)


@pytest.mark.parametrize("shape", SHAPES)
def test_any_heads_decode(shape: Shape, device: torch.device) -> None:
    """Groups of 1 to 16, head sizes that are no power of two, blocks of any size, float8."""
    case = make_case(((40, 1), (129, 1), (0, 1)), shape).to(device)
    check_case(case, run_decode(case, SMALL))


def test_one_long_row_is_shared(device: torch.device) -> None:
    """A long row among short ones is cut into many pieces, the short ones are not."""
    case = make_case(((400, 1), *[(9, 1)] * 4), Shape()).to(device)
    check_case(case, run_decode(case, SMALL._replace(target=24)))
    check_case(case, run_decode(case, SMALL._replace(target=24, start=3)))


@pytest.mark.parametrize("start", [0, 3])
def test_padding_rows_are_no_rows(start: int, device: torch.device) -> None:
    """Padding rows are no rows: at position -1 nothing is read or written, wherever such a row
    stands.
    """
    case = make_case(((33, 1), (0, 1), (70, 1), (0, 1), (0, 1)), Shape()).to(device)
    positions = torch.tensor([33, -1, 70, -1, -1], dtype=torch.int32, device=device)
    out = run_decode(case, SMALL._replace(start=start), positions).cpu()
    assert out[[1, 3, 4]].isnan().all()
    assert case.keys[case.tables[1, 0]].isnan().all()
    wanted = expected(make_case(case.segments, case.shape))[0]
    assert distance(out[[0, 2]], wanted[[0, 2]]) < TOLERANCE[torch.float32]


@pytest.mark.filterwarnings("ignore:All-NaN slice")
def test_a_row_of_nan_stays_alone(device: torch.device) -> None:
    """What one sequence computes never reaches another one."""
    case = make_case(DECODES[-1], Shape())
    case.qkv[1] = torch.nan
    out = run_decode(case.to(device), SMALL)
    assert out[1].isnan().all()
    assert out[[0, 2, 3]].isfinite().all()


SEGMENTS: list[Segments] = [
    ((0, 2),),
    ((37, 5),),
    ((3, 1), (0, 17), (33, 15)),
    ((9, 1), (9, 1), (70, 3), (0, 40)),
    ((300, 3),),  # more pieces than are merged at once
]


CUTS = [(torch.float32, 1), (torch.float32, 64), (torch.bfloat16, 8)]


@pytest.mark.parametrize(("segments", "cut"), every_second(SEGMENTS, CUTS))
def test_segments_equal_the_definition(
    segments: Segments, cut: tuple[torch.dtype, int], device: torch.device
) -> None:
    """Segments equal the definition behind any past, with whole keys and with keys in pieces,
    beside decodes.
    """
    dtype, target = cut
    case = make_case(segments, Shape(dtype=dtype)).to(device)
    out = run_prefill(case, TILES._replace(target=target, piece=16))
    assert out[: case.num_decodes].isnan().all()
    if case.num_decodes:
        out[: case.num_decodes] = run_decode(case, SMALL)[: case.num_decodes]
    check_case(case, out)


@pytest.mark.parametrize("shape", [*SHAPES[::2], *seldom(*SHAPES[1::2])])
def test_any_heads_prefill(shape: Shape, device: torch.device) -> None:
    """The shapes of the decodes."""
    case = make_case(((50, 20), (0, 11)), shape).to(device)
    check_case(case, run_prefill(case, TILES._replace(target=8, piece=16)))


@pytest.mark.parametrize("programs", [1, 3])
def test_a_program_merges_many_rows(
    programs: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit what a program for each row makes of them."""
    case = make_case(((50, 3), (0, 2), (70, 4)), Shape()).to(device)
    config = TILES._replace(target=64, piece=16)
    wanted = run_prefill(case, config)
    monkeypatch.setattr(prefill_file, "_MERGING", programs * case.shape.heads)
    out = run_prefill(case, config)
    assert torch.equal(out, wanted)
    check_case(case, out)


@given(num_merges=st.integers(1, 20_000), num_heads=st.sampled_from([1, 16, 24, 32, 64]))
def test_every_row_is_merged_by_few_programs(num_merges: int, num_heads: int) -> None:
    """No program has more rows than it looks at, and there are no more programs than needed."""
    programs = merge_programs(num_merges, num_heads)
    assert programs * 16 >= num_merges >= programs
    assert programs * num_heads <= max(2112, (num_merges + 15) // 16 * num_heads)
