"""The native engine on a card: loaded as a worker loads it, and equal to itself on the CPU."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.drive import Drive, fresh_runner
from kernels.philox import uniform_noise
from kernels.sample import Draw
from kernels.sample.reference import sample
from protocol.errors import ConfigError
from protocol.sampling import SamplingParams
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from tests.gpu_parity.logits import engine_logits
from workers.engine.runner import ModelRunner
from workers.scheduler.plan import StepPlan, StepResult

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

LENGTHS = (1, 2, 31, 33, 64, 100, 200, 300)
FEW_BLOCKS = 28
DRAWN = SamplingParams(
    max_tokens=64,
    temperature=1.2,
    top_p=0.95,
    top_k=50,
    min_p=0.01,
    repetition_penalty=1.1,
    frequency_penalty=0.2,
    logprobs=3,
    ignore_eos=True,
)


def _prompts() -> list[list[int]]:
    rng = random.Random(1)
    return [[rng.randrange(151) for _ in range(length)] for length in LENGTHS]


def _load(model_dir: Path, device: str) -> ModelRunner:
    return load_tiny(model_dir, device=device, dtype="float32", block_size=16, kv_tokens=4096)


def test_logits_are_those_of_the_cpu(tmp_path: Path) -> None:
    """In float32 both devices agree to rounding, however the prompt is cut into chunks."""
    write_tiny_model(tmp_path, num_attention_heads=8, num_key_value_heads=2)
    pairs = zip(
        engine_logits(fresh_runner(_load(tmp_path, "cuda")), _prompts()),
        engine_logits(fresh_runner(_load(tmp_path, "cpu")), _prompts()),
        strict=True,
    )
    for found, expected in pairs:
        torch.testing.assert_close(found.cpu(), expected, atol=1e-3, rtol=0)


def test_noise_and_draws_are_those_of_the_cpu() -> None:
    """A sampled sequence can move between devices: the noise is bit for bit the same."""
    seeds, positions = torch.arange(64) * 2**40 + 7, torch.arange(64) * 911
    noise = uniform_noise(seeds.cuda(), positions.cuda(), 1001)
    assert torch.equal(noise.cpu(), uniform_noise(seeds, positions, 1001))
    logits = torch.randn(64, 1001, generator=torch.Generator().manual_seed(2))
    draw = Draw(seeds, torch.full((64,), 0.8), top_p=torch.full((64,), 0.9))
    on_card = Draw(seeds.cuda(), draw.temperature.cuda(), top_p=torch.full((64,), 0.9).cuda())
    found = sample(logits.cuda(), on_card, positions.cuda())
    # The exponential of a softmax may round differently, so a border of top_p may move.
    assert int((found.cpu() != sample(logits, draw, positions)).sum()) <= 1


@pytest.mark.parametrize("token_budget", [16, 64, 1024])
def test_preemption_and_prefix_hits_change_no_draw(tmp_path: Path, token_budget: int) -> None:
    """Sampling with every filter and penalty gives the same tokens in any order of steps."""
    runner = _load(write_tiny_model(tmp_path), "cuda")
    plain = _serve(Drive(fresh_runner(runner)))
    poor = _serve(Drive(fresh_runner(runner), token_budget=token_budget, num_blocks=FEW_BLOCKS))
    assert poor.num_preemptions > 0
    assert sum(answer.cached_tokens for answer in plain.answers.values()) > 0
    for number, answer in plain.answers.items():
        assert len(answer.outputs) == DRAWN.max_tokens
        assert poor.answers[number].outputs == answer.outputs


def _serve(drive: Drive) -> Drive:
    for _ in ("cold", "cached"):
        for seed, prompt in enumerate(_prompts()):
            drive.submit(prompt, DRAWN, seed=seed)
        drive.finish()
    return drive


def test_memory_that_runs_out_costs_one_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real allocation failure in the largest chunk: the others go on, and so does the card."""
    runner = _load(write_tiny_model(tmp_path), "cuda")
    forward = runner.model.forward

    def hungry(hidden: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        if hidden.shape[0] > 500:
            torch.empty(2**45, dtype=torch.uint8, device="cuda")
        return forward(hidden, *rest, **named)

    monkeypatch.setattr(runner.model, "forward", hungry)
    results: list[StepResult] = []
    run = runner.run

    def recorded(plan: StepPlan) -> StepResult:
        results.append(run(plan))
        return results[-1]

    monkeypatch.setattr(runner, "run", recorded)
    drive = Drive(runner, token_budget=1024)
    numbers = [drive.submit(prompt, DRAWN) for prompt in _prompts()]
    drive.finish()
    endings = [drive.answers[number].finished for number in numbers]
    reasons = [ending.reason for ending in endings if ending is not None]
    assert reasons == ["length"] * 7 + ["error"]
    assert "out of memory" in next(result for result in results if result.failed).failed[0][1]


def test_more_keys_and_values_than_the_card_has_are_refused(tmp_path: Path) -> None:
    """One line says how much would fit."""
    with pytest.raises(ConfigError, match="kv_tokens"):
        load_tiny(write_tiny_model(tmp_path), device="cuda", kv_tokens=2**31 - 1)
