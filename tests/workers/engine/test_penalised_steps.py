"""Penalties in whole steps: a step ahead of the host, and in steps that are repeated."""

import pytest
import torch

from protocol.sampling import SamplingParams
from tests.workers.engine.step_cases import as_on_card, start_of, without_memory_once
from workers.engine.graphs.capture import Capture, run_again
from workers.engine.runner import ModelRunner
from workers.engine.step import penalties
from workers.scheduler.plan import Chunk, StepPlan

PENALISED = SamplingParams(
    max_tokens=50, temperature=0.0, frequency_penalty=1.5, repetition_penalty=1.5
)
LENGTH = 8


def _prompt(seq: int, blocks: tuple[int, ...], ended: tuple[int, ...] = ()) -> StepPlan:
    start = start_of(seq, PENALISED, [seq] * LENGTH)
    return StepPlan(1, (start,), (Chunk(seq, 0, LENGTH, blocks, samples=True),), ended)


def _next(seq: int, number: int, blocks: tuple[int, ...]) -> StepPlan:
    return StepPlan(2, (), (Chunk(seq, LENGTH + number, 1, blocks, samples=True),), ())


def _said(runner: ModelRunner, seq: int, count: int) -> list[int]:
    plans = [_prompt(seq, (0, 1)), *[_next(seq, number, (0, 1)) for number in range(count - 1)]]
    said = [runner.run(plan).sampled[0].ids[0] for plan in plans]
    runner.run(StepPlan(9, (), (), (seq,)))
    return said


@pytest.mark.parametrize("capture", [None, run_again], ids=["unpadded", "padded"])
def test_a_stray_step_leaves_nothing_to_the_next_owner_of_a_slot(
    host: ModelRunner, capture: Capture | None
) -> None:
    """A step that counts tokens after its sequence has ended for the host, and before the slot is
    cleared, leaves nothing to the next owner.
    """
    expected = _said(host, 2, 6)
    runner = as_on_card(host, capture)
    flying = [runner.launch(plan) for plan in (_prompt(1, (4, 5)), _next(1, 0, (4, 5)))]
    runner.collect(flying.pop(0))  # and with that token sequence 1 ends
    flying.append(runner.launch(_prompt(2, (0, 1), ended=(1,))))
    found = []
    for number in range(5):
        flying.append(runner.launch(_next(2, number, (0, 1))))
        found.append(runner.collect(flying.pop(0)))
    found += [runner.collect(step) for step in flying]
    assert [result.sampled[0].ids[0] for result in found[1:]] == expected


@pytest.mark.parametrize("what", ["int", "count"])
def test_a_repeated_step_counts_once(
    host: ModelRunner, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Memory may run out behind the draw, until the tokens are kept for the next step."""
    expected = _said(host, 1, 12)
    runner = as_on_card(host)
    said = [runner.run(_prompt(1, (0, 1))).sampled[0].ids[0]]
    for number in range(11):
        seq = 10 + number
        hungry = StepPlan(
            3,
            (start_of(seq, PENALISED, [3] * 20),),
            (*_next(1, number, (0, 1)).chunks, Chunk(seq, 0, 20, (6, 7), samples=True)),
            (seq - 1,),
        )
        owner = torch.Tensor if what == "int" else penalties
        with monkeypatch.context() as patch:
            patch.setattr(owner, what, without_memory_once(getattr(owner, what)))
            result = runner.run(hungry)
        assert [failed for failed, _ in result.failed] == [seq]
        said.append(result.sampled[0].ids[0])
    assert said == expected
    assert len(set(said)) > 1
