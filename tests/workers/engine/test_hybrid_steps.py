"""Steps of a network with recurrent layers: what meets in a step, and its cuts, change nothing."""

from pathlib import Path

import pytest
import torch
from hypothesis import given

from tests.fakes.tiny_families import write_family
from tests.fakes.tiny_models import load_tiny
from tests.workers.engine.graphs.test_mixed_steps import LIVES
from tests.workers.engine.step_cases import (
    BLOCK,
    GREEDY,
    Life,
    as_on_card,
    plans_of_lives,
    sampled_by,
    start_of,
    without_memory_once,
)
from workers.engine.graphs.capture import run_again
from workers.engine.models import network
from workers.engine.runner import Runner
from workers.engine.step.spans import HostSlots
from workers.scheduler.plan import Chunk, StepPlan


@pytest.fixture(name="host", scope="module")
def _host(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    model_dir = write_family(tmp_path_factory.mktemp("model"), "qwen3_5")
    return load_tiny(model_dir, kv_tokens=1024, block_size=BLOCK, token_budget=1024)


@given(lives=LIVES)
def test_random_lives_say_the_same(host: Runner, lives: list[Life]) -> None:
    """On the host; and as on a card a step ahead, padded and not."""
    plans = plans_of_lives(lives, 12)
    expected = sampled_by(host, plans, ahead=0)
    host.run(StepPlan(99, (), (), tuple(range(len(lives)))))
    for capture in (None, run_again):
        assert sampled_by(as_on_card(host, capture), plans, ahead=1) == expected


@pytest.mark.parametrize("on_card", [False, True])
def test_a_slot_is_empty_for_the_next_sequence(host: Runner, on_card: bool) -> None:
    """Of those before it nothing is left; that one in flight still computes is no matter."""

    def life(seq: int) -> list[StepPlan]:
        start = start_of(seq, GREEDY, [5, 9, 2] * 7)
        chunks = [Chunk(seq, 0, 21, (0, 1), samples=True)]
        chunks += [Chunk(seq, at, 1, (0, 1), samples=True) for at in range(21, 24)]
        plans = [
            StepPlan(seq, () if at else (start,), (chunk,), ()) for at, chunk in enumerate(chunks)
        ]
        return [*plans, StepPlan(seq, (), (), (seq,))]

    runner = as_on_card(host) if on_card else host
    found = sampled_by(
        runner, [plan for seq in range(1, 20) for plan in life(seq)], ahead=int(on_card)
    )
    outputs = {seq: [step[seq].ids for step in found if seq in step] for seq in range(1, 20)}
    assert set(map(tuple, outputs.values())) == {tuple(outputs[1])}


def test_a_restart_begins_with_nothing(host: Runner) -> None:
    """A preempted sequence is computed from its first token again, in the same slot."""
    prompt = [5, 9, 2] * 10
    first = Chunk(1, 0, 30, (0, 1), samples=True)
    plans = [
        StepPlan(1, (start_of(1, GREEDY, prompt),), (first,), ()),
        StepPlan(2, (), (Chunk(1, 30, 1, (0, 1), samples=True),), ()),
        StepPlan(3, (), (Chunk(1, 0, 32, (4, 5), samples=True),), ()),
        StepPlan(4, (), (Chunk(1, 32, 1, (4, 5, 6), samples=True),), ()),
    ]
    found = sampled_by(host, plans, ahead=0)
    host.run(StepPlan(5, (), (), (1,)))
    whole = [StepPlan(1, (start_of(1, GREEDY, prompt),), (first,), ())]
    whole += [
        StepPlan(at, (), (Chunk(1, at, 1, (0, 1, 2), samples=True),), ()) for at in (30, 31, 32)
    ]
    assert found[2:] == sampled_by(host, whole, ahead=0)[2:]
    host.run(StepPlan(5, (), (), (1,)))


@pytest.mark.parametrize("on_card", [False, True])
def test_without_memory_no_state_moves_on_twice(
    host: Runner, monkeypatch: pytest.MonkeyPatch, on_card: bool
) -> None:
    """The step is not repeated: its sequences fail, and whoever has their tokens goes on."""
    runner = as_on_card(host) if on_card else host
    starts = tuple(start_of(seq, GREEDY, [5, 9]) for seq in (1, 2))
    chunks = tuple(Chunk(seq, 0, 2, (seq,), samples=True) for seq in (1, 2))
    limited = without_memory_once(network.norm_swiglu)
    monkeypatch.setattr(network, "norm_swiglu", limited)
    result = runner.run(StepPlan(1, starts, chunks, ()))
    assert [seq for seq, _ in result.failed] == [1, 2]
    assert all("recurrent states" in text for _, text in result.failed)
    again = Chunk(3, 0, 2, (3,), samples=True)
    assert runner.run(StepPlan(2, (start_of(3, GREEDY, [5, 9]),), (again,), (1, 2))).sampled
    runner.run(StepPlan(3, (), (), (3,)))


def test_slots_are_bounded(host: Runner) -> None:
    """More sequences than were planned for are a bug of the caller; unknown ones are no fault."""
    slots = HostSlots(host.model, 2)
    slots.start([1, 2])
    with pytest.raises(IndexError):
        slots.start([3])
    slots.end([1, 7])
    slots.start([3])
    step = slots.step([Chunk(2, 0, 1, (0,), samples=True), Chunk(3, 4, 9, (0,), samples=True)])
    assert step is not None
    assert sorted(step.plan.slots.tolist()) == [0, 1]
    assert step.plan.starts.tolist() == [0, 4]
    assert step.plan.num_decodes == 1
    assert step.states.num_bytes() == 3 * host.model.config.state_bytes(4)
    assert torch.isnan(step.states.matrices).all()


def test_a_network_without_states_has_no_slots(tmp_path: Path) -> None:
    """Nothing is kept, nothing is planned."""
    host = load_tiny(write_family(tmp_path, "qwen2"))
    slots = HostSlots(host.model, 1)
    slots.start([1, 2, 3])
    assert slots.step([Chunk(1, 0, 1, (0,), samples=True)]) is None
    assert host.state_bytes == 0
