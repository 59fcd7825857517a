"""One row of x by `int4_tiles.cu`: the kernel's own source on an emulated card, against float64."""

from pathlib import Path
from typing import Final

import pytest
import torch
from torch import Tensor

from kernels.int4 import Int4Weight, dequantise, packed
from kernels.linear.config import Int4Tiles
from kernels.linear.epilogue import Epilogue
from tests.kernels import emulated_tiles
from tests.kernels.emulated_ampere import COMPILER

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")

EPS: Final = 1e-6


def _tiles(
    warps_m: int, warps_k: int, m_tiles: int, wide: int, stages: int, turns: int = 1
) -> Int4Tiles:
    return Int4Tiles(warps_m, warps_k, m_tiles, 1, 1, stages, 1, turns=turns, wide=wide, lone=True)


def _weight(num_rows: int, depth: int, group: int, dtype: torch.dtype) -> Int4Weight:
    shape = num_rows, depth // group
    scales = (torch.rand(shape) + 0.5) * depth**-0.5 / 4
    zeros = torch.randint(0, 17, shape).to(torch.uint8)
    numbers = torch.randint(0, 16, (num_rows, depth))
    return Int4Weight(packed(numbers, group), scales.to(dtype), zeros)


def _error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


CASES: Final = [
    (_tiles(1, 4, 2, 4, 4, 2), 72, 2048, 128),
    (_tiles(1, 4, 2, 4, 3, 3), 40, 3072, 128),
    (_tiles(1, 4, 2, 1, 6), 40, 768, 32),
    (_tiles(2, 2, 2, 1, 3), 72, 1024, 64),
    (_tiles(1, 2, 1, 1, 4), 24, 7936, 128),
]
"""Tiles, weight rows, columns, columns of a group. The last row is longer than registers hold."""


@pytest.mark.parametrize(("config", "num_rows", "depth", "group"), CASES)
def test_a_product_and_its_residual(
    config: Int4Tiles, num_rows: int, depth: int, group: int, tmp_path: Path
) -> None:
    """Rounding the answer makes errors of up to 2^-9."""
    x, weight = torch.randn(1, depth).bfloat16(), _weight(num_rows, depth, group, torch.bfloat16)
    residual = torch.randn(1, num_rows).bfloat16()
    epilogue = Epilogue(residual=residual)
    found = emulated_tiles.product(x, weight, config, tmp_path, epilogue, is_back=False)
    exact = x.double() @ dequantise(weight, torch.float32).double().T + residual.double()
    assert _error(found, exact) < 4e-3


@pytest.mark.parametrize(("config", "num_rows", "depth", "group"), CASES[2:])
def test_the_norm_and_a_gate(
    config: Int4Tiles, num_rows: int, depth: int, group: int, tmp_path: Path
) -> None:
    """x times its norm is rounded as well."""
    x, weight = (
        30 * torch.randn(1, depth).bfloat16(),
        _weight(num_rows, depth, group, torch.bfloat16),
    )
    norm = (torch.rand(depth) + 0.5).bfloat16()
    epilogue = Epilogue(norm=norm, eps=EPS, swiglu=True)
    found = emulated_tiles.product(x, weight, config, tmp_path, epilogue, is_back=True)
    rows = x.double() / (x.double().square().mean() + EPS).sqrt() * norm.double()
    gate, up = (rows @ dequantise(weight, torch.float32).double().T).chunk(2, dim=1)
    assert _error(found, gate * gate.sigmoid() * up) < 2e-2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_large_number_leaves_small_ones_as_they_are(dtype: torch.dtype, tmp_path: Path) -> None:
    """A large number leaves small ones as they are: beside one of 900 steps of 2^-15 of it would be
    wrong by 8e-3. An answer may round to its other neighbour.
    """
    x, weight = torch.randn(1, 2048), _weight(24, 2048, 128, dtype)
    x[0, 5], x[0, 100:300] = 900.0, 0.0
    weight.scales[:, 0] = 0.0  # where the large one is
    found = emulated_tiles.product(x.to(dtype), weight, CASES[0][0], tmp_path, is_back=False)
    exact = x.to(dtype).double() @ dequantise(weight, torch.float32).double().T
    assert _error(found, exact.to(dtype).double()) < 4e-3


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_what_is_no_number_stays_none(number: float, tmp_path: Path) -> None:
    """A row of zeros gives zeros, one with NaN or infinity only NaN."""
    weight, x = _weight(24, 1024, 128, torch.bfloat16), torch.zeros(1, 1024).bfloat16()
    found = emulated_tiles.product(x, weight, CASES[3][0], tmp_path, is_back=False)
    assert not found.any()
    x[0, 700] = number
    found = emulated_tiles.product(x, weight, CASES[3][0], tmp_path, is_back=False)
    assert found.isnan().all()
