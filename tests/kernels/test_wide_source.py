"""Wide products: the kernel's own source on an emulated card, for weights in 16 and in 8 bits."""

from pathlib import Path
from typing import Final, NamedTuple

import pytest
import torch
from torch import Tensor

from kernels.fp8 import Fp8Weight
from kernels.fp8.reference import quantize_rows
from kernels.linear import wide as wide_file
from kernels.linear.config import Wide
from kernels.linear.epilogue import Epilogue
from tests.kernels import emulated_ampere, emulated_product
from tests.kernels.linear_cases import Problem

TOLERANCE: Final = 4e-3
"""What rounding to bfloat16 leaves."""

emulated = pytest.mark.skipif(emulated_ampere.COMPILER is None, reason="needs g++")


class Case(NamedTuple):
    """Sizes, what stands around the product, and how the weight is scaled: "row", "block", or "" in
    16 bits.
    """

    config: Wide
    num_rows: int
    num_out: int
    depth: int
    parts: str = "plain"
    scales: str = "block"


CASES: Final = (
    Case(Wide(1, 1), 5, 132, 256),
    Case(Wide(2, 3, stages=2), 18, 260, 5 * 128, "residual bias"),
    Case(Wide(1, 1, rows=16, band=2), 50, 128, 384, "swiglu"),
    Case(Wide(3, 1), 16, 128, 256, "swiglu"),
    Case(Wide(1, 2, programs=2), 16, 64, 70 * 128, "residual"),
    Case(Wide(2, 2), 20, 132, 256, "bias", "row"),
    Case(Wide(1, 2), 20, 68, 320, "residual bias", ""),
)
"""Last tiles of rows and features that are not full, fewer steps than splits have at once and more
than a warp has lanes, gates and ups that share a warp group, tiles of rows side by side.
"""


def _given(case: Case) -> tuple[Problem, Tensor, Tensor | None, Tensor]:
    """The problem, rows as they are multiplied, their scales, and the exact answer."""
    problem = Problem(
        case.num_rows, case.num_out, case.depth, torch.bfloat16, case.parts, case.scales
    )
    problem.norm, scales = None, None
    x = problem.x
    if case.scales:
        x, scales = quantize_rows(x, None, 0.0)
        problem.x = x.double() * scales[:, None]  # type: ignore[assignment]
    return problem, x, scales, problem.expected()


def _error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def _product(case: Case, room: Path, source: Path, *, is_back: bool) -> tuple[Tensor, Tensor]:
    problem, x, scales, exact = _given(case)
    weight = problem.weight
    assert isinstance(weight, Tensor | Fp8Weight)
    epilogue = Epilogue(bias=problem.bias, residual=problem.residual, swiglu=problem.swiglu)
    given = x, weight, case.config, room, epilogue, scales, source
    return emulated_product.product(*given, is_back=is_back), exact


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For the emulated kernel's libraries."""
    return tmp_path_factory.mktemp("wide")


@emulated
@pytest.mark.parametrize("case", CASES, ids=str)
def test_its_source_multiplies_right(case: Case, room: Path) -> None:
    """From both ends the same bits, over NaN."""
    answers = []
    for is_back in (False, True):
        out, exact = _product(case, room, wide_file.product.path, is_back=is_back)
        assert _error(out, exact) < TOLERANCE
        answers.append(out)
    assert torch.equal(*answers)


MISTAKES: Final = (
    (CASES[0], "parts[j] * by", "parts[j]"),
    (CASES[2], "tile * FEATURES + place + to_ups", "tile * FEATURES"),
    (CASES[1], "all_steps + first_step", "all_steps"),
    (CASES[4], "arrive(empty + 8 * s);\n#pragma", "arrive(empty);\n#pragma"),
    (CASES[2], "num_out - FEATURES : 0", "0 : 0"),
    (CASES[4], "load(step + LANES)", "load(step)"),
)


@emulated
@pytest.mark.parametrize(("case", "right", "wrong"), MISTAKES)
def test_an_emulated_card_sees_mistakes(
    case: Case, right: str, wrong: str, room: Path, tmp_path: Path
) -> None:
    """In which scale a step has, and when a stage is free: a fault, or a wrong answer."""
    text = wide_file.product.path.read_text()
    assert text.count(right) == 1
    source = tmp_path / "wide.cu"
    source.write_text(text.replace(right, wrong))
    try:
        out, exact = _product(case, room, source, is_back=True)
    except AssertionError:
        return
    assert not _error(out, exact) < TOLERANCE
