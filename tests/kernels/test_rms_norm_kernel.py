"""The Triton normalisation equals its definition in double precision."""

import pytest
import torch

from kernels.rms_norm.kernel import rms_norm

# The interpreter truncates to bfloat16 where a GPU rounds.
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 1.2e-2, torch.float16: 8e-4}


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("shape", [(1, 63), (100, 64), (7, 1025)])
def test_rms_norm_equals_its_definition(
    shape: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> None:
    """Any width, any float dtype."""
    x = (torch.randn(shape) * 30).to(dtype)
    weight = torch.randn(shape[-1]).to(dtype)
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    out = rms_norm(x.to(device), weight.to(device), 1e-6).cpu().double()
    assert (out - expected).norm() / expected.norm() < TOLERANCE[dtype]
