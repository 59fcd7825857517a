"""The Triton row-wise kernels equal their definitions in double precision, at odd sizes."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own documentation uses

from kernels.rms_norm import reference as norm_reference
from kernels.rms_norm.kernel import bias_norm, norm_add, rms_norm
from kernels.silu_mul import reference as gate_reference
from kernels.silu_mul.kernel import sigmoid_mul, silu_mul

# The interpreter truncates to bfloat16 where a GPU rounds.
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 1.2e-2, torch.float16: 1e-3}
DTYPES = pytest.mark.parametrize("dtype", list(TOLERANCE))


def _assert_near(out: torch.Tensor, expected: torch.Tensor) -> None:
    error = (out.cpu().double() - expected).norm() / expected.norm()
    assert error < TOLERANCE[out.dtype]


@DTYPES
@pytest.mark.parametrize("shape", [(1, 63), (100, 64), (7, 1025), (3, 5, 17)])
def test_rms_norm_equals_its_definition(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    """One weight per column, or one row of weights per head."""
    x, weight = (torch.randn(shape) * 30).to(dtype), torch.randn(shape[1:]).to(dtype)
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    _assert_near(rms_norm(x.to(device), weight.to(device), 1e-6), expected)


@DTYPES
@pytest.mark.parametrize("is_wide", [True, False])
def test_the_sum_behind_the_norm_equals_the_reference(
    dtype: torch.dtype, device: torch.device, *, is_wide: bool
) -> None:
    """The sum behind the norm equals the reference, with weights in float32, or of the rows' dtype;
    the inputs stay as they were.
    """
    x, residual, weight = (torch.randn(5, 77).to(dtype) for _ in range(3))
    weight = weight[0].float() if is_wide else weight[0]
    expected = norm_reference.norm_add(x, weight, 1e-6, residual)
    inputs = x.to(device), residual.to(device)
    total = norm_add(inputs[0], weight.to(device), 1e-6, inputs[1])
    assert total.dtype == dtype
    _assert_near(total, expected.double())
    assert torch.equal(inputs[0].cpu(), x)
    assert torch.equal(inputs[1].cpu(), residual)


@DTYPES
@pytest.mark.parametrize("shape", [(1, 63), (100, 64), (7, 1025), (3, 2880)])
def test_the_bias_ahead_of_the_norm_stays_in_the_rows(
    shape: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> None:
    """Rows become their sums with it, and the norm is that of the rounded sums."""
    x, bias, weight = (torch.randn(shape).to(dtype) for _ in range(3))
    sums = x.clone()
    expected = norm_reference.bias_norm(sums, bias[0], weight[0], 1e-6)
    rows = x.to(device, copy=True)
    normed = bias_norm(rows, bias[0].to(device), weight[0].to(device), 1e-6)
    _assert_near(rows, sums.double())
    _assert_near(normed, expected.double())
    assert torch.equal(normed, rms_norm(rows, weight[0].to(device), 1e-6))


@DTYPES
@pytest.mark.parametrize("shape", [(1, 2), (9, 34), (2, 3, 4100)])
@pytest.mark.parametrize("is_gelu", [True, False])
def test_silu_mul_equals_its_definition(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, *, is_gelu: bool
) -> None:
    """silu(gate) times up, over one tile and over several; or gelu in its tanh form."""
    x = (torch.randn(shape) * 3).to(dtype)
    gate, up = x.double().chunk(2, dim=-1)
    opened = F.gelu(gate, approximate="tanh") if is_gelu else F.silu(gate)
    _assert_near(silu_mul(x.to(device), is_gelu=is_gelu), opened * up)


@DTYPES
@pytest.mark.parametrize("shape", [(1, 3), (9, 34), (2, 4100)])
def test_sigmoid_mul_equals_the_reference(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    """`sigmoid_mul` equals the reference in place, over one tile and over several; the gate stays
    as it was, however large.
    """
    x, gate = (torch.randn(shape) * 3).to(dtype), (torch.randn(shape) * 40).to(dtype)
    given, kept = x.to(device).clone(), gate.to(device)
    out = sigmoid_mul(given, kept)
    assert out.data_ptr() == given.data_ptr()
    _assert_near(out, gate_reference.sigmoid_mul(x.clone(), gate).double())
    assert torch.equal(kept.cpu(), gate)


def test_nothing_gives_nothing(device: torch.device) -> None:
    """No rows, no launch."""
    nothing = torch.zeros(0, 8, device=device)
    assert sigmoid_mul(nothing, nothing) is nothing
    assert silu_mul(torch.zeros(0, 8, device=device)).shape == (0, 4)
    empty = torch.zeros(0, 8, device=device)
    assert rms_norm(empty, torch.ones(8, device=device), 1e-6).shape == (0, 8)
