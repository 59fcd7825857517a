"""The elementwise operations agree with their definitions in double precision."""

import pytest
import torch

from kernels.attention.reference import kv_write, rope, rope_angles
from kernels.rms_norm import rms_norm
from kernels.silu_mul import sigmoid_mul, silu_mul

GENERATOR = torch.Generator().manual_seed(3)


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=GENERATOR)


@pytest.mark.parametrize("shape", [(1, 63), (100, 64), (7, 5, 17)])
def test_rms_norm_equals_its_definition(shape: tuple[int, ...]) -> None:
    """One weight per column, or one row of weights per head."""
    x, weight = _random(*shape) * 30, _random(*shape[1:])
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    torch.testing.assert_close(rms_norm(x, weight, 1e-6), expected.float())


def test_rope_turns_pairs_by_their_angle() -> None:
    """Column i and i + D/2 are a complex number times e^(i position frequency)."""
    positions = torch.tensor([0, 1, 63, 65_535])
    frequencies = 1.0 / 10_000.0 ** (torch.arange(5) / 5)
    x = _random(4, 3, 10)
    turned = rope(x, *rope_angles(positions, frequencies))
    angles = (positions.float()[:, None] * frequencies).double()
    numbers = torch.complex(x[..., :5].double(), x[..., 5:].double())
    expected = numbers * torch.polar(torch.ones_like(angles), angles)[:, None]
    torch.testing.assert_close(turned, torch.cat((expected.real, expected.imag), -1).float())


def test_silu_mul_equals_its_definition() -> None:
    """silu(gate) times up."""
    x = _random(9, 34)
    gate, up = x[:, :17].double(), x[:, 17:].double()
    torch.testing.assert_close(silu_mul(x), (gate / (1 + (-gate).exp()) * up).float())


def test_sigmoid_mul_equals_its_definition() -> None:
    """x times the sigmoid of its gate."""
    x, gate = _random(9, 17), _random(9, 17)
    expected = (x.double() / (1 + (-gate.double()).exp())).float()
    torch.testing.assert_close(sigmoid_mul(x, gate), expected)


def test_kv_write_touches_its_slots_only() -> None:
    """Keys and values land in their slots, and every other slot stays as it was."""
    cache_k, cache_v = torch.full((3, 4, 2, 5), torch.nan), torch.full((3, 4, 2, 5), torch.nan)
    keys, values = _random(3, 2, 5), _random(3, 2, 5)
    slots = torch.tensor([11, 0, 6])
    kv_write(keys, values, cache_k, cache_v, slots)
    assert torch.equal(cache_k.view(12, 2, 5)[slots], keys)
    assert torch.equal(cache_v.view(12, 2, 5)[slots], values)
    assert cache_k.isnan().sum() == cache_v.isnan().sum() == 9 * 10


def test_shapes_that_do_not_fit_are_refused() -> None:
    """Every entry checks its arguments before it computes."""
    cache = torch.zeros(2, 4, 2, 5)
    with pytest.raises(ValueError, match="weight"):
        rms_norm(torch.zeros(2, 3), torch.zeros(4), 1e-6)
    with pytest.raises(ValueError, match="cos"):
        rope(torch.zeros(2, 1, 4), torch.zeros(2, 3), torch.zeros(2, 3))
    with pytest.raises(ValueError, match="odd"):
        silu_mul(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="gate"):
        sigmoid_mul(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="cache"):
        kv_write(torch.zeros(1, 2, 4), torch.zeros(1, 2, 4), cache, cache, torch.zeros(1).long())
    with pytest.raises(ValueError, match="slots"):
        kv_write(torch.zeros(1, 2, 5), torch.zeros(1, 2, 5), cache, cache, torch.zeros(2).long())
