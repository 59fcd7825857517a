"""Penalties equal the formulas as they are published, for any history and in any company."""

import random
from array import array
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.penalise import MAX_OUTPUTS
from protocol.sampling import SamplingParams
from workers.engine.step import penalties
from workers.engine.step.batch import SequenceState
from workers.engine.step.penalties import PenaltyTable
from workers.engine.step.sampler import Sampler, read
from workers.scheduler.plan import SequenceStart

CPU = torch.device("cpu")
VOCAB_SIZE = 9
MAX_SEQS = 5
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
    sampler = Sampler(VOCAB_SIZE, 1, CPU)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(4):
        logits = torch.randn(1, VOCAB_SIZE, generator=generator) * 2
        so_far = list(state.tokens[len(prompt) :])
        expected = _penalised(logits[0].tolist(), prompt, so_far, params)
        before = logits.clone()
        at = torch.tensor([len(state.tokens)])
        picked = sampler.sample(logits, [state], at)
        sampler.count(picked)
        (sampled,), failed = read(picked)
        assert not failed
        assert torch.equal(logits, before), "raw logits are still needed for log-probabilities"
        assert expected[sampled.ids[0]] == pytest.approx(max(expected), abs=1e-5)
        state.tokens.extend(sampled.ids)


class _Life:
    """A sequence with its true tokens. The host learns them later than the card, or never: its
    count begins with those that it knows at the start.
    """

    def __init__(self, seq: int, rng: random.Random) -> None:
        prompt = rng.choices(range(VOCAB_SIZE), k=rng.randrange(1, 9))
        self.tokens = prompt + rng.choices(range(VOCAB_SIZE), k=rng.choice((0, 0, 5)))
        self.num_prompt = len(prompt)
        self.params = SamplingParams(
            max_tokens=99,
            temperature=0.0,
            repetition_penalty=rng.choice((1.0, 1.0, 1.4)),
            frequency_penalty=rng.choice((0.0, 0.0, 0.3)),
            presence_penalty=rng.choice((0.0, 0.0, 0.9)),
        )
        start = SequenceStart(seq, array("I", self.tokens), len(prompt), self.params, seed=0)
        self.state = SequenceState(start)

    def best(self, logits: torch.Tensor) -> list[int]:
        """The best tokens, as far as rounding cannot tell them apart."""
        prompt, outputs = self.tokens[: self.num_prompt], self.tokens[self.num_prompt :]
        values = _penalised(logits.tolist(), prompt, outputs, self.params)
        return [i for i, value in enumerate(values) if value > max(values) - 1e-5]


@given(seed=st.integers(0, 2**32))
def test_any_company_changes_nothing(seed: int) -> None:
    """Sequences come, go, pause and stand in any order; some have no penalties, some numbers come
    again, some logits are no numbers. Each is penalised as if it were alone.
    """
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    lives: dict[int, _Life] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(penalties, "WIDENED_ROWS", 2)
        sampler = Sampler(VOCAB_SIZE, MAX_SEQS, CPU)
        for _ in range(25):
            while len(lives) < rng.randrange(1, MAX_SEQS + 1):
                seq = rng.choice([n for n in range(MAX_SEQS + 2) if n not in lives])
                lives[seq] = _Life(seq, rng)
            rows = rng.sample(sorted(lives), rng.randrange(1, len(lives) + 1))
            if rng.random() < 0.5:
                rows = sorted(lives)  # twice the same, now and then
            logits = torch.randn(len(rows), VOCAB_SIZE, generator=generator) * 2
            broken = rng.randrange(len(rows)) if rng.random() < 0.2 else -1
            if broken >= 0:
                logits[broken, rng.randrange(VOCAB_SIZE)] = torch.nan
            states = [lives[seq].state for seq in rows]
            picked = sampler.sample(logits, states, torch.arange(len(rows)))
            sampler.count(picked)
            for row, (seq, token) in enumerate(zip(rows, picked.ids.tolist(), strict=True)):
                assert (token < 0) == (row == broken)
                if token >= 0:
                    assert token in lives[seq].best(logits[row])
                    lives[seq].tokens.append(token)
            gone = [seq for seq in sorted(lives) if rng.random() < 0.1]
            for seq in gone:
                del lives[seq]
            sampler.forget([*gone, 77])


def _state(seq: int, tokens: list[int], num_prompt: int, **sampling: Any) -> SequenceState:
    params = SamplingParams(**{"max_tokens": 9, "temperature": 0.0, **sampling})
    return SequenceState(SequenceStart(seq, array("I", tokens), num_prompt, params, seed=seq))


@pytest.mark.parametrize("plain", [(), (0, 3), (7,)])
def test_rows_are_drawn_as_if_alone(
    plain: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are drawn as if alone, with seeds, positions, temperatures and filters of their own,
    penalised or not; nothing is left of those who had their numbers before.
    """
    monkeypatch.setattr(penalties, "WIDENED_ROWS", 2)
    logits = torch.randn(8, VOCAB_SIZE, generator=torch.Generator().manual_seed(1))
    together = Sampler(VOCAB_SIZE, 8, CPU)
    for heat in (0.5, 40.0):
        states, alone = [], Sampler(VOCAB_SIZE, 8, CPU)
        for seq in range(8):
            amount = 0.0 if seq in plain else 1.0 + 0.1 * seq
            sampling = {"temperature": heat + seq, "top_k": 3 + seq % 4}
            states.append(_state(seq, [seq], 1, presence_penalty=amount, **sampling))
        for step in range(12):
            positions = 100 * torch.arange(8) + step
            picked = together.sample(logits, states, positions)
            together.count(picked)
            for row, state in enumerate(states):
                own = alone.sample(logits[row : row + 1], [state], positions[row : row + 1])
                alone.count(own)
                assert picked.ids[row] == own.ids[0]
        together.forget(range(8))


def _first_adjusted(table: PenaltyTable) -> list[float]:
    """Zeros, as the first row last arranged has them adjusted."""
    values: list[float] = next(iter(table.adjust(torch.zeros(1, VOCAB_SIZE)))).logits[0].tolist()
    return values


def test_a_slot_is_clean_for_the_next_sequence() -> None:
    """A step of the last owner may still be in flight when it ends, and counts before that."""
    table = PenaltyTable(VOCAB_SIZE, 1, CPU)
    for seq in range(3):
        state = _state(seq, [seq, 7], 1, presence_penalty=1.0)
        for _ in ("its last step", "the stray one behind"):
            table.arrange([state])
            table.count(torch.tensor([4]))
        assert _first_adjusted(table) == [0, 0, 0, 0, -1, 0, 0, -1, 0]
        table.forget([seq])
        assert repr(table) == "<PenaltyTable slots={} free=1>"


def test_a_count_that_is_full_stays_full() -> None:
    """Whether it was filled here or comes with a resumed sequence; the prompt's mark stays too."""
    said = [3] * (MAX_OUTPUTS - 1), [3] * (MAX_OUTPUTS + 9)
    for outputs in said:
        table = PenaltyTable(VOCAB_SIZE, 1, CPU)
        state = _state(1, [3, 5, *outputs], 2, frequency_penalty=2.0)
        table.arrange([state])
        for _ in range(3):
            table.count(torch.tensor([3]))
        table.count(torch.tensor([5]))
        assert _first_adjusted(table) == [0, 0, 0, -2.0 * MAX_OUTPUTS, 0, -2, 0, 0, 0]


@pytest.mark.parametrize("max_rows", [1, 67, 131])
def test_no_number_of_penalised_rows_compiles_a_kernel_anew(max_rows: int) -> None:
    """Triton tells pointers at multiples of 16 bytes from others: all are, in every part."""
    table = PenaltyTable(VOCAB_SIZE, max_rows, CPU)
    table.arrange([_state(seq, [1], 1, presence_penalty=1.0) for seq in range(max_rows)])
    for part in table._parts:
        found = part.penalties
        for column in (
            found.rows,
            found.slots,
            found.repetition,
            found.frequency,
            found.presence,
        ):
            assert column.data_ptr() % 16 == 0
    assert [part.begin for part in table._parts] == list(range(0, max_rows, 64))
    assert table._parts[-1].end == max_rows
