"""The engine computes what `transformers` computes, whatever the steps it takes to get there."""

from array import array
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.drive import Drive, fresh_runner
from protocol.sampling import SamplingParams
from tests.fakes.tiny_models import write_tiny_model
from tests.workers.engine.pairs import TOLERANCE, Pair, sure_pair
from workers.scheduler.plan import Chunk, SequenceStart, StepPlan

MODELS: dict[str, dict[str, Any]] = {
    "tied-1:1": {"tie_word_embeddings": True, "num_attention_heads": 3, "num_key_value_heads": 3},
    "untied-4:1": {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 10},
    "tied-8:1": {"tie_word_embeddings": True, "num_attention_heads": 8, "num_key_value_heads": 1},
    "untied-biased": {
        "attention_bias": True,
        "rope_theta": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    },
}
NUM_OUTPUTS = 32
FEW_BLOCKS = 22
GREEDY = SamplingParams(max_tokens=NUM_OUTPUTS, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module", params=list(MODELS), name="pair")
def _pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    def write(seed: int) -> Path:
        model_dir = tmp_path_factory.mktemp("model")
        return write_tiny_model(model_dir, shards=2, seed=seed, **MODELS[request.param])

    return sure_pair(write, NUM_OUTPUTS)


@torch.inference_mode()
def test_logits_are_within_a_ten_thousandth(pair: Pair) -> None:
    """Prefills, chunks behind cached tokens and decodes, mixed in one step, give the same."""
    runner = pair.runner
    prompts = [pair.prompts[7], pair.prompts[3], pair.prompts[2]]
    blocks = [tuple(range(at, at + 20)) for at in (0, 40, 20)]
    found: list[list[torch.Tensor]] = [[], [], []]
    starts = tuple(
        SequenceStart(seq, array("I", prompt), len(prompt), GREEDY, seed=0)
        for seq, prompt in enumerate(prompts)
    )
    for sizes in ((37, 5, 16), (1, 1, 15), (130, 27, 0), (1, 0, 0), (131, 0, 0)):
        chunks = [
            Chunk(seq, len(found[seq]), length, blocks[seq], samples=False)
            for seq, length in enumerate(sizes)
            if length
        ]
        for chunk, hidden in runner.hidden(StepPlan(0, starts, tuple(chunks), (0, 1, 2))):
            found[chunk.seq] += runner.model.logits(hidden)
    for prompt, logits_of in zip(prompts, found, strict=True):
        expected = pair.expected(prompt)
        torch.testing.assert_close(torch.stack(logits_of), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("token_budget", [16, 64, 1024])
def test_greedy_tokens_are_identical(pair: Pair, token_budget: int) -> None:
    """Greedy tokens of 8 requests are the reference's, cold and from the prefix cache."""
    drive = Drive(fresh_runner(pair.runner), token_budget=token_budget, max_seqs=8)
    for _ in ("cold", "cached"):
        for prompt in pair.prompts:
            drive.submit(prompt, GREEDY)
        drive.finish()
    pair.assert_greedy(drive)
    hits = [answer.cached_tokens for answer in list(drive.answers.values())[8:]]
    assert hits == [(len(prompt) - 1) // 16 * 16 for prompt in pair.prompts]
    assert drive.num_free_blocks == drive.num_blocks


@pytest.mark.parametrize("token_budget", [16, 64, 1024])
def test_preemption_changes_no_token(pair: Pair, token_budget: int) -> None:
    """With too few blocks sequences are preempted and recomputed, and answers do not change."""
    runner = fresh_runner(pair.runner)
    drive = Drive(runner, token_budget=token_budget, max_seqs=8, num_blocks=FEW_BLOCKS)
    for prompt in pair.prompts:
        drive.submit(prompt, GREEDY)
    drive.finish()
    pair.assert_greedy(drive)
    assert drive.num_preemptions > 0
    assert drive.num_free_blocks == FEW_BLOCKS
    # The scheduler names the last ended sequences in its next plan.
    assert runner.num_sequences <= 8


def test_a_resumed_request_draws_what_the_first_attempt_would_have(pair: Pair) -> None:
    """Sampling continues from any number of earlier outputs with the same tokens."""
    sampling = SamplingParams(
        max_tokens=24,
        temperature=1.3,
        top_p=0.95,
        repetition_penalty=1.1,
        frequency_penalty=0.3,
        ignore_eos=True,
    )
    whole = Drive(fresh_runner(pair.runner))
    first = whole.submit(pair.prompts[3], sampling, seed=11)
    whole.finish()
    outputs = whole.answers[first].outputs
    resumed = Drive(fresh_runner(pair.runner), token_budget=16)
    numbers = [
        resumed.submit(pair.prompts[3], sampling, outputs=outputs[:done], seed=11)
        for done in (1, 7, 23)
    ]
    resumed.finish()
    assert [resumed.answers[number].outputs for number in numbers] == [outputs] * 3
