"""The simulated worker against the engine's own scheduler, step by step."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from benchmarks.routing.cache import BlockCache
from benchmarks.routing.cost_model import QWEN3_8B_H200, CostModel
from benchmarks.routing.policies.base import Setting
from benchmarks.routing.policies.simple import RoundRobin
from benchmarks.routing.simulation import Simulation, TurnOutcome
from benchmarks.routing.trace import RoutingTrace, TracedTurn
from benchmarks.routing.worker import ENGINE_BLOCK, SimWorker, WorkerSpec
from protocol.hashing import block_digests, root_digest
from protocol.messages import Finished, Submit, Tokens
from protocol.sampling import SamplingParams
from protocol.tokens import pack_tokens
from workers.scheduler.admission import SchedulerLimits
from workers.scheduler.block_manager import BlockManager
from workers.scheduler.meters import StepMeter
from workers.scheduler.plan import Sampled, StepPlan, StepResult
from workers.scheduler.saving import PrefixStates, SavePolicy
from workers.scheduler.scheduler import Scheduler

MODEL = "tiny"
PREFILL_S, ATTENTION_S = 1e-4, 1e-8
# So that a decode costs as much as a chunk of one token: the engine's plans do not tell them apart.
COST = CostModel(0.01, PREFILL_S - ATTENTION_S, 2 * ATTENTION_S, PREFILL_S, ATTENTION_S)
POLICY = SavePolicy(grain=64, every=128, least=64)


@dataclass(frozen=True)
class Asked:
    """One request: it shares its first `shared` tokens with the others of its family."""

    arrival_s: float
    family: int
    shared: int
    own: int
    output: int

    def prompt(self, number: int) -> array[int]:
        """The token ids of the prompt."""
        shared = [10 + self.family] * self.shared
        return array("I", [*shared, *random.Random(number).choices(range(100, 1000), k=self.own)])


asked = st.builds(
    Asked,
    st.integers(0, 400).map(lambda tick: tick * 0.00917),
    st.integers(0, 2),
    st.integers(0, 200),
    st.integers(1, 200),
    st.integers(1, 90),
)


@example(
    [
        Asked(0.10087, 2, 87, 200, 2),
        Asked(0.12838, 0, 128, 1, 1),
        Asked(0.33929, 1, 7, 113, 10),
        Asked(0.44016, 0, 128, 1, 1),
    ],
    17,
    3,
    128,
    None,
)  # a decode and a prefill end in one step: whose blocks are evicted first?
@given(
    st.lists(asked, min_size=1, max_size=10, unique_by=lambda one: one.arrival_s),
    st.integers(16, 40),
    st.integers(1, 6),
    st.sampled_from([8, 40, 128, 512]),
    st.sampled_from([None, None, 0, 2, 9]),
)
def test_times_hits_and_preemptions_are_the_engines(
    requests: list[Asked], num_blocks: int, max_seqs: int, budget: int, num_states: int | None
) -> None:
    """Every request gets its first and its last token when the engine's scheduler gives it."""
    requests.sort(key=lambda one: one.arrival_s)
    spec = WorkerSpec(COST, num_blocks * ENGINE_BLOCK, max_seqs, budget, num_states)
    begins_s = requests[0].arrival_s
    theirs, num_preempted = engine(requests, spec)
    ours, worker = simulated(requests, spec)
    assert worker.num_preemptions == num_preempted
    for mine, real in zip(ours, theirs, strict=True):
        assert mine.first_token_at == pytest.approx(real.first_token_at - begins_s)
        assert mine.finished_at == pytest.approx(real.finished_at - begins_s)
        assert mine.cached_tokens == real.cached_tokens


def simulated(requests: list[Asked], spec: WorkerSpec) -> tuple[list[TurnOutcome], SimWorker]:
    """What the simulation says."""
    turns = []
    for number, one in enumerate(requests):
        prompt = one.prompt(number)
        names = tuple(block_digests(root_digest(MODEL), pack_tokens(prompt), ENGINE_BLOCK))
        turns.append(TracedTurn(number, None, one.arrival_s, len(prompt), one.output, names))
    states = PrefixStates.of(spec.num_states, ENGINE_BLOCK, POLICY)
    cache = BlockCache(spec.kv_tokens // ENGINE_BLOCK, states)
    worker = SimWorker(0, spec, cache, ENGINE_BLOCK)
    policy = RoundRobin(Setting(1, spec, ENGINE_BLOCK, 0, [worker]))
    simulation = Simulation(RoutingTrace("t", ENGINE_BLOCK, tuple(turns)), policy, [worker])
    simulation.run()
    return simulation.outcomes, worker


def engine(requests: list[Asked], spec: WorkerSpec) -> tuple[list[TurnOutcome], int]:
    """What the scheduler does when its steps take as long as the model says."""
    limits = SchedulerLimits(spec.max_seqs, spec.token_budget, 10**6, 10**6)
    states = PrefixStates.of(spec.num_states, ENGINE_BLOCK, POLICY)
    blocks = BlockManager(spec.kv_tokens // ENGINE_BLOCK, ENGINE_BLOCK, states=states)
    scheduler = Scheduler(limits, blocks, (MODEL,), frozenset())
    scheduler.expects_growth = False
    outcomes = [TurnOutcome() for _ in requests]
    num_submitted, now, num_tokens = 0, 0.0, 0
    while True:
        while num_submitted < len(requests) and requests[num_submitted].arrival_s <= now:
            scheduler.submit(1, submit(num_submitted, requests[num_submitted]), now)
            num_submitted += 1
        plan = scheduler.plan()
        if plan is None:
            if num_submitted == len(requests):
                return outcomes, scheduler.load(1, 0.0, 0.0).preemptions
            now = requests[num_submitted].arrival_s
            continue
        now += duration_s(plan)
        sampling = [chunk.seq for chunk in plan.chunks if chunk.samples]
        ids = range(1000 + num_tokens, 1000 + num_tokens + len(sampling))
        num_tokens += len(sampling)
        sampled = tuple(Sampled(seq, (id_,)) for seq, id_ in zip(sampling, ids, strict=True))
        for outgoing in scheduler.commit(plan, StepResult(plan.step, sampled)):
            note(outcomes, outgoing.message, now)


def submit(number: int, one: Asked) -> Submit:
    """The request on the wire."""
    sampling = SamplingParams(max_tokens=one.output, ignore_eos=True)
    prompt = pack_tokens(one.prompt(number))
    return Submit(number.to_bytes(16, "big"), 0, MODEL, prompt, b"", sampling, 0)


def duration_s(plan: StepPlan) -> float:
    """How long the step takes."""
    return COST.step_s + sum(COST.chunk_s(chunk.start, chunk.length) for chunk in plan.chunks)


def note(outcomes: list[TurnOutcome], message: object, now: float) -> None:
    """Which requests got a first token, and which are finished."""
    if isinstance(message, Tokens):
        for item in message.items:
            if item.offset == 0:
                outcomes[int.from_bytes(item.request_id, "big")].first_token_at = now
    elif isinstance(message, Finished):
        outcome = outcomes[int.from_bytes(message.request_id, "big")]
        outcome.finished_at, outcome.cached_tokens = now, message.cached_tokens


@given(st.integers(1, 64), st.integers(1, 10**6), st.integers(1, 500))
def test_a_stretch_is_the_sum_of_its_steps(
    num_sequences: int, context_tokens: int, num_steps: int
) -> None:
    """The closed form equals adding step by step, and finds the step of a moment again."""
    model = QWEN3_8B_H200
    steps_s = [
        model.decode_s(num_sequences, context_tokens + step * num_sequences)
        for step in range(num_steps)
    ]
    stretch_s = model.stretch_s(num_sequences, context_tokens, num_steps)
    assert stretch_s == pytest.approx(sum(steps_s))
    inside_s = stretch_s - steps_s[-1] / 2
    assert model.steps_within(num_sequences, context_tokens, inside_s) == num_steps


@pytest.mark.parametrize(
    ("num_tokens", "measured_ms"), [(2_048, 51.6), (8_192, 216.0), (32_768, 1_254.0)]
)
def test_the_first_token_comes_as_it_was_measured(num_tokens: int, measured_ms: float) -> None:
    """The default model is within 2 % of the card that it stands for."""
    model = QWEN3_8B_H200
    first_s = model.step_s + model.chunk_s(0, num_tokens)
    assert 1e3 * first_s == pytest.approx(measured_ms, rel=0.02)


def test_step_times_are_averaged_as_the_engine_does() -> None:
    """Over a prefill and a stretch of decode steps, as by adding each of them to its meter."""
    worker = SimWorker(0, WorkerSpec(COST, 10_000, 4, 4096), BlockCache(300), ENGINE_BLOCK)
    worker.submit(TracedTurn(0, None, 0.0, 1000, 31, ()), 0.0)
    meter, began_at = StepMeter(), 0.0
    for num_steps, context in ((1, 0), (24, 1001), (6, 1025)):
        assert worker.next_at is not None
        duration_s, began_at = worker.next_at - began_at, worker.next_at
        load = worker.step(worker.next_at).load
        for step in range(num_steps):
            step_s = COST.decode_s(1, context + step) if context else duration_s
            meter.add(step_s, 1, 0 if context else 1000, began_at)
        assert load.step_ms == pytest.approx(meter.step_ms, rel=0.01)
    assert load.prefill_tokens_per_s == meter.prefill_tokens_per_s
