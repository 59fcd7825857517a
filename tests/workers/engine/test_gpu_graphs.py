"""On a card: steps replayed from graphs are the steps that are launched kernel by kernel."""

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from protocol.sampling import SamplingParams
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from tests.workers.engine.step_cases import (
    BLOCK,
    GREEDY,
    NUM_SEQS,
    Life,
    as_on_card,
    plans_of_lives,
    sampled_by,
)
from workers.engine.graphs.capture import Capture, CudaCapture, held_on_card, run_again
from workers.engine.peak_probe import PeakMeter
from workers.engine.runner import ModelRunner
from workers.scheduler.plan import Sampled, StepPlan

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

SCORED = SamplingParams(max_tokens=200, temperature=0.0, logprobs=5)
ENDED = StepPlan(99, (), (), tuple(range(NUM_SEQS)))
WIDE: dict[str, Any] = {
    "dtype": "bfloat16",
    "head_dim": 128,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
}


def _lives(seed: int, sampling: SamplingParams) -> list[Life]:
    """Prompts that are cut into chunks of all sizes: of every room, and of none."""
    rng = random.Random(seed)
    lives = []
    for cut in rng.choices((1, 2, 20, 48, 110, 190, 300), k=NUM_SEQS):
        num_prompt = rng.randrange(1, min(900, 12 * cut) + 1)
        lives.append(Life(rng.randrange(6), num_prompt, cut, sampling))
    return lives


def _runs(runner: ModelRunner, plans: list[list[StepPlan]]) -> list[list[dict[int, Sampled]]]:
    """One after another, a step ahead; the graphs are the same all the time."""
    found = []
    for run in plans:
        found.append(sampled_by(runner, run, ahead=1))
        runner.run(ENDED)
    return found


@pytest.mark.parametrize(
    ("shape", "config"),
    [
        ({}, {"dtype": "float32"}),
        (WIDE, {}),
        (WIDE, {"kv_dtype": "fp8", "quantization": "fp8"}),
    ],
    ids=["float32", "bfloat16", "fp8"],
)
def test_a_replayed_step_is_the_launched_one(
    tmp_path: Path, shape: dict[str, Any], config: dict[str, Any]
) -> None:
    """Bit for bit at the same sizes, with graphs refilled by other steps in between."""
    host = _load(write_tiny_model(tmp_path, **shape), config)
    plans = [plans_of_lives(_lives(seed, SCORED), 24) for seed in range(4)]
    captures: tuple[Capture, ...] = CudaCapture(), run_again
    replayed, launched = [_runs(as_on_card(host, capture), plans) for capture in captures]
    assert replayed == launched


def test_whole_runs_say_the_same_with_graphs_as_without(tmp_path: Path) -> None:
    """Greedy, in float32, a step ahead: padding changes no token."""
    host = _load(write_tiny_model(tmp_path), {"dtype": "float32"})
    plans = [plans_of_lives(_lives(seed, GREEDY), 40) for seed in range(6)]
    with_graphs = _runs(as_on_card(host, CudaCapture()), plans)
    without = as_on_card(host)
    assert with_graphs == _runs(without, plans)
    assert without.has_pending_captures


def test_a_step_that_samples_nothing_is_waited_for(tmp_path: Path) -> None:
    """The host waits for a step that samples nothing; else it would launch all chunks of a long
    prompt ahead.
    """
    host = _load(write_tiny_model(tmp_path), {"dtype": "float32"})
    for capture in (None, CudaCapture()):
        runner = as_on_card(host, capture)
        launched = runner.launch(plans_of_lives([Life(0, 90, 40, GREEDY)], 1)[0]).launched
        assert launched is not None
        assert launched.done is not None
        launched.wait()
        assert launched.done.query()


def test_a_capture_takes_no_memory_of_its_own() -> None:
    """What the library needs for a product is there once."""
    x, capture = torch.randn(512, 512, device="cuda"), CudaCapture()
    replays = [capture(lambda: x @ x)]
    before = torch.cuda.memory_allocated()
    replays += [capture(lambda: x @ x) for _ in range(8)]
    assert torch.cuda.memory_allocated() - before <= 8 * 2**20
    for replay in replays:
        torch.testing.assert_close(replay(), x @ x)


def test_results_share_their_memory() -> None:
    """The logits of some 20 graphs would be half a gigabyte; each is right until the next replay,
    whatever else was captured since.
    """
    x, capture = torch.randn(64, 64, device="cuda"), CudaCapture()
    steps = [partial(torch.Tensor.repeat, x + number, 1, 4096) for number in range(6)]
    replays = [capture(steps[0])]
    size = steps[0]().nbytes
    before = torch.cuda.memory_allocated()
    replays += [capture(step) for step in steps[1:]]
    assert torch.cuda.memory_allocated() - before < size
    for step, replay in zip(steps, replays, strict=True):
        result = replay()
        assert result.shape == (64, 64 * 4096)
        assert torch.equal(result, step())


@pytest.mark.parametrize("num_runs", [0, 1], ids=["before", "within"])
def test_a_capture_that_memory_runs_out_in_leaves_nothing_behind(num_runs: int) -> None:
    """The launches of the failed capture end before the next step, on the stream of all steps; a
    later capture succeeds.
    """
    x, capture, current = torch.zeros(4, device="cuda"), CudaCapture(), torch.cuda.current_stream()
    num_left = num_runs

    def step() -> Tensor:
        nonlocal num_left
        if num_left == 0:
            torch.cuda._sleep(10**8)
            x.fill_(1)
            raise torch.OutOfMemoryError("no more")
        num_left -= 1
        return x + 1

    with pytest.raises(torch.OutOfMemoryError):
        capture(step)
    x.zero_()
    torch.cuda.synchronize()
    assert torch.cuda.current_stream() == current
    assert x.tolist() == [0, 0, 0, 0]
    assert capture(lambda: x + 2)().tolist() == [2, 2, 2, 2]


def test_what_is_held_comes_back() -> None:
    """What is held comes back to torch and to the driver; of what a step takes, that which it does
    not keep is measured.
    """
    size = 32 * 2**20
    with PeakMeter(torch.device("cuda", 0)) as meter:
        kept = torch.empty(size // 4, dtype=torch.uint8, device="cuda")
        torch.empty(size, dtype=torch.uint8, device="cuda")
    assert (meter.passing_bytes, kept.nbytes) == (size, size // 4)
    assert meter.peak_bytes >= size + size // 4
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    with held_on_card(size):
        assert torch.cuda.memory_allocated() == before[0] + size
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before


def _load(model_dir: Path, config: dict[str, Any]) -> ModelRunner:
    config = {"token_budget": 2048, **config}
    return load_tiny(model_dir, device="cuda", block_size=BLOCK, kv_tokens=8192, **config)
