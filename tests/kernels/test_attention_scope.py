"""Attention with windows, scales of its own, and heads that are normed in float32 or not at all."""

from dataclasses import replace

import pytest
import torch

from kernels.attention import attend, choose, paged
from tests.kernels.attention_cases import (
    EPS,
    Segments,
    Shape,
    borrowing,
    distance,
    expected,
    make_case,
)
from tests.kernels.test_attention_kernels import SMALL, TILES, check_case, run_decode, run_prefill

SCOPES = [
    Shape(window=20, norms="none"),
    Shape(window=1, scale=0.4, norms="wide"),
    Shape(window=16, heads=3, kv=1, dim=48, block_size=32),
    Shape(scale=0.1, heads=8, kv=2, dim=256, norms="wide", dtype=torch.bfloat16),
    Shape(window=33, dim=96, norms="none", dtype=torch.float16),
    Shape(heads=8, kv=2, dim=32, norms="none", sinks=True),
    Shape(heads=6, kv=2, window=20, norms="none", sinks=True),
    Shape(heads=6, kv=2, dim=24, window=20, norms="all", scale=1.0),
]
MOSTLY = [
    pytest.param(shape, target, marks=pytest.mark.slow if shape.dim > 128 else ())
    for shape, target in zip(SCOPES, (16, 1, 16, 1, 1, 16, 16, 16), strict=True)
]
"""The interpreter takes seconds for wide heads."""

STEPS: list[Segments] = [
    ((5, 1), (63, 1), (99, 1), (16, 1), (0, 1)),
    ((0, 40),),
    ((3, 1), (70, 1), (0, 17), (33, 15), (64, 32)),
]
ROUNDED = {torch.float32: 1e-6, torch.float16: 1e-2, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("shape", [*SCOPES, Shape(sees_ahead=True, kv=1)])
@pytest.mark.parametrize("segments", STEPS)
@pytest.mark.parametrize("is_paged", [True, False])
def test_the_reference_equals_the_definition(
    segments: Segments, shape: Shape, *, is_paged: bool
) -> None:
    """Both plans equal the definition; foreign slots keep their NaN, which reaches no result."""
    case = make_case(segments, shape)
    plan = case.paged_plan() if is_paged else case.cpu_plan()
    given = case.qkv, case.qk_norm, EPS, case.cos_sin, case.keys, case.values
    out = attend(
        *given,
        plan,
        scale=shape.scale,
        window=shape.window,
        sees_ahead=shape.sees_ahead,
        sinks=shape.sink_scores(),
    )
    wanted = expected(make_case(segments, shape))
    for got, want in zip((out, case.keys, case.values), wanted, strict=True):
        assert distance(got, want) < ROUNDED[shape.dtype]


@pytest.mark.parametrize(("shape", "target"), MOSTLY)
def test_decodes_equal_the_definition(shape: Shape, target: int, device: torch.device) -> None:
    """Rows that are cut have parts that lie before their windows."""
    case = make_case(((3, 1), (150, 1), (1, 1), (31, 1), (16, 1)), shape).to(device)
    check_case(case, run_decode(case, SMALL._replace(target=max(shape.kv, target))))


WINDOWS = [(shape, shape.window + over) for shape in SCOPES if shape.window for over in (0, 7)]


@pytest.mark.parametrize(("shape", "reach"), WINDOWS)
@pytest.mark.parametrize("target", [1, 16])
@pytest.mark.parametrize("start", [0, 2])
def test_decodes_are_cut_by_what_they_see(
    shape: Shape, reach: int, target: int, start: int, device: torch.device
) -> None:
    """The longest of the windows says how long rows are: what lies before is in no program's share,
    and its blocks may be anything. Sinks belong to the first part that is left.
    """
    case = make_case(((3, 1), (150, 1), (1, 1), (31, 1), (0, 1), (reach, 1)), shape).to(device)
    for row, (position, _) in enumerate(case.segments):
        case.tables[row, : max(0, position + 1 - reach) // shape.block_size] = 2**30
    config = SMALL._replace(target=max(shape.kv, target), start=start)
    out = run_decode(case, config, reach=reach)
    wanted = expected(make_case(case.segments, shape))[0]
    assert distance(out.cpu(), wanted) < {1e-6: 1e-5}.get(ROUNDED[shape.dtype], 3e-2)


@pytest.mark.parametrize("reach", [64, 300])
def test_a_plan_of_windows_takes_launches_for_short_contexts(
    reach: int, device: torch.device
) -> None:
    """However many tokens are cached; plan and launch both know."""
    shape = Shape(heads=6, kv=2, dim=48, window=reach, norms="none", dtype=torch.bfloat16)
    case = make_case(((350, 1), (3, 1)), shape).to(device)
    plan = replace(case.paged_plan(), reach=reach)
    plan = paged.prepared(plan, shape.heads, case.keys, shape.dtype, is_scoped=True)
    short = choose.decode_config(2, 2, 48, torch.bfloat16, 1024)
    assert short.programs(2) != choose.decode_config(2, 2, 48, torch.bfloat16).programs(2)
    assert plan.shares is not None
    assert plan.shares.shape[0] == short.programs(2)
    args = case.qkv, case.qk_norm, EPS, case.cos_sin, case.keys, case.values, plan
    check_case(case, paged.attend(*args, shape.scope))


@pytest.mark.parametrize(("shape", "target"), MOSTLY)
def test_segments_equal_the_definition(shape: Shape, target: int, device: torch.device) -> None:
    """Segments equal the definition behind a past that is cut into pieces, of which most are not
    seen.
    """
    case = make_case(((3, 1), (0, 21), (70, 12), (33, 9)), shape).to(device)
    config = TILES._replace(target=target, piece=16, start=0)
    out = run_prefill(case, config)
    wanted = expected(make_case(case.segments, shape))[0]
    out[0], wanted[0] = 0, 0  # the decode
    assert distance(out.cpu(), wanted) < {1e-6: 1e-5}.get(ROUNDED[shape.dtype], 3e-2)


BORROWS = [
    Shape(heads=6, kv=2, dim=24, window=20, norms="all", scale=1.0),
    Shape(heads=3, kv=1, dim=48, norms="none"),
]


@pytest.mark.parametrize("shape", BORROWS)
def test_a_layer_that_borrows_gives_what_its_lender_gives(
    shape: Shape, device: torch.device
) -> None:
    """Queries alone, over the keys and values that the lender has written; nothing else is read,
    and nothing is written. By decodes, by segments and by the plain form.
    """
    decodes = make_case(((3, 1), (150, 1), (0, 1), (31, 1)), shape)
    given, *kept = expected(decodes)
    case = borrowing(decodes, *kept).to(device)
    before = case.keys.clone(), case.values.clone()
    found = run_decode(case, SMALL._replace(target=16))
    assert distance(found.cpu(), given) < 1e-5
    for cache, old in zip((case.keys, case.values), before, strict=True):
        assert torch.equal(cache.nan_to_num(), old.nan_to_num())
    segments = make_case(((3, 1), (0, 21), (70, 12), (33, 9)), shape)
    given, *kept = expected(segments)
    case = borrowing(segments, *kept)
    options = {"scale": shape.scale, "window": shape.window, "borrows": True}
    plain = case.qkv, case.qk_norm, EPS, case.cos_sin, case.keys, case.values
    for plan in (case.paged_plan(), case.cpu_plan()):
        assert distance(attend(*plain, plan, **options), given) < 1e-5
    found = run_prefill(case.to(device), TILES._replace(target=16, piece=16, start=0))
    found[0], given[0] = 0, 0  # the decode
    assert distance(found.cpu(), given) < 1e-5


def test_what_has_no_windows_is_not_chosen() -> None:
    """The library and Hopper's kernel, which have no windows, are not chosen, however long a
    segment is.
    """
    keys = torch.empty(1, 32, 8, 128, dtype=torch.bfloat16)
    config = choose.prefill_config(32, keys, torch.bfloat16, is_scoped=True)
    assert not config.cuda
    assert config.library > 2**30
