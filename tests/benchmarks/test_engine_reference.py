"""What answers of a timed run are checked against computes what the engine computes."""

from pathlib import Path

import pytest
import torch

from benchmarks.drive import fresh_runner
from benchmarks.engine.reference import reference_logits
from tests.fakes.tiny_families import write_family
from tests.fakes.tiny_models import load_tiny
from tests.gpu_parity.logits import engine_logits

PROMPT = [(7 * index + 3) % 149 for index in range(70)]


@pytest.mark.parametrize(
    "family", ["gemma4", "gpt_oss", "qwen3_5_moe", "glm4_moe_lite", "deepseek_v3"]
)
def test_the_reference_says_what_the_engine_says(tmp_path: Path, family: str) -> None:
    """Whole sequences in plain torch, in float32."""
    runner = load_tiny(write_family(tmp_path, family), kv_tokens=1024, dtype="float32")
    config, weights = runner.model.config, runner.model.weights
    ids = torch.tensor(PROMPT)
    expected = reference_logits(config, weights, ids, torch.arange(len(ids)), torch.float32)
    found = engine_logits(fresh_runner(runner), [PROMPT])[0]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
