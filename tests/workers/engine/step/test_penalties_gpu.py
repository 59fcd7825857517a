"""On a card: penalised rows draw what they draw on the CPU, in memory that was there before."""

import random
from array import array

import pytest
import torch

from protocol.sampling import SamplingParams
from workers.engine.step.batch import SequenceState
from workers.engine.step.sampler import Sampler
from workers.scheduler.plan import SequenceStart

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

VOCAB_SIZE = 5003


def _state(seq: int, rng: random.Random) -> SequenceState:
    tokens = rng.choices(range(VOCAB_SIZE), k=rng.randrange(1, 400))
    params = SamplingParams(
        max_tokens=99,
        temperature=rng.choice((0.0, 0.7)),
        top_p=rng.choice((1.0, 1.0, 0.9)),
        repetition_penalty=rng.choice((1.0, 1.3)),
        frequency_penalty=rng.choice((0.0, 0.4)),
        presence_penalty=rng.choice((0.0, 1.5)),
    )
    num_prompt = rng.randrange(1, len(tokens) + 1)
    return SequenceState(SequenceStart(seq, array("I", tokens), num_prompt, params, seed=seq))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_are_those_of_the_cpu(dtype: torch.dtype) -> None:
    """Tokens are those of the CPU in any company, with more penalised rows than are adjusted at
    once.
    """
    rng, max_rows = random.Random(3), 150
    states = [_state(seq, rng) for seq in range(max_rows)]
    here, there = [Sampler(VOCAB_SIZE, max_rows, torch.device(name)) for name in ("cpu", "cuda")]
    num_different = 0
    for step in range(8):
        rows = rng.sample(states, rng.choice((1, 40, max_rows)))
        logits = (torch.randn(len(rows), VOCAB_SIZE) * 3).to(dtype)
        positions = torch.arange(len(rows), dtype=torch.int32) * 50 + step
        expected = here.sample(logits, rows, positions)
        found = there.sample(logits.cuda(), rows, positions.cuda())
        num_different += int((found.ids.cpu() != expected.ids).sum())
        for sampler, picked in ((here, expected), (there, found)):
            sampler.count(picked)
        if step == 4:
            for sampler in (here, there):
                sampler.forget(range(0, max_rows, 2))
    # The exponential of a softmax may round differently, so a border of top_p may move.
    assert num_different <= 2


def test_penalties_take_no_memory_of_their_own() -> None:
    """All of it is taken at the start, where the largest step is measured."""
    vocab_size, max_rows, rng = 50_000, 200, random.Random(4)
    sampler = Sampler(vocab_size, max_rows, torch.device("cuda"))
    states = [_state(seq, rng) for seq in range(max_rows)]
    logits = torch.randn(max_rows, vocab_size, device="cuda", dtype=torch.bfloat16)
    positions = torch.arange(max_rows, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for _ in range(2):
        sampler.count(sampler.sample(logits, states, positions))
    assert torch.cuda.max_memory_allocated() - before < logits.nbytes / 4
