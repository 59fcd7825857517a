"""The card's steps, run on the CPU with plain torch: the same tokens, one step ahead."""

from array import array
from pathlib import Path

import pytest

from protocol.sampling import SamplingParams
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from workers.core.plan import Chunk, Sampled, SequenceStart, StepPlan
from workers.engine.device_steps import DeviceSteps
from workers.engine.runner import Runner

BLOCK = 16
PROMPTS = {1: [5, 9, 2] * 7, 2: [3], 3: [11, 12] * 20, 4: [7] * 16}
GREEDY = SamplingParams(max_tokens=50, temperature=0.0)
DRAWN = SamplingParams(max_tokens=50, temperature=1.1)
FILTERED = SamplingParams(max_tokens=50, temperature=0.9, top_k=20, top_p=0.9, min_p=0.01)
GENERAL = SamplingParams(
    max_tokens=50, temperature=0.8, repetition_penalty=1.2, presence_penalty=0.3, logprobs=2
)


@pytest.fixture(name="host")
def _host(tmp_path: Path) -> Runner:
    return load_tiny(write_tiny_model(tmp_path), kv_tokens=1024, block_size=BLOCK)


def _on_card(host: Runner) -> Runner:
    """A runner that computes as on a card: the same weights, a cache that was never written."""
    for keys, values in host.cache.layers:
        keys.fill_(float("nan"))
        values.fill_(float("nan"))
    facts = host.facts
    steps = DeviceSteps(host.model, host.cache, facts.max_seqs, facts.context_length)
    return Runner(host.model, host.cache, facts, host.model_dir, steps)


def _start(seq: int, sampling: SamplingParams, prompt: list[int] | None = None) -> SequenceStart:
    ids = array("I", prompt or PROMPTS[seq])
    return SequenceStart(seq, ids, len(ids), sampling, seed=seq + 2**40)


def _blocks(seq: int, end: int) -> tuple[int, ...]:
    """Scattered blocks: sequence n owns every fourth."""
    return tuple(seq - 1 + 4 * index for index in range(-(-end // BLOCK)))


def _plans(sampling: dict[int, SamplingParams], num_steps: int) -> list[StepPlan]:
    """All prompts at once, the third in two chunks, then one token each per step."""
    whole = [Chunk(s, 0, len(p), _blocks(s, len(p)), s != 3) for s, p in PROMPTS.items() if s != 3]
    first = Chunk(3, 0, 17, _blocks(3, 17), samples=False)
    starts = tuple(_start(seq, sampling[seq]) for seq in PROMPTS)
    plans = [StepPlan(1, starts, (*whole, first), ())]
    done = {seq: len(prompt) for seq, prompt in PROMPTS.items()}
    for step in range(num_steps):
        rest = [Chunk(3, 17, 23, _blocks(3, 40), samples=True)] if step == 0 else []
        chunks = []
        for seq in PROMPTS:
            if seq == 3 and step == 0:
                continue
            chunks.append(Chunk(seq, done[seq], 1, _blocks(seq, done[seq] + 1), samples=True))
            done[seq] += 1
        plans.append(StepPlan(step + 2, (), (*chunks, *rest), ()))
    return plans


def _outputs(runner: Runner, plans: list[StepPlan], ahead: int) -> dict[int, list[Sampled]]:
    """What each sequence sampled, with `ahead` steps launched before the first is collected."""
    outputs: dict[int, list[Sampled]] = {seq: [] for seq in PROMPTS}
    flying = []
    for plan in plans:
        flying.append(runner.launch(plan))
        if len(flying) > ahead:
            for item in runner.collect(flying.pop(0)).sampled:
                outputs[item.seq].append(item)
    for step in flying:
        for item in runner.collect(step).sampled:
            outputs[item.seq].append(item)
    return outputs


@pytest.mark.parametrize(
    "sampling",
    [
        dict.fromkeys(PROMPTS, GREEDY),
        {1: GREEDY, 2: DRAWN, 3: GREEDY, 4: DRAWN},
        {1: GREEDY, 2: FILTERED, 3: DRAWN, 4: FILTERED},
        {1: GENERAL, 2: GREEDY, 3: FILTERED, 4: GENERAL},
    ],
    ids=["greedy", "drawn", "filtered", "general"],
)
def test_tokens_are_those_of_the_host(host: Runner, sampling: dict[int, SamplingParams]) -> None:
    """Mixed steps, decodes, a prompt in two chunks: ahead of the host, nothing differs."""
    plans = _plans(sampling, 30)
    expected = _outputs(host, plans, ahead=0)
    found = _outputs(_on_card(host), plans, ahead=1)
    assert {seq: [item.ids for item in items] for seq, items in found.items()} == {
        seq: [item.ids for item in items] for seq, items in expected.items()
    }
    for seq, items in expected.items():
        for ours, theirs in zip(found[seq], items, strict=True):
            for own, other in zip(ours.logprobs, theirs.logprobs, strict=True):
                assert own.logprob == pytest.approx(other.logprob, abs=1e-4)
                assert [i for i, _ in own.top] == [i for i, _ in other.top]


def test_a_preempted_sequence_goes_on_in_other_blocks(host: Runner) -> None:
    """Its table is written anew; what it said stays."""
    runner, prompt = _on_card(host), PROMPTS[1]
    undisturbed = _outputs(host, _plans(dict.fromkeys(PROMPTS, GREEDY), 3), ahead=0)[1]
    expected = [item.ids[0] for item in undisturbed]
    runner = _on_card(host)
    start = _start(1, GREEDY)
    length = len(prompt)
    runner.run(StepPlan(1, (start,), (Chunk(1, 0, length, (8, 4), samples=True),), ()))
    runner.run(StepPlan(2, (), (Chunk(1, length, 1, (8, 4), samples=True),), ()))
    again = Chunk(1, 0, length + 2, (1, 30), samples=True)
    assert runner.run(StepPlan(3, (), (again,), ())).sampled[0].ids == (expected[2],)
    last = Chunk(1, length + 2, 1, (1, 30), samples=True)
    assert runner.run(StepPlan(4, (), (last,), ())).sampled[0].ids == (expected[3],)


def test_a_row_is_used_again_after_its_sequence(host: Runner) -> None:
    """More sequences than rows, one after another: each sees its own table only."""
    runner = _on_card(host)
    for seq in range(20):
        prompt = [seq + 2] * 5
        start = _start(seq, GREEDY, prompt)
        chunk = Chunk(seq, 0, 5, (seq % 7,), samples=True)
        ended = (seq - 1,) if seq else ()
        found = runner.run(StepPlan(seq, (start,), (chunk,), ended)).sampled[0].ids
        assert found == host.run(StepPlan(seq, (start,), (chunk,), (seq,))).sampled[0].ids or seq
    assert runner.num_sequences == 1


def test_logits_that_are_no_numbers_fail_their_sequence(host: Runner) -> None:
    """The neighbour is answered, and the next step of the broken one faults nobody."""
    runner = _on_card(host)
    starts = (_start(1, GREEDY, [5, 6]), _start(2, GREEDY, [5, 6]))
    host.model.weights.embedding[9] = float("nan")
    starts[0].token_ids[1] = 9
    chunks = (Chunk(1, 0, 2, (0,), samples=True), Chunk(2, 0, 2, (1,), samples=True))
    first = runner.launch(StepPlan(1, starts, chunks, ()))
    ahead = (Chunk(1, 2, 1, (0,), samples=True), Chunk(2, 2, 1, (1,), samples=True))
    second = runner.launch(StepPlan(2, (), ahead, ()))
    assert [seq for seq, _ in runner.collect(first).failed] == [1]
    result = runner.collect(second)
    assert [item.seq for item in result.sampled] == [2]
