"""What is timed of kernels: calls one behind the other."""

import pytest

from benchmarks.kernels.timing import call_all


@pytest.mark.parametrize(
    ("is_chain", "firsts"), [(False, [1, 2, 1, 2, 1]), (True, [1, 11, 32, 42, 63])]
)
def test_a_chain_reads_the_answer_ahead(is_chain: bool, firsts: list[int]) -> None:
    """Weights rotate all the same; without a chain each call has an input of its own."""
    seen: list[int] = []

    def layer(x: int, weight: int) -> int:
        seen.append(x)
        return x + weight

    call_all(layer, [(1, 10), (2, 21)], 5, is_chain=is_chain)
    assert seen == firsts
