"""The kernels say which rows they round to 8 bits."""

import pytest
import torch

from kernels.fp8 import DualWeight, Fp8Weight
from kernels.linear import Op, rounds_rows
from tests.fakes.uninterpreted import run_uninterpreted


def test_what_they_say_is_what_they_launch() -> None:
    """What the checks say is what they launch, on a card that only notes launches."""
    run_uninterpreted(
        "tests.kernels.rounding_checks", "check_every_product", "check_decodes_of_a_hybrid"
    )


@pytest.mark.parametrize("number", [1, 8, 64, 256, 257])
def test_a_cpu_rounds_only_the_prompts_of_a_weight_in_both_forms(number: int) -> None:
    """All others it widens."""
    small = Fp8Weight(torch.zeros(128, 64).to(torch.float8_e4m3fn), torch.ones(128))
    dense = torch.zeros(128, 64)
    assert not rounds_rows(Op.LINEAR, number, small, dense)
    assert not rounds_rows(Op.LINEAR, number, dense, dense)
    both = DualWeight(dense, small)
    assert rounds_rows(Op.LINEAR, number, both, dense) == (number > 256)
