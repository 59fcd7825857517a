"""A first start on a card: every kernel it launches was compiled beside it."""

from pathlib import Path

import pytest
import torch

from benchmarks.engine.start import measure_start
from config import WorkerConfig
from workers.engine.compile.kernel_cache import CACHE_VARIABLE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.mark.parametrize("quantization", ["auto", "fp8"])
def test_a_first_start_compiles_nothing_itself(tmp_path: Path, quantization: str) -> None:
    """It waits for its compiler, foreseen in every kernel; the next start needs none."""
    config = WorkerConfig(
        name="check",
        model="dummy:qwen3-0.6b",
        serves="check",
        gateways=(),
        max_seqs=64,
        token_budget=2048,
        device="cuda",
        quantization="fp8" if quantization == "fp8" else "auto",
        kv_tokens=65_536,
    )
    first, second = (
        measure_start(config, {CACHE_VARIABLE: str(tmp_path)}).details["warm-up"] for _ in range(2)
    )
    engine, _, ahead = first.partition("; ahead ")
    assert " found, 0 compiled in " in engine, first
    assert " 0 left to the engine" in ahead, first
    assert " found, 0 compiled in " in second, second
