"""Penalties equal the formulas as they are published, for any history."""

from array import array
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protocol.sampling import SamplingParams
from workers.core.plan import SequenceStart
from workers.engine.sampler import Sampler, read
from workers.engine.sequences import SequenceState

VOCAB_SIZE = 9
IDS = st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=12)
PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.just(99),
    temperature=st.just(0.0),
    repetition_penalty=st.sampled_from([1.0, 0.7, 1.3]),
    frequency_penalty=st.sampled_from([0.0, -1.0, 0.4]),
    presence_penalty=st.sampled_from([0.0, -0.5, 1.1]),
)


def _penalised(
    logits: list[float], prompt: list[int], outputs: list[int], params: SamplingParams
) -> list[float]:
    """Keskar et al. (2019) for the repetition penalty, OpenAI's API reference for the others."""
    seen, counts = {*prompt, *outputs}, Counter(outputs)
    factor = params.repetition_penalty
    repeated = [
        (value / factor if value > 0 else value * factor) if token_id in seen else value
        for token_id, value in enumerate(logits)
    ]
    return [
        value
        - counts[token_id] * params.frequency_penalty
        - (counts[token_id] > 0) * params.presence_penalty
        for token_id, value in enumerate(repeated)
    ]


@given(prompt=IDS.filter(bool), outputs=IDS, seed=st.integers(0, 2**31), params=PARAMS)
def test_penalties_equal_the_published_formulas(
    prompt: list[int], outputs: list[int], seed: int, params: SamplingParams
) -> None:
    """A sequence resumed after any outputs, then carried on, is penalised as by definition."""
    ids = array("I", [*prompt, *outputs])
    state = SequenceState(SequenceStart(1, ids, len(prompt), params, seed=0))
    sampler = Sampler(VOCAB_SIZE, 1, torch.device("cpu"))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(4):
        logits = torch.randn(1, VOCAB_SIZE, generator=generator) * 2
        so_far = list(state.tokens[len(prompt) :])
        expected = _penalised(logits[0].tolist(), prompt, so_far, params)
        before = logits.clone()
        at = torch.tensor([len(state.tokens)])
        (sampled,), failed = read(sampler.sample(logits, [state], at))
        assert not failed
        assert torch.equal(logits, before), "raw logits are still needed for log-probabilities"
        assert expected[sampled.ids[0]] == pytest.approx(max(expected), abs=1e-5)
        state.tokens.extend(sampled.ids)
