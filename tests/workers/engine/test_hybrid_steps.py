"""Steps of a network with recurrent layers: what meets in a step changes nothing."""

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given
from msgspec.structs import replace

from benchmarks.drive import Drive, fresh_runner
from config import CacheConfig
from protocol.sampling import SamplingParams
from tests.fakes.host_tiers import tier_for
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
from workers.engine.graphs.capture import Capture, CudaCapture, run_again
from workers.engine.graphs.device_steps import DeviceSteps
from workers.engine.models import network
from workers.engine.runner import ModelRunner
from workers.engine.step.host_slots import HostSlots
from workers.scheduler.plan import Chunk, StepPlan
from workers.scheduler.saving import SavePolicy

FINE = SavePolicy(grain=BLOCK, every=2 * BLOCK, least=BLOCK, along=BLOCK)
ON_CARD = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    ],
)
GREEDY_40 = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)


@pytest.fixture(name="host", scope="module")
def _host(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    model_dir = write_family(tmp_path_factory.mktemp("model"), "qwen3_5")
    return _load(model_dir)


def _load(model_dir: Path, device: str = "cpu") -> ModelRunner:
    sizes = {"kv_tokens": 1024, "block_size": BLOCK, "token_budget": 1024}
    return load_tiny(model_dir, device=device, dtype="float32", **sizes)


@given(lives=LIVES)
def test_random_lives_say_the_same(host: ModelRunner, lives: list[Life]) -> None:
    """Random lives get the same tokens on the host, and as on a card a step ahead, padded."""
    plans = plans_of_lives(lives, 9)
    expected = sampled_by(host, plans, ahead=0)
    host.run(StepPlan(99, (), (), tuple(range(len(lives)))))
    assert sampled_by(as_on_card(host, run_again), plans, ahead=1) == expected


@pytest.mark.parametrize("on_card", [False, True])
def test_a_slot_is_empty_for_the_next_sequence(host: ModelRunner, on_card: bool) -> None:
    """A slot is empty for the next sequence: nothing of earlier ones is left, even while a step in
    flight still computes for one.
    """

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


def test_a_restart_begins_with_nothing(host: ModelRunner) -> None:
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
    host: ModelRunner, monkeypatch: pytest.MonkeyPatch, on_card: bool
) -> None:
    """The step is not repeated: its sequences fail, and go on elsewhere with their tokens."""
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


@pytest.mark.parametrize("on", ["cpu", "like a card", ON_CARD])
def test_behind_a_saved_state_all_is_as_in_a_cold_run(host: ModelRunner, on: str) -> None:
    """Steps save several on their way through a prompt, while others take rows around it, and one
    ahead of a decode; the next sequence begins at each, in blocks of its own.
    """
    # A card, and some processors, add up the products of 9 rows and of 100 in another order: 1.9e-4
    # on an AMD EPYC. A state of another position differs by 0.1 and more.
    within = 4e-4
    prompt = [2 + 7 * at % 149 for at in range(100)]
    starts = [start_of(seq, GREEDY, prompt) for seq in range(1, 12)]
    whole = Chunk(1, 0, 100, tuple(range(7)), samples=False)
    other = replace(whole, seq=3, start=0, length=9, block_ids=tuple(range(20, 27)))
    if on == "cuda":
        runner = fresh_runner(_load(host.model_dir, device="cuda"))
    else:
        runner = fresh_runner(host) if on == "cpu" else as_on_card(host)
    ((_, cold),) = runner.hidden(StepPlan(1, (starts[0],), (whole,), ()))
    places = [(16 * (slot + 1), slot) for slot in range(6)]
    first = replace(whole, seq=2, length=40, saves=tuple(places[:2]))
    rest = replace(whole, seq=2, start=40, length=56, saves=tuple(places[2:-1]))
    decode = replace(whole, seq=2, start=96, length=1, saves=(places[-1],))
    last = replace(whole, seq=2, start=97, length=3)
    steps = [first, other], [replace(other, start=9, length=1), rest], [decode], [last]
    for step, chunks in enumerate(steps):
        begun = tuple(starts[1:3]) if step == 0 else ()
        found = dict(runner.hidden(StepPlan(2, begun, tuple(chunks), () if step else (1,))))
        for chunk, rows in found.items():
            part = slice(chunk.start, chunk.start + chunk.length)
            torch.testing.assert_close(rows, cold[part], atol=within, rtol=within)
    for end, slot in places:
        seq = 4 + slot
        chunk = replace(whole, seq=seq, start=end, length=100 - end, restores=slot)
        ended = (seq - 1,) if slot else (2, 3)
        ((_, behind),) = runner.hidden(StepPlan(3, (starts[seq - 1],), (chunk,), ended))
        torch.testing.assert_close(behind, cold[end:], atol=within, rtol=within)


@pytest.mark.parametrize("few_blocks", [False, True])
@pytest.mark.parametrize("on", ["like a card", ON_CARD])
def test_a_fleet_says_what_cold_runs_say(
    request: pytest.FixtureRequest, host: ModelRunner, few_blocks: bool, on: str
) -> None:
    """Prompts that share much and part anywhere, answers that go on, turns behind them, blocks that
    run out: a step ahead, in padded steps or graphs, with few states and with many.
    """
    capture: Capture = CudaCapture() if on == "cuda" else run_again
    if on == "cuda":
        host = _load(host.model_dir, device="cuda")
    rng = random.Random(5)
    prompts = [[rng.randrange(2, 150) for _ in range(50)]]
    for _ in range(7):
        parent = rng.choice(prompts)
        own = [rng.randrange(2, 150) for _ in range(rng.randrange(1, 20))]
        prompts.append([*parent[: rng.randrange(10, 51)], *own])
    answers = []
    kinds = (0, None, 0), (3, FINE, 0), (40, FINE, 0), (7, FINE, 60)
    for num_states, policy, num_pages in kinds:
        facts = replace(host.facts, snapshots=num_states)
        cache = as_on_card(host).cache
        steps = DeviceSteps(host.model, cache, facts, capture)
        while steps.prepare(pending_only=False):
            pass
        runner = ModelRunner(host.model, cache, facts, host.model_dir, steps)
        if num_pages:
            request.addfinalizer(tier_for(runner, num_pages).close)
        drive = Drive(
            runner,
            token_budget=48,
            max_seqs=4,
            num_blocks=14 if few_blocks else None,
            looks_ahead=True,
            save_policy=policy,
        )
        for prompt in prompts:
            drive.submit(prompt, GREEDY_40)
        drive.finish()
        turns = [drive.answers[number] for number in range(0, len(prompts), 4)]
        nexts = [drive.submit([*one.prompt, *one.outputs, 3, 2], GREEDY_40) for one in turns]
        drive.finish()
        if num_states > 7 and not few_blocks:
            for turn, number in zip(turns, nexts, strict=True):
                end = len(turn.prompt) + len(turn.outputs) - 1
                assert end - drive.answers[number].cached_tokens <= BLOCK
        answers.append([answer.outputs for answer in drive.answers.values()])
        assert (drive.num_preemptions > 0) == few_blocks
        cached = sum(answer.cached_tokens for answer in drive.answers.values())
        assert (cached > 0) == (num_states > 0)
    assert answers[1:] == answers[:1] * 3


def test_slots_are_bounded(host: ModelRunner) -> None:
    """More sequences than were planned for are a bug of the caller; unknown ones are no fault."""
    slots = HostSlots(host.model, replace(host.facts, max_seqs=2, snapshots=9))
    slots.start([1, 2])
    with pytest.raises(IndexError):
        slots.start([3])
    slots.end([1, 7])
    slots.start([3])
    step = slots.restore([Chunk(2, 0, 1, (0,), samples=True), Chunk(3, 4, 9, (0,), samples=True)])
    assert step is not None
    assert sorted(step.plan.slots.tolist()) == [0, 1]
    assert step.plan.starts.tolist() == [0, 4]
    assert step.plan.num_decodes == 1
    assert slots.kept.has_any
    assert slots.kept.num_bytes() == (2 + 1 + 9) * host.model.config.state_bytes(4)
    assert torch.isnan(step.states.matrices).all()


def test_a_start_keeps_prefixes_in_the_hosts_memory(host: ModelRunner) -> None:
    """The older key asks for as much as the newer one."""
    sizes = {"kv_tokens": 1024, "block_size": BLOCK, "snapshots": 3}
    for asked in ({"host_bytes": 4 * 2**20}, {"cache": CacheConfig("4MiB")}):
        runner = load_tiny(host.model_dir, **sizes, **asked)
        assert runner.facts.snapshots == 3
        assert runner.tier is not None
        assert 3 * 2**20 < runner.tier.layout.num_bytes <= 4 * 2**20
        assert runner.tier.room.state_pages > 0
    assert load_tiny(host.model_dir, **sizes).tier is None


def test_a_network_without_states_has_no_slots(tmp_path: Path) -> None:
    """A network without states has no slots: nothing is kept, nothing is planned."""
    host = load_tiny(write_family(tmp_path, "qwen2"))
    slots = HostSlots(host.model, host.facts)
    slots.start([1, 2, 3])
    assert slots.restore([Chunk(1, 0, 1, (0,), samples=True)]) is None
    assert host.state_bytes == 0
