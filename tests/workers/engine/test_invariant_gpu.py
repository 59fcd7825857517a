"""On a card: with `invariant` the same seed gives the same tokens under all conditions."""

import json
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from benchmarks.drive import Drive, fresh_runner
from config import DUMMY_PREFIX, WorkerConfig
from tests.workers.engine.invariant_cases import conditions, differing, requests, serve
from workers.engine.runner import ModelRunner
from workers.engine.start import load_runner
from workers.model_dir import dummy_dir
from workers.scheduler import StepPlan

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

LAYERS = 2
SHORT_BUDGET = 200

CASES: list[tuple[str, int, int, int, dict[str, Any]]] = [
    ("qwen3-0.6b", 128, 256, 700, {}),
    ("qwen3-8b", 48, 96, 525, {}),
    ("qwen3-8b", 32, 64, 350, {"quantization": "fp8", "kv_dtype": "fp8"}),
    ("glm-4.7-flash-30b", 24, 128, 140, {}),
]
"""A shape, how many requests, half of them sampled, tokens of each answer, blocks so few that some
are preempted, keys of the worker.
"""

ALL: Final = tuple(range(512))
"""More sequences than run at once."""


def _few_layers(shape: str, room: Path) -> str:
    """A shape with its first layers only: all of a layer's kernels, in a part of the time."""
    config = json.loads((dummy_dir(f"{DUMMY_PREFIX}{shape}") / "config.json").read_text())
    (room / "config.json").write_text(json.dumps({**config, "num_hidden_layers": LAYERS}))
    return f"{DUMMY_PREFIX}{room}"


def _load(model: str, **changes: Any) -> ModelRunner:
    config = WorkerConfig(
        name="check",
        model=model,
        serves="check",
        gateways=(),
        device="cuda",
        max_seqs=64,
        token_budget=2048,
        kv_tokens=131_072,
        context_length=8192,
        invariant=True,
        **changes,
    )
    return load_runner(config, lambda *_: None)


@pytest.mark.parametrize(
    ("shape", "num", "max_tokens", "few_blocks", "changes"),
    CASES,
    ids=["0.6b", "8b", "8b-fp8", "latent"],
)
def test_answers_are_equal_under_all_conditions(
    tmp_path: Path, shape: str, num: int, max_tokens: int, few_blocks: int, changes: dict[str, Any]
) -> None:
    """Greedy and sampled ones: alone, among 63 others, cached, in short chunks, preempted, resumed,
    and by graphs.
    """
    model = _few_layers(shape, tmp_path)
    runner = _load(model, **changes)
    asked = requests(num, max_tokens, 10_000, 1500)
    captured = fresh_runner(runner)
    while captured.prepare(pending_only=False):
        pass
    found = conditions(runner, asked, few_blocks, short_budget=SHORT_BUDGET, captured=captured)
    captured.run(StepPlan(0, (), (), ALL))  # the scheduler of those alone is gone
    found["by graphs"] = serve(Drive(captured), asked)
    assert captured.used_graph
    assert set(differing(found).values()) == {0}, differing(found)
    assert len({tuple(answer) for answer in found["alone"]}) == num
