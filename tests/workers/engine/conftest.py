"""What tests of steps on a card share: a runner of the tiny model, and both ways to launch."""

from pathlib import Path

import pytest

from tests.fakes.tiny_models import load_tiny, write_tiny_model
from tests.workers.engine.step_cases import BLOCK
from workers.engine.graphs.capture import Capture, run_again
from workers.engine.runner import ModelRunner


@pytest.fixture(name="host")
def _host(tmp_path: Path) -> ModelRunner:
    model_dir = write_tiny_model(tmp_path)
    return load_tiny(model_dir, kv_tokens=1024, block_size=BLOCK, token_budget=1024)


@pytest.fixture(name="capture", params=[None, run_again], ids=["unpadded", "padded"])
def _capture(request: pytest.FixtureRequest) -> Capture | None:
    """Steps launched one by one at their own sizes, or replayed in graphs with padding."""
    capture: Capture | None = request.param
    return capture
