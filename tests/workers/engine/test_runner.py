"""A step that goes wrong costs the sequence that caused it, never the engine."""

from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from protocol.sampling import SamplingParams
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from workers.engine.runner import ModelRunner, largest_id
from workers.engine.step.batch import make_batch
from workers.scheduler import admission as intake
from workers.scheduler.plan import Chunk, SequenceStart, StepPlan

GREEDY = SamplingParams(max_tokens=9, temperature=0.0)


def _start(seq: int, ids: list[int]) -> SequenceStart:
    return SequenceStart(seq, array("I", ids), len(ids), GREEDY, seed=0)


def _prefill(seq: int, length: int) -> Chunk:
    return Chunk(seq, 0, length, (2 * seq, 2 * seq + 1), samples=True)


@pytest.fixture(name="runner")
def _runner(tmp_path: Path) -> ModelRunner:
    return load_tiny(write_tiny_model(tmp_path), kv_tokens=1024)


def _fails_over(
    limit: int, error: Exception, forward: Callable[..., Tensor]
) -> Callable[..., Tensor]:
    """A forward pass with memory for `limit` tokens."""

    def limited(hidden: Tensor, *rest: Any, **named: Any) -> Tensor:
        if hidden.shape[0] > limit:
            raise error
        return forward(hidden, *rest, **named)

    return limited


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("the driver could not load product: <CUresult.CUDA_ERROR_OUT_OF_MEMORY: 2>"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        MemoryError(),
    ],
)
def test_out_of_memory_fails_the_largest_chunk(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The others of the step get their tokens in the same step, and the engine lives."""
    plan = StepPlan(
        1,
        (_start(1, [5] * 3), _start(2, [6] * 40), _start(3, [7] * 4)),
        (_prefill(1, 3), _prefill(2, 40), _prefill(3, 4)),
        (),
    )
    expected = {item.seq: item.ids for item in runner.run(plan).sampled}
    forward = _fails_over(10, error, runner.model.forward)
    monkeypatch.setattr(runner.model, "forward", forward)
    result = runner.run(StepPlan(2, plan.started, plan.chunks, (1, 2, 3)))
    assert {item.seq: item.ids for item in result.sampled} == {1: expected[1], 3: expected[3]}
    assert [seq for seq, _ in result.failed] == [2]
    assert "out of memory" in result.failed[0][1]


@pytest.mark.parametrize("text", ["a wrong shape", "out of resource: shared memory, Required: 9"])
def test_another_error_is_not_hidden(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Another error is not hidden: only lack of memory is survivable here."""
    forward = _fails_over(0, RuntimeError(text), runner.model.forward)
    monkeypatch.setattr(runner.model, "forward", forward)
    with pytest.raises(RuntimeError, match=text):
        runner.run(StepPlan(1, (_start(1, [5]),), (_prefill(1, 1),), ()))


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_both_ways_find_the_largest_id(ids: list[int]) -> None:
    """The scheduler refuses by either, whatever 32 bits a client sent."""
    assert largest_id(array("I", ids)) == intake.largest_id(array("I", ids)) == max(ids, default=0)


def test_an_id_outside_the_vocabulary_fails_its_sequence(runner: ModelRunner) -> None:
    """The neighbour is computed."""
    plan = StepPlan(1, (_start(1, [5, 151]), _start(2, [5])), (_prefill(1, 2), _prefill(2, 1)), ())
    result = runner.run(plan)
    assert [item.seq for item in result.sampled] == [2]
    assert result.failed == ((1, "token id 151 is outside the vocabulary of 151"),)


def test_ended_sequences_leave_nothing(runner: ModelRunner) -> None:
    """State goes with the plan that names the sequence; an unknown name is no fault."""
    runner.run(StepPlan(1, (_start(1, [5]), _start(2, [5])), (_prefill(1, 1),), ()))
    assert runner.num_sequences == 2
    assert runner.run(StepPlan(2, (), (), (1, 2, 77))).sampled == ()
    assert runner.num_sequences == 0


def test_chunks_that_do_not_sample_sample_nothing(runner: ModelRunner) -> None:
    """A prompt in two chunks gives the token that it gives in one."""
    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    whole = runner.run(StepPlan(1, (_start(1, ids),), (_prefill(1, 8),), ()))
    first = Chunk(2, 0, 5, (9,), samples=False)
    assert runner.run(StepPlan(2, (_start(2, ids),), (first,), ())).sampled == ()
    rest = runner.run(StepPlan(3, (), (Chunk(2, 5, 3, (9,), samples=True),), ()))
    assert rest.sampled[0].ids == whole.sampled[0].ids


@pytest.mark.parametrize("chunk", [Chunk(1, 0, 4, (0,), samples=True), Chunk(1, 0, 3, (), True)])
def test_a_chunk_past_its_tokens_or_blocks_is_refused(chunk: Chunk) -> None:
    """A wrong plan is an error, never a read of foreign memory."""
    with pytest.raises(ValueError, match="sequence 1"):
        make_batch([chunk], {1: array("I", [5] * 3)}, 4)
