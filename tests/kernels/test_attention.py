"""`attend` equals its definition on the CPU, and refuses what does not fit."""

import pytest
import torch

from kernels.attention import attend
from tests.kernels.attention_cases import EPS, Case, Segments, Shape, distance, expected, make_case

STEPS: list[Segments] = [
    ((0, 1),),
    ((5, 1), (63, 1), (99, 1), (16, 1)),
    ((0, 40),),
    ((3, 1), (0, 17), (33, 15), (64, 32)),
]


def _check(case: Case, out: torch.Tensor, tolerance: float) -> None:
    wanted = expected(make_case(case.segments, case.shape))
    for got, want in zip((out, case.keys, case.values), wanted, strict=True):
        assert distance(got, want) < tolerance


@pytest.mark.parametrize("segments", STEPS)
@pytest.mark.parametrize("paged", [False, True])
def test_equals_the_definition(segments: Segments, paged: bool) -> None:
    """Both plans of attention norm, turn, write and attend; foreign slots keep their NaN, which
    reaches no result.
    """
    case = make_case(segments, Shape())
    plan = case.paged_plan() if paged else case.cpu_plan()
    out = attend(case.qkv, case.qk_norm, EPS, case.cos_sin, case.keys, case.values, plan)
    _check(case, out, 1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounds_to_the_dtype_of_the_rows(dtype: torch.dtype) -> None:
    """Half precision stays within a few roundings of the definition."""
    case = make_case(STEPS[-1], Shape(dtype=dtype))
    plan = case.cpu_plan()
    out = attend(case.qkv, case.qk_norm, EPS, case.cos_sin, case.keys, case.values, plan)
    assert out.dtype == dtype
    _check(case, out, 1e-2)


@pytest.mark.parametrize("is_paged", [True, False])
def test_a_float8_cache_saturates(*, is_paged: bool) -> None:
    """Values beyond 448 are stored as 448, not as NaN."""
    case = make_case(STEPS[-1], Shape(cache_dtype=torch.float8_e4m3fn))
    case.qkv[:, -1] = 1e6
    plan = case.paged_plan() if is_paged else case.cpu_plan()
    out = attend(case.qkv, case.qk_norm, EPS, case.cos_sin, case.keys, case.values, plan)
    assert out.isfinite().all()
    assert case.values.float().nan_to_num(0).max() == 448


@pytest.mark.parametrize("segments", STEPS)
def test_both_plans_read_a_float8_cache_alike(segments: Segments) -> None:
    """The CPU's own plan gathers padded groups, the other sequence by sequence."""
    outs = []
    for is_paged in (True, False):
        case = make_case(segments, Shape(cache_dtype=torch.float8_e4m3fn))
        plan = case.paged_plan() if is_paged else case.cpu_plan()
        given = case.qkv, case.qk_norm, EPS, case.cos_sin, case.keys, case.values
        outs.append(attend(*given, plan))
    assert torch.allclose(*outs, atol=1e-5)


def test_tensors_that_do_not_fit_are_refused() -> None:
    """Tensors with other heads, angles, caches or rows than planned are an error."""
    case = make_case(((2, 1),), Shape())
    plan = case.cpu_plan()
    keys, values = case.keys, case.values
    with pytest.raises(ValueError, match="qkv"):
        attend(case.qkv[:, 32:], case.qk_norm, EPS, case.cos_sin, keys, values, plan)
    with pytest.raises(ValueError, match="norm weights"):
        attend(case.qkv, case.qk_norm[:1], EPS, case.cos_sin, keys, values, plan)
    with pytest.raises(ValueError, match="angles"):
        attend(case.qkv, case.qk_norm, EPS, case.cos_sin[:, 1:], keys, values, plan)
    with pytest.raises(ValueError, match="caches"):
        attend(case.qkv, case.qk_norm, EPS, case.cos_sin, keys, values[1:], plan)
    with pytest.raises(ValueError, match="planned rows"):
        attend(case.qkv.repeat(2, 1), case.qk_norm, EPS, case.cos_sin, keys, values, plan)
