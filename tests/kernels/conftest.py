"""Where kernel tests run: in Triton's interpreter on the CPU, and on the card by `make gpu`.

A kernel test takes the fixture `device`, makes its tensors there and calls the launching function
of `kernels.<name>.<kernel module>` itself, not the entry: on the CPU the entry chooses the
reference. The interpreter knows bfloat16 as storage only and truncates to it: kernels calculate in
float32, and tests that need exact rounding use float32 or float16.
"""

import os
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """The CPU (interpreted), or the current CUDA device (compiled): one of them in each run."""
    if (request.param == "cuda") != (request.config.getoption("markexpr") == "gpu"):
        pytest.skip("interpreted and compiled kernels do not share a process")
    return torch.device(request.param)


def pytest_collection_finish() -> None:
    """All kernels are imported; some are first launched many minutes later."""
    from tests.fakes.quick_interpreter import keep_sources  # Triton, not before it is configured

    keep_sources("kernels.", "tests.kernels.")


@pytest.fixture(scope="session", autouse=True)
def _interpreter() -> None:
    """Quick, and it refuses what lies outside of a launch's tensors. Nothing where kernels are
    compiled, for a card: the compiler shares classes with the interpreter.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    from tests.fakes.bounded_interpreter import bound  # Triton, not before it is configured
    from tests.fakes.quick_interpreter import quicken

    quicken()
    bound()


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Memory of NaN: what a kernel forgets to write stays NaN. A test that calls cuBLAS cannot use
    it.
    """
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)
