"""Penalties, mixed rows and log-probabilities of one step."""

from array import array
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from protocol.sampling import SamplingParams
from workers.engine.step.batch import SequenceState
from workers.engine.step.draws import WIDENED_ROWS, send_columns
from workers.engine.step.sampler import Sampler, read
from workers.scheduler.plan import Sampled, SequenceStart

CPU = torch.device("cpu")
LOGITS = torch.tensor([1.0, 4.0, 3.5, -2.0, 0.0, 3.0])


def _state(seq: int, ids: list[int], num_prompt: int, **sampling: Any) -> SequenceState:
    params = SamplingParams(**{"max_tokens": 9, "temperature": 0.0, **sampling})
    return SequenceState(SequenceStart(seq, array("I", ids), num_prompt, params, seed=seq))


def _sampler() -> Sampler:
    return Sampler(6, 4, CPU)


def _sample(
    sampler: Sampler, logits: torch.Tensor, states: list[SequenceState], positions: list[int]
) -> tuple[list[Sampled], list[int]]:
    picked = sampler.sample(logits, states, torch.tensor(positions))
    sampler.count(picked)
    return read(picked)


def _greedy_run(state: SequenceState, steps: int) -> list[int]:
    sampler = _sampler()
    for _ in range(steps):
        sampled, _ = _sample(sampler, LOGITS[None], [state], [len(state.tokens)])
        state.tokens.extend(sampled[0].ids)
    return list(state.tokens)


def test_presence_penalty_counts_outputs_once() -> None:
    """A token loses its lead after its first occurrence in the output, not in the prompt."""
    assert _greedy_run(_state(1, [1], 1, presence_penalty=0.8), 4) == [1, 1, 2, 1, 1]


def test_frequency_penalty_grows_with_each_output() -> None:
    """Each occurrence costs again."""
    assert _greedy_run(_state(1, [1], 1, frequency_penalty=0.8), 4) == [1, 1, 2, 1, 5]


def test_repetition_penalty_counts_the_prompt_too() -> None:
    """Positive logits are divided, negative ones multiplied."""
    assert _greedy_run(_state(1, [1, 3], 2, repetition_penalty=1.2), 3) == [1, 3, 2, 1, 1]


def test_outputs_of_an_earlier_attempt_count() -> None:
    """A resumed sequence is penalised for what it already said."""
    assert _greedy_run(_state(1, [0, 1], 1, presence_penalty=0.8), 1)[-1] == 2


def test_a_number_may_be_given_to_another_sequence() -> None:
    """After `forget` the same number may sample differently."""
    sampler = _sampler()
    drawn = [
        _sample(sampler, LOGITS[None], [_state(1, [0], 1, temperature=5.0)], [at])[0][0].ids
        for at in range(20)
    ]
    assert set(drawn) != {(1,)}
    sampler.forget([1])
    again = [
        _sample(sampler, LOGITS[None], [_state(1, [0], 1)], [at])[0][0].ids for at in range(20)
    ]
    assert set(again) == {(1,)}


def test_greedy_and_drawn_rows_share_a_step() -> None:
    """A row gets the same token whatever its neighbours ask for."""
    states = [
        _state(1, [0], 1),
        _state(2, [0], 1, temperature=1.5),
        _state(3, [0], 1, temperature=0.9, top_p=0.8, top_k=3, min_p=0.01),
        _state(4, [0], 1, temperature=1e-9),
    ]
    logits = LOGITS.expand(4, -1).contiguous()
    together, _ = _sample(_sampler(), logits, states, [8, 8, 8, 8])
    alone = [_sample(_sampler(), LOGITS[None], [state], [8])[0][0] for state in states]
    assert together == alone
    assert together[0].ids == together[3].ids == (1,)


def test_logprobs_are_of_the_raw_logits() -> None:
    """Chosen token and best alternatives, as many as asked for, penalties and filters aside."""
    expected = LOGITS.log_softmax(0)
    states = [
        _state(1, [1], 1, logprobs=2, repetition_penalty=2.0),
        _state(2, [1], 1),
        _state(3, [1], 1, logprobs=0),
        _state(4, [1], 1, logprobs=20, top_k=1, temperature=1.0),
    ]
    sampled, _ = _sample(_sampler(), LOGITS.expand(4, -1).contiguous(), states, [1] * 4)
    first, none, bare, every = (item.logprobs for item in sampled)
    assert none == ()
    assert sampled[0].ids == (2,)
    assert first[0].logprob == pytest.approx(float(expected[2]))
    assert first[0].top == ((1, float(expected[1])), (2, float(expected[2])))
    assert bare[0].top == ()
    assert [token for token, _ in every[0].top] == [1, 2, 5, 0, 4, 3]


def test_logprobs_of_many_rows_are_those_of_each() -> None:
    """Log-probabilities of many rows equal those of each row: they are made part by part, each with
    as many alternatives as any row asks for.
    """
    num_rows = 2 * WIDENED_ROWS + 1
    logits = torch.randn(num_rows, 6)
    asks = [None if row % 7 == 3 else row % 5 for row in range(num_rows)]
    states = [_state(row, [1], 1, logprobs=ask) for row, ask in enumerate(asks)]
    sampled, _ = _sample(Sampler(6, num_rows, CPU), logits, states, [1] * num_rows)
    for row, ask, item in zip(logits.log_softmax(1), asks, sampled, strict=True):
        if ask is None:
            assert item.logprobs == ()
            continue
        (found,) = item.logprobs
        values, ids = row.topk(ask)
        assert item.ids == (int(row.argmax()),)
        assert found.logprob == pytest.approx(float(row.max()))
        assert [token for token, _ in found.top] == ids.tolist()
        assert [value for _, value in found.top] == pytest.approx(values.tolist())


class _ReadBacks(TorchDispatchMode):
    """Counts the numbers that the host asks a tensor for: on a card, each waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_nothing_is_read_back_before_the_step_is_over() -> None:
    """Penalties and log-probabilities leave the host free to launch the next step."""
    state = _state(1, [0, 1], 1, presence_penalty=0.8, repetition_penalty=1.3, logprobs=2)
    sampler, positions = _sampler(), torch.tensor([2])
    for _ in range(2):
        with _ReadBacks() as counted:
            picked = sampler.sample(LOGITS[None], [state], positions)
            sampler.count(picked)
        assert counted.count == 0
        sampled, _ = read(picked)
        state.tokens.extend(sampled[0].ids)
    assert list(state.tokens) == [0, 1, 2, 5]


def test_a_step_that_is_repeated_counts_its_tokens_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory may run out while log-probabilities are computed: the runner tries again."""
    state, sampler = _state(1, [0], 1, frequency_penalty=0.8, logprobs=1), _sampler()
    with monkeypatch.context() as patch:
        patch.setattr("workers.engine.step.sampler.logprobs", _no_memory)
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError):
                sampler.sample(LOGITS[None], [state], torch.tensor([1]))
    said = [_sample(sampler, LOGITS[None], [state], [1])[0][0].ids[0] for _ in range(5)]
    assert said == [1, 2, 1, 5, 2]


@pytest.mark.parametrize("num_sent", range(5))
def test_rows_that_were_sent_in_part_are_sent_again(
    num_sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory may run out between two transfers: the repeated step must not take them for done."""

    def drawn(sampler: Sampler) -> list[int]:
        state = _state(2, [3, 0], 1, presence_penalty=-2.0, temperature=3.0, top_k=5)
        positions = torch.arange(40)
        return [int(sampler.sample(LOGITS[None], [state], at[None]).ids) for at in positions]

    sampler = _sampler()
    _sample(sampler, LOGITS[None], [_state(1, [0], 1, repetition_penalty=1.1)], [1])
    with monkeypatch.context() as patch:
        sends = _Sends(num_sent)
        for table in ("draws", "penalties"):
            patch.setattr(f"workers.engine.step.{table}.send_columns", sends)
        with pytest.raises(torch.OutOfMemoryError):
            drawn(sampler)
    assert drawn(sampler) == drawn(_sampler())


class _Sends:
    """All but the first few find no memory."""

    def __init__(self, count: int) -> None:
        self._left = count

    def __call__(self, target: torch.Tensor, values: Any) -> None:
        self._left -= 1
        if self._left < 0:
            _no_memory()
        send_columns(target, values)


def _no_memory(*_: object) -> None:
    raise torch.OutOfMemoryError("no more")


def test_a_row_that_is_not_a_number_fails_alone() -> None:
    """The others of the step get their tokens."""
    logits = LOGITS.repeat(3, 1)
    logits[1] = torch.nan
    states = [_state(seq, [0], 1, presence_penalty=0.5) for seq in (1, 2, 3)]
    sampled, failed = _sample(_sampler(), logits, states, [1, 1, 1])
    assert [item.seq for item in sampled] == [1, 3]
    assert failed == [2]
