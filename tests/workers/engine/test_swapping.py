"""Preempted sequences go to the host's memory and come back: what they say does not change."""

import random
from pathlib import Path

import pytest
import torch

from benchmarks.drive import Drive
from protocol.sampling import SamplingParams
from tests.fakes.host_tiers import tier_for
from tests.fakes.tiny_families import write_family
from tests.fakes.tiny_models import load_tiny
from tests.workers.engine.step_cases import BLOCK, as_on_card
from workers.engine.graphs.capture import Capture, CudaCapture, run_again
from workers.engine.graphs.device_steps import DeviceSteps
from workers.engine.runner import ModelRunner
from workers.engine.step.host_steps import HostSteps
from workers.engine.step.steps import EngineSteps
from workers.scheduler import StepPlan

ON_CARD = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    ],
)
GREEDY = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)


class Counting(ModelRunner):
    """A runner that counts the tokens of its plans, and the sequences that came back."""

    num_computed = 0
    num_back = 0

    def launch(self, plan: StepPlan):  # type: ignore[no-untyped-def] # noqa: ANN201
        """See `ModelRunner`."""
        self.num_computed += sum(chunk.length for chunk in plan.chunks)
        self.num_back += len(plan.moves.back)
        return super().launch(plan)


@pytest.mark.parametrize("on", ["cpu", "like a card", ON_CARD])
@pytest.mark.parametrize("family", ["qwen2", "qwen3_5"])
def test_swapped_sequences_say_the_same(
    request: pytest.FixtureRequest, tmp_path: Path, family: str, on: str
) -> None:
    """Swapped sequences get the same tokens, in blocks that run out again and again; fewer tokens
    are computed than without swapping.
    """
    device = "cuda" if on == "cuda" else "cpu"
    sizes = {"kv_tokens": 1024, "block_size": BLOCK, "token_budget": 1024, "snapshots": 0}
    host = load_tiny(write_family(tmp_path, family), device=device, dtype="float32", **sizes)
    rng = random.Random(3)
    prompts = [[rng.randrange(2, 150) for _ in range(rng.randrange(20, 60))] for _ in range(7)]
    answers, runners = [], []
    for num_pages in (0, 8, 60):
        steps = _steps(host, on)
        runner = Counting(host.model, host.cache, host.facts, host.model_dir, steps)
        if num_pages:
            request.addfinalizer(tier_for(runner, num_pages).close)
        ahead = on != "cpu"
        drive = Drive(runner, token_budget=48, max_seqs=4, num_blocks=12, looks_ahead=ahead)
        for prompt in prompts:
            drive.submit(prompt, GREEDY)
        drive.finish()
        assert drive.num_preemptions > 0
        answers.append([answer.outputs for answer in drive.answers.values()])
        runners.append(runner)
    assert answers[0] == answers[1] == answers[2]
    assert runners[0].num_back == 0 < runners[2].num_back
    assert runners[2].num_computed < runners[0].num_computed


def _steps(host: ModelRunner, on: str) -> EngineSteps:
    facts = host.facts
    if on == "cpu":
        return HostSteps(host.model, host.cache, facts)
    capture: Capture = CudaCapture() if on == "cuda" else run_again
    steps = DeviceSteps(host.model, as_on_card(host).cache, facts, capture)
    while steps.prepare(pending_only=False):
        pass
    return steps
