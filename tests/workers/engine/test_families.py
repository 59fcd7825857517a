"""Every family computes what `transformers` computes, whatever the steps it takes to get there."""

from array import array
from pathlib import Path

import pytest
import torch

from benchmarks.drive import Drive, fresh_runner
from protocol.sampling import SamplingParams
from tests.fakes.tiny_families import FAMILIES, write_family
from tests.workers.engine.pairs import TOLERANCE, Pair, sure_pair
from workers.scheduler.plan import Chunk, SequenceStart, StepPlan
from workers.scheduler.saving import SavePolicy

NUM_OUTPUTS = 64
FEW_BLOCKS = 26
GREEDY = SamplingParams(max_tokens=NUM_OUTPUTS, temperature=0.0, ignore_eos=True)
SAVED = SavePolicy(grain=16, every=64, least=16)
"""Where a model with states keeps them, of prompts so short."""

OFTEN = (
    "qwen2-yarn",
    "llama3",
    "mistral",
    "ministral3",
    "gemma3",
    "phi4-mini",
    "qwen3_5",
    "qwen3_moe",
    "gpt_oss",
    "gemma4",
    "gemma4-experts",
    "gemma4-e",
    "glm4_moe_lite",
    "deepseek_v3",
)
"""These have each feature once; the others come with the slow tests."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=() if name in OFTEN else pytest.mark.slow) for name in FAMILIES
    ],
    name="pair",
)
def _pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    def write(seed: int) -> Path:
        return write_family(tmp_path_factory.mktemp("model"), request.param, seed=seed)

    return sure_pair(write, NUM_OUTPUTS)


@torch.inference_mode()
def test_logits_are_within_a_ten_thousandth(pair: Pair) -> None:
    """Prefills, chunks behind cached tokens and decodes, mixed in one step, give the same."""
    runner = fresh_runner(pair.runner)
    prompts = [pair.prompts[7][:170], pair.prompts[3]]
    blocks = [tuple(range(at, at + 20)) for at in (0, 40)]
    found: list[list[torch.Tensor]] = [[], []]
    starts = tuple(
        SequenceStart(seq, array("I", prompt), len(prompt), GREEDY, seed=0)
        for seq, prompt in enumerate(prompts)
    )
    for sizes in ((37, 5), (1, 1), (130, 27), (1, 0), (1, 0)):
        chunks = [
            Chunk(seq, len(found[seq]), length, blocks[seq], samples=False)
            for seq, length in enumerate(sizes)
            if length
        ]
        begin = () if found[0] else starts
        for chunk, hidden in runner.hidden(StepPlan(0, begin, tuple(chunks), ())):
            found[chunk.seq] += runner.model.logits(hidden)
    for prompt, logits_of in zip(prompts, found, strict=True):
        expected = pair.expected(prompt)
        torch.testing.assert_close(torch.stack(logits_of), expected, atol=TOLERANCE, rtol=0)


def test_alone_a_request_says_what_it_says_beside_others(pair: Pair) -> None:
    """Whole prompts in one step, a token per step behind them, and again behind a hit."""
    drive = Drive(fresh_runner(pair.runner), token_budget=1024, max_seqs=1, save_policy=SAVED)
    prompts = [pair.prompts[1], pair.prompts[3], pair.prompts[6]]
    for prompt in (*prompts, prompts[-1]):
        drive.submit(prompt, GREEDY)
        drive.finish()
    pair.assert_greedy(drive)
    assert drive.answers[3].outputs == drive.answers[2].outputs
    assert drive.answers[3].cached_tokens == (len(prompts[-1]) - 1) // 16 * 16


@pytest.mark.parametrize(
    "token_budget",
    [pytest.param(16, marks=pytest.mark.slow), 64, pytest.param(1024, marks=pytest.mark.slow)],
)
def test_greedy_tokens_are_identical(pair: Pair, token_budget: int) -> None:
    """Greedy tokens of 8 requests are the reference's, cold and from the prefix cache."""
    drive = Drive(
        fresh_runner(pair.runner), token_budget=token_budget, max_seqs=8, save_policy=SAVED
    )
    for _ in ("cold", "cached"):
        for prompt in pair.prompts:
            drive.submit(prompt, GREEDY)
        drive.finish()
    pair.assert_greedy(drive)
    hits = [answer.cached_tokens for answer in list(drive.answers.values())[8:]]
    assert hits == [(len(prompt) - 1) // 16 * 16 for prompt in pair.prompts]


@pytest.mark.slow
@pytest.mark.parametrize("token_budget", [16, 1024])
def test_preemption_changes_no_token(pair: Pair, token_budget: int) -> None:
    """With too few blocks sequences are preempted and recomputed, and answers do not change."""
    drive = Drive(
        fresh_runner(pair.runner),
        token_budget=token_budget,
        max_seqs=8,
        num_blocks=FEW_BLOCKS,
        save_policy=SAVED,
    )
    for prompt in pair.prompts:
        drive.submit(prompt, GREEDY)
    drive.finish()
    pair.assert_greedy(drive)
    assert drive.num_preemptions > 0
