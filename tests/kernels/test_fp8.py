"""Rows in 8 bits: how far they are from what they were, and that kernel and reference agree.

The rule: e4m3 keeps three bits behind the point, so that a number is off by 2^-4 of itself at
most; below 2^-6 scales the steps are even, 2^-9 scales apart, so it is off by 2^-10 of them, where
a scale is amax / 448. Over random signs errors add up as their squares: a sum of K products with
one side quantised is off by 2^-4 of its own size at most, about 2.7 % typically, whatever K.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import fp8
from kernels.fp8 import FP8, Fp8Weight, kernel, reference
from tests.kernels.linear_cases import EPS, by_block, by_row, wide

STEP = 2.0**-4
LEAST = 2.0**-10 / 448


def _rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _assert_near(x: Tensor, values: Tensor, scales: Tensor) -> None:
    """Within the format's bound, element by element."""
    back = values.double() * scales.double()[:, None]
    bound = torch.maximum(STEP * x.abs(), LEAST * x.abs().amax(1, keepdim=True)).double()
    assert ((back - x.double()).abs() <= bound * (1 + 1e-5) + 1e-33).all()


@given(
    st.lists(
        st.lists(
            st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=5, max_size=5
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_finite_row_is_kept_within_the_formats_bound(rows: list[list[float]]) -> None:
    """Any finite row is kept within the format's bound, because each row has its own scale."""
    x = torch.tensor(rows)
    values, scales = reference.quantize_rows(x, None, 0.0)
    assert not values.float().isnan().any()
    assert (scales > 0).all()
    _assert_near(x, values, scales)


def test_the_largest_number_is_the_formats_largest() -> None:
    """A row's largest number becomes the format's largest, its opposite the opposite, and a row of
    zeros stays zeros.
    """
    values, scales = fp8.quantize_rows(torch.tensor([[7.0, -7.0, 3.5], [0.0, 0.0, -0.0]]))
    assert values.float().tolist() == [[448, -448, 224], [0, 0, 0]]
    assert scales[0] == 7 / 448


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
def test_products_with_a_row_that_is_not_finite_are_nan(
    poison: float, device: torch.device
) -> None:
    """The neighbours stay as they are."""
    x = _rows(3, 40)
    x[1, 17] = poison
    launched = kernel.quantize_rows if device.type == "cuda" else reference.quantize_rows
    values, scales = (part.cpu() for part in launched(x.to(device), None, 0.0))
    sums = (values.float() * scales[:, None]).sum(1)
    assert sums.isnan().tolist() == [False, True, False]


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1), (3, 70), (5, 1024), (2, 1500)])
def test_kernel_and_reference_agree(
    shape: tuple[int, int], dtype: torch.dtype, *, normed: bool, device: torch.device
) -> None:
    """Equal scales; values a step apart where the last bit of a norm, or the interpreter's rounding
    to float8 (1.99 becomes 1), decides.
    """
    x = (_rows(*shape) * 5).to(dtype)
    norm = _rows(shape[1], seed=1).to(dtype) if normed else None
    wanted_values, wanted_scales = reference.quantize_rows(x, norm, EPS)
    moved = None if norm is None else norm.to(device)
    values, scales = (part.cpu() for part in kernel.quantize_rows(x.to(device), moved, EPS))
    assert values.dtype == FP8
    assert torch.allclose(scales, wanted_scales, rtol=1e-6 if norm is None else 2**-6)
    out, wanted = values.float() * scales[:, None], wanted_values.float() * wanted_scales[:, None]
    largest = wanted.abs().amax()
    if device.type == "cuda":
        assert ((out - wanted).abs() <= 2 * STEP * wanted.abs() + 2 * LEAST * largest).all()
        assert (out - wanted).norm() <= 0.02 * wanted.norm()
    else:
        assert (out - wanted).norm() <= 0.2 * wanted.norm()


@pytest.mark.parametrize("shape", [(128, 128), (300, 130), (1, 1), (257, 384)])
@pytest.mark.parametrize("part", [1, 2**27])
def test_a_weight_is_quantised_by_block(
    shape: tuple[int, int], part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block has the scale of its own largest number, however much is quantised at once; a
    block of zeros stays one.
    """
    monkeypatch.setattr(reference, "_PART", part)
    weight = _rows(*shape).bfloat16()
    found, expected = fp8.quantize_blocks(weight), by_block(weight)
    assert torch.equal(found.values.float(), expected.values.float())
    assert torch.equal(found.scales, expected.scales)
    zeros = fp8.quantize_blocks(torch.zeros(shape))
    assert not fp8.dequantise(zeros, torch.float32).any()


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("quantise", [by_row, by_block])
@pytest.mark.parametrize("shape", [(1, 1), (37, 70), (300, 130), (128, 256)])
def test_the_way_back(shape: tuple[int, int], quantise: object, device: torch.device) -> None:
    """Value times scale, rounded once, in both layouts of scales."""
    assert callable(quantise)
    weight: Fp8Weight = quantise(_rows(*shape))
    for dtype in (torch.float32, torch.float16):
        tolerance = 2.0**-23 if dtype == torch.float32 else 2.0**-11
        for out in (
            kernel.dequantise(weight.to(device), dtype).cpu(),
            reference.dequantise(weight, dtype),
        ):
            assert out.dtype == dtype
            assert torch.allclose(out.double(), wide(weight), rtol=tolerance, atol=1e-7)


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.sampled_from([64, 256, 1024]))
def test_a_product_is_off_by_the_formats_error(seed: int, depth: int) -> None:
    """The error of a product relative to its norm is under 2^-4 in the worst case, under 3 % on
    average, with either side in 8 bits; with both under the root of 2 times that.
    """
    x, weight = _rows(32, depth, seed=seed), _rows(64, depth, seed=seed + 1)
    exact = x.double() @ weight.double().T
    quantised = wide(fp8.quantize_weight(weight))
    rows = wide(Fp8Weight(*fp8.quantize_rows(x)))
    for out, bound in (
        (x.double() @ quantised.T, 0.03),
        (rows @ weight.double().T, 0.03),
        (rows @ quantised.T, 0.03 * 2**0.5),
    ):
        assert (out - exact).norm() < bound * exact.norm()


def test_rows_that_do_not_fit_are_refused() -> None:
    """The entry checks its arguments."""
    with pytest.raises(ValueError, match="rows"):
        fp8.quantize_rows(torch.zeros(3))
    with pytest.raises(ValueError, match="rows"):
        fp8.quantize_rows(torch.zeros(2, 3, dtype=torch.int32))
    with pytest.raises(ValueError, match="norm"):
        fp8.quantize_rows(torch.zeros(2, 3), torch.zeros(4))
    assert fp8.quantize_rows(torch.zeros(0, 3))[0].shape == (0, 3)


def test_rows_are_picked_with_their_scales() -> None:
    """Rows are picked with their scales, by index or slice; scales by block belong to no single
    row.
    """
    weight = by_row(_rows(9, 32))
    for chosen in (slice(2, 5), torch.tensor([8, 0, 8])):
        assert torch.equal(wide(weight.rows(chosen)), wide(weight)[chosen])
    with pytest.raises(ValueError, match="by block"):
        by_block(_rows(9, 32)).rows(slice(2))
