"""Two ranks on a CPU answer as one rank does, whatever the steps."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fakes.bounded_run import run_bounded
from tests.fakes.tiny_families import FAMILIES, write_family
from tests.workers.engine.parallel.test_shares import UNCUT

OFTEN = ("llama3", "qwen3_5", "gpt_oss")
"""Dense with biases of no kind, hybrid, and a mixture with biases and sinks."""

BOUND_S = 300


def answers(model_dir: Path, num_ranks: int, device: str = "cpu") -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.workers.engine.parallel.answers"]
    done = run_bounded([*command, str(model_dir), str(num_ranks), device], BOUND_S)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=() if name in OFTEN else pytest.mark.slow)
        for name in FAMILIES
        if name not in UNCUT
    ],
)
def test_two_ranks_answer_as_one(tmp_path: Path, family: str) -> None:
    # 152 tokens, so that each rank has half of the head.
    write_family(tmp_path, family, vocab_size=152)
    assert_equal(answers(tmp_path, 1), answers(tmp_path, 2))


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two cards")
@pytest.mark.parametrize("family", OFTEN)
def test_two_cards_answer_as_one(tmp_path: Path, family: str) -> None:
    """With graphs, in float32."""
    write_family(tmp_path, family, vocab_size=152)
    assert_equal(answers(tmp_path, 1, "cuda"), answers(tmp_path, 2, "cuda"))


def assert_equal(one: dict[str, Any], two: dict[str, Any]) -> None:
    """Equal tokens, and log-probabilities within 1e-5."""
    for alone, together in zip(one.pop("logprobs"), two.pop("logprobs"), strict=True):
        assert [token for token, _ in alone] == [token for token, _ in together]
        for (_, expected), (_, found) in zip(alone, together, strict=True):
            assert found == pytest.approx(expected, abs=1e-5)
    assert two == one
