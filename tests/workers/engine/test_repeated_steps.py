"""A step that memory runs out in is repeated with fewer chunks: the others never notice."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.workers.engine.step_cases import (
    GENERAL,
    GREEDY,
    as_on_card,
    sampled_by,
    start_of,
    without_memory_once,
)
from workers.engine.graphs import device_steps
from workers.engine.graphs.capture import Capture
from workers.engine.runner import ModelRunner
from workers.engine.step import table_updates
from workers.engine.step.steps import TokensLost
from workers.scheduler.plan import Chunk, StepPlan

LENGTH = 40
"""The length of the prompt for which there is no memory."""


def _decode(seq: int, position: int, blocks: tuple[int, ...]) -> Chunk:
    return Chunk(seq, position, 1, blocks, samples=True)


def _with_room_for(num_rows: int, forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A forward pass that has memory for so many rows."""

    def limited(hidden: Tensor, *rest: Any, **named: Any) -> Tensor:
        if hidden.shape[0] > num_rows:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(hidden, *rest, **named)

    return limited


def test_the_next_step_of_a_failed_sequence_fails_nobody_else(
    host: ModelRunner, capture: Capture | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next step of a failed sequence, planned before the failure was known and beginning with a
    token that was never sampled, fails no other sequence.
    """
    prompt = StepPlan(1, (start_of(1, GREEDY, [5, 9]),), (Chunk(1, 0, 2, (0,), samples=True),), ())
    alone = [StepPlan(step, (), (_decode(1, step, (0,)),), ()) for step in (2, 3, 4)]
    expected = sampled_by(host, [prompt, *alone], ahead=0)
    runner = as_on_card(host, capture)
    forward = _with_room_for(LENGTH, runner.model.forward)
    monkeypatch.setattr(runner.model, "forward", forward)
    large = start_of(2, GREEDY, [7] * LENGTH)
    chunks = (_decode(1, 2, (0,)), Chunk(2, 0, LENGTH, (1, 2, 3), samples=True))
    strays = (_decode(1, 3, (0,)), _decode(2, LENGTH, (1, 2, 3)))
    plans = [
        prompt,
        StepPlan(2, (large,), chunks, ()),
        StepPlan(3, (), strays, ()),
        StepPlan(4, (), (_decode(1, 4, (0,)),), (2,)),
    ]
    first, second, third = [runner.launch(plan) for plan in plans[:3]]
    results = [runner.collect(step) for step in (first, second, third)]
    results.append(runner.run(plans[3]))
    assert [{item.seq: item for item in result.sampled} for result in results] == expected
    assert [[seq for seq, _ in result.failed] for result in results] == [[], [2], [2], []]


def test_block_tables_that_could_not_be_sent_are_sent_again(
    host: ModelRunner, capture: Capture | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Block tables that could not be sent are sent again; else a preempted sequence would go on in
    a block that now belongs to another.
    """
    starts = [start_of(seq, GREEDY, [seq, 9, 4]) for seq in (1, 2)]
    prompts = [Chunk(seq, 0, 3, (0,), samples=True) for seq in (1, 2)]
    plans = [StepPlan(seq, (starts[seq - 1],), (prompts[seq - 1],), ()) for seq in (1, 2)]
    back = Chunk(1, 0, 4, (5,), samples=True)
    plans.append(StepPlan(3, (), (back, _decode(2, 3, (0,))), ()))
    for position in range(4, 9):
        chunks = (_decode(1, position, (5,)), _decode(2, position, (0,)))
        plans.append(StepPlan(position, (), chunks, ()))
    expected = sampled_by(host, plans, ahead=0)
    runner = as_on_card(host, capture)
    found = sampled_by(runner, plans[:2], ahead=0)
    large, chunk = start_of(3, GREEDY, [7] * LENGTH), Chunk(3, 0, LENGTH, (1, 2, 3), samples=True)
    with monkeypatch.context() as patch:
        patch.setattr(table_updates, "to_device", without_memory_once(table_updates.to_device))
        result = runner.run(StepPlan(3, (large,), (*plans[2].chunks, chunk), ()))
    assert [seq for seq, _ in result.failed] == [3]
    found.append({item.seq: item for item in result.sampled})
    assert found + sampled_by(runner, plans[3:], ahead=0) == expected


@pytest.mark.parametrize("place", ["forward", "logits"])
def test_memory_that_torch_keeps_costs_nobody_an_answer(
    host: ModelRunner, capture: Capture | None, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Memory that torch keeps costs no answer. An allocation by the driver, as for a kernel, fails
    while torch keeps some for later: then the whole step is repeated, once. torch's own allocations
    have used it already.
    """
    start, prompt = start_of(1, GREEDY, [5, 9]), Chunk(1, 0, 2, (0,), samples=True)
    plans = [StepPlan(1, (start,), (prompt,), ())]
    plans += [StepPlan(step, (), (_decode(1, step, (0,)),), ()) for step in (2, 3)]
    expected = sampled_by(host, plans, ahead=0)
    runner = as_on_card(host, capture)
    found = sampled_by(runner, plans[:1], ahead=0)
    limited = without_memory_once(getattr(runner.model, place), RuntimeError)
    monkeypatch.setattr(runner.model, place, limited)
    found += sampled_by(runner, plans[1:2], ahead=0)
    monkeypatch.setattr(runner.model, place, without_memory_once(limited))
    assert runner.run(plans[2]).failed
    assert found == expected[:2]


def test_a_step_whose_tokens_cannot_be_read_is_not_repeated(
    host: ModelRunner, capture: Capture | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step whose tokens cannot be read is not repeated, because they are counted and kept
    already: it fails.
    """
    runner = as_on_card(host, capture)
    start = start_of(1, GENERAL, [5, 9])
    sampled_by(runner, [StepPlan(1, (start,), (Chunk(1, 0, 2, (0,), samples=True),), ())], ahead=0)
    large, chunk = start_of(2, GREEDY, [7] * LENGTH), Chunk(2, 0, LENGTH, (1, 2, 3), samples=True)
    monkeypatch.setattr(device_steps, "fetch", without_memory_once(device_steps.fetch))
    with pytest.raises(TokensLost, match="CUDA error: out of memory"):
        runner.run(StepPlan(2, (large,), (_decode(1, 2, (0,)), chunk), ()))
