"""Starts on a card: the first compiles beside itself, the second nothing at all."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.engine.start import measure_start
from config import WorkerConfig
from tests.fakes.uninterpreted import run_uninterpreted
from workers.engine.compile.kernel_cache import CACHE_VARIABLE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.mark.parametrize("quantization", ["auto", "fp8"])
def test_a_first_start_compiles_nothing_itself(tmp_path: Path, quantization: str) -> None:
    """A first start compiles nothing itself: it waits for its compiler, which has foreseen every
    kernel; the next start needs none.
    """
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


@pytest.mark.parametrize("options", [[], ["--invariant"]], ids=["plain", "invariant"])
def test_a_second_start_compiles_nothing(tmp_path: Path, options: list[str]) -> None:
    """A second start compiles nothing with nothing set but the model: start, all graphs, and
    requests of every kind.
    """
    program = "tests.workers.engine.whole_start"
    first, second = (
        json.loads(run_uninterpreted(program, *options, cache=tmp_path).splitlines()[-1])
        for _ in range(2)
    )
    assert first["found"] + len(first["compiled"]) > 30, first
    assert second["compiled"] == [], second
    assert second["ahead"] is False, second
