"""Log-probabilities of prompts are those of `transformers`, whatever the steps it takes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from protocol.messages import MAX_SCORED, Accepted, Finished, Score, Scored, Submit, TokenLogprobs
from protocol.sampling import SamplingParams
from protocol.tokens import pack_tokens
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from workers.engine.graphs.device_steps import DeviceSteps
from workers.engine.runner import ModelRunner
from workers.scheduler import BlockManager, Outgoing, Scheduler, SchedulerLimits

BLOCK = 32
LENGTHS = (1, 2, 31, 32, 33, 100, 100, 200)
PROMPTS = [[7 * at % 149 + 2 for at in range(length)] for length in LENGTHS]
NUM_TOP = 3


@pytest.fixture(scope="module", name="model_dir")
def _model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("model")
    write_tiny_model(folder, seed=3, std=0.3)
    return folder


@pytest.fixture(scope="module", name="expected")
def _expected(model_dir: Path) -> list[torch.Tensor]:
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    with torch.inference_mode():
        return [model(torch.tensor([one])).logits[0].log_softmax(-1) for one in PROMPTS]


class Driven:
    """A scheduler and its runner; what was sent by request number."""

    def __init__(self, runner: ModelRunner, token_budget: int, num_blocks: int = 64) -> None:
        self._runner = runner
        limits = SchedulerLimits(4, token_budget, 1024, 16)
        blocks = BlockManager(num_blocks, BLOCK)
        self._scheduler = Scheduler(limits, blocks, ("m",), runner.eos_ids)
        self.scores: dict[int, list[TokenLogprobs]] = {}
        self.cached: dict[int, int] = {}
        self.finished: dict[int, Finished] = {}
        self.largest = 0

    def score(self, number: int, prompt: list[int]) -> None:
        self.scores[number] = []
        self.take(Score(_id(number), 0, "m", pack_tokens(prompt), NUM_TOP))

    def answer(self, number: int, prompt: list[int]) -> None:
        sampling = SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True)
        self.take(Submit(_id(number), 0, "m", pack_tokens(prompt), b"", sampling, 1))

    def take(self, message: Score | Submit) -> None:
        self._hear(self._scheduler.submit(1, message, 0.0))

    def run(self) -> None:
        while (plan := self._scheduler.plan()) is not None:
            self._hear(self._scheduler.commit(plan, self._runner.run(plan)))
        self._scheduler.check_integrity()

    def _hear(self, sent: tuple[Outgoing, ...]) -> None:
        for _, message in sent:
            match message:
                case Scored():
                    scores = self.scores[message.request_id[0]]
                    assert message.offset == len(scores) + 1
                    assert len(message.logprobs) <= MAX_SCORED
                    scores += message.logprobs
                case Accepted():
                    self.cached[message.request_id[0]] = message.cached_tokens
                case Finished():
                    self.finished[message.request_id[0]] = message
                case _:
                    pass


def _id(number: int) -> bytes:
    return bytes([number]) * 16


def _check(scores: list[TokenLogprobs], prompt: list[int], wanted: torch.Tensor) -> None:
    assert len(scores) == len(prompt) - 1
    for at, score in enumerate(scores):
        row = wanted[at]
        assert score.logprob == pytest.approx(float(row[prompt[at + 1]]), abs=1e-4)
        values = [value for _, value in score.top]
        assert values == pytest.approx(row.topk(NUM_TOP).values.tolist(), abs=1e-4)
        for token_id, value in score.top:
            assert value == pytest.approx(float(row[token_id]), abs=1e-4)


def _runner_on(model_dir: Path, kind: str, **options: Any) -> ModelRunner:
    runner = load_tiny(model_dir, **options)
    if kind == "host":
        return runner
    steps = DeviceSteps(runner.model, runner.cache, runner.facts)
    return ModelRunner(runner.model, runner.cache, runner.facts, model_dir, steps)


@pytest.mark.parametrize("kind", ["host", "device"])
@pytest.mark.parametrize("token_budget", [512, 48])
def test_scores_equal_those_of_transformers(
    model_dir: Path, expected: list[torch.Tensor], token_budget: int, kind: str
) -> None:
    """Scores equal those of transformers, in one step or in many chunks, beside each other and
    beside an answer, cold and with the prompt in the cache. An answer to a scored prompt finds it
    there.
    """
    driven = Driven(_runner_on(model_dir, kind), token_budget)
    driven.answer(99, PROMPTS[5])
    for _ in range(2):
        for number, prompt in enumerate(PROMPTS):
            driven.score(number, prompt)
        driven.run()
        for number, (prompt, wanted) in enumerate(zip(PROMPTS, expected, strict=True)):
            _check(driven.scores[number], prompt, wanted)
            end = driven.finished[number]
            assert (end.reason, end.output_tokens) == ("length", 0)
            assert driven.cached[number] == 0
    assert driven.finished[99].output_tokens == 5
    driven.answer(98, PROMPTS[7])
    driven.run()
    assert driven.cached[98] == len(PROMPTS[7]) // BLOCK * BLOCK


def test_a_preempted_prompt_is_scored_once(model_dir: Path, expected: list[torch.Tensor]) -> None:
    """Answers take the blocks of a prompt, which is computed again later."""
    driven = Driven(_runner_on(model_dir, "host"), 40, num_blocks=9)
    for number in (90, 91):
        driven.answer(number, PROMPTS[2])
    driven.score(7, PROMPTS[7])
    driven.run()
    _check(driven.scores[7], PROMPTS[7], expected[7])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_card_gives_the_same(model_dir: Path, expected: list[torch.Tensor]) -> None:
    """A card gives the same in float32 to rounding; answers and scores take turns in its steps."""
    runner = load_tiny(model_dir, device="cuda", dtype="float32", kv_tokens=4096)
    driven = Driven(runner, 96)
    driven.answer(99, PROMPTS[5])
    for number, prompt in enumerate(PROMPTS):
        driven.score(number, prompt)
    driven.run()
    for number, wanted in enumerate(expected):
        chosen = [float(wanted[at, one]) for at, one in enumerate(PROMPTS[number][1:])]
        found = [score.logprob for score in driven.scores[number]]
        assert found == pytest.approx(chosen, abs=1e-2)
