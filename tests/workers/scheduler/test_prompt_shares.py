"""Prompts beside decodes and beside each other: who gets how much of a step."""

import random
from collections import Counter, deque
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from protocol.messages import Finished, Tokens
from tests.fakes.scheduling import MODEL, Engine, make_submit, number_of
from workers.scheduler.block_manager import BlockManager
from workers.scheduler.plan import Sampled, StepPlan, StepResult
from workers.scheduler.prompt_budget import LEAST_SHARE, LEAST_TOKENS
from workers.scheduler.scheduler import Scheduler, SchedulerLimits

BLOCK = 128
STEPS_PER_LIFE = 40
seen: Counter[str] = Counter()


def lengths(plan: StepPlan | None) -> dict[int, int]:
    """The chunk lengths of a plan by sequence."""
    assert plan is not None
    return {chunk.seq: chunk.length for chunk in plan.chunks}


def test_a_prompt_of_more_than_half_a_step_does_not_wait_for_a_long_one() -> None:
    """A prompt of more than half a step, which has fewer tokens left than a long one, gets the
    other half of each step.
    """
    engine = Engine(token_budget=8, num_blocks=64, context_length=128)
    engine.submit(make_submit(0, list(range(40)), max_tokens=1))
    engine.step()
    engine.submit(make_submit(1, list(range(50, 57)), max_tokens=1))
    assert [lengths(engine.step()) for _ in range(2)] == [{1: 4, 2: 4}, {1: 5, 2: 3}]


def test_the_shortest_of_those_in_progress_comes_first() -> None:
    """One that waits and has less than one that has begun overtakes it, as long as half is the
    oldest's; each is the oldest in the end.
    """
    engine = Engine(token_budget=8, num_blocks=64, context_length=128)
    engine.submit(make_submit(0, list(range(40)), max_tokens=1))
    engine.step()
    engine.submit(make_submit(1, list(range(50, 64)), max_tokens=1))
    assert lengths(engine.step()) == {1: 4, 2: 4}
    engine.submit(make_submit(2, list(range(70, 73)), max_tokens=1))
    assert lengths(engine.step()) == {1: 4, 2: 1, 3: 3}
    engine.submit(make_submit(3, list(range(80, 100)), max_tokens=1))
    assert lengths(engine.step()) == {1: 4, 2: 4}
    assert lengths(engine.step()) == {1: 4, 2: 4}
    assert lengths(engine.step()) == {1: 7, 2: 1}


class Card:
    """A scheduler whose steps take what a hidden rule says; `hiccups` take ten times as long."""

    def __init__(
        self, *, token_budget: int, max_gap_s: float, lookahead: int = 0, base_s: float = 0.01
    ) -> None:
        limits = SchedulerLimits(32, token_budget, 8192, 64, max_gap_s=max_gap_s)
        blocks = BlockManager(600, BLOCK)
        self.limits = limits
        self.scheduler = Scheduler(limits, blocks, (MODEL,), frozenset(), lookahead=lookahead)
        self.in_flight: deque[StepPlan] = deque()
        self.live: dict[int, int] = {}
        self.first_token: dict[int, int] = {}
        self.base_s = base_s
        self.num_steps = 0
        self.rng = random.Random(1)

    def submit(self, number: int, num_prompt: int, max_tokens: int) -> None:
        prompt = [self.rng.randrange(1000) for _ in range(num_prompt)]
        refused = self.scheduler.submit(1, make_submit(number, prompt, max_tokens=max_tokens), 0.0)
        assert not refused
        self.live[number] = num_prompt

    def duration_s(self, plan: StepPlan) -> float:
        """20 us for each prompt token and 2 ns more for each of its context."""
        prompts = [(chunk.start, chunk.length) for chunk in plan.chunks if chunk.length > 1]
        depth = sum(length * (start + length / 2) for start, length in prompts)
        return self.base_s + 20e-6 * sum(length for _, length in prompts) + 2e-9 * depth

    def step(self, slower: float = 1.0) -> StepPlan | None:
        """Plan, and collect what must not stay in flight."""
        plan = self.plan()
        self.collect(plan, slower)
        return plan

    def plan(self) -> StepPlan | None:
        """The next step, if there is one, is in flight."""
        plan = self.scheduler.plan()
        if plan is not None:
            self.in_flight.append(plan)
        return plan

    def collect(self, plan: StepPlan | None, slower: float = 1.0) -> None:
        """After `plan` was made: those before it that must not stay in flight are done."""
        while len(self.in_flight) > (0 if plan is None else self.scheduler.lookahead):
            self._collect(self.in_flight.popleft(), slower)

    def _collect(self, plan: StepPlan, slower: float) -> None:
        self.num_steps += 1
        num_prompt = sum(chunk.length for chunk in plan.chunks if chunk.length > 1)
        noise = self.rng.uniform(0.97, 1.03)
        self.scheduler.step_cost.add(
            plan.chunks, num_prompt, slower * noise * self.duration_s(plan)
        )
        sampled = tuple(Sampled(chunk.seq, (1,)) for chunk in plan.chunks if chunk.samples)
        for _, message in self.scheduler.commit(plan, StepResult(plan.step, sampled)):
            if isinstance(message, Tokens):
                for item in message.items:
                    self.first_token.setdefault(number_of(item.request_id), self.num_steps)
            if isinstance(message, Finished):
                del self.live[number_of(message.request_id)]
        if self.num_steps % 16 == 0 or not self.live:
            self.scheduler.check_integrity()


@pytest.mark.parametrize("lookahead", [0, 1])
def test_steps_beside_decodes_last_as_long_as_they_may(lookahead: int) -> None:
    """Steps beside decodes last as long as they may, once a few were measured: not longer than the
    gap, and most of it is used where decodes take a third of it. The budget alone would have made
    steps of 170 ms.
    """
    card = Card(token_budget=8192, max_gap_s=0.05, lookahead=lookahead, base_s=0.017)
    for number in range(4):
        card.submit(number, 100, 4000)
    for _ in range(20):
        card.step()
    durations = []
    for number in range(4, 12):
        card.submit(number, 6000, 1)
        while number not in card.first_token:
            if (plan := card.step()) is not None:
                durations.append(card.duration_s(plan))
        if number == 4:
            # The first long one: what context costs was not known.
            assert max(durations) < 0.065
            durations.clear()
    assert max(durations) < 0.055
    full = [duration for duration in durations if duration > 0.018]
    assert sorted(full)[len(full) // 2] > 0.045


def test_prompts_leave_a_part_of_the_gap_beside_short_decodes() -> None:
    """Steps take half of the gap."""
    card = Card(token_budget=8192, max_gap_s=0.05, base_s=0.002)
    for number in range(100, 124):
        card.submit(number, 100, 400)
    for _ in range(20):
        card.step()
    card.submit(1, 8000, 1)
    plans = [card.step() for _ in range(16)]
    durations = [card.duration_s(plan) for plan in plans if plan is not None]
    assert 0.9 * 0.025 < sorted(durations)[len(durations) // 2] < 1.2 * 0.025


@pytest.mark.parametrize("lookahead", [0, 1])
def test_prompts_and_decodes_take_turns_where_decodes_take_much_of_the_gap(lookahead: int) -> None:
    """Short prompts that arrive all the time wait for each other: a step with some of them lasts
    longer than one would take alone, and the next has decodes alone. The answers' median gap is
    that of decodes, and no prompt waits for more than a few steps.
    """
    card = Card(token_budget=8192, max_gap_s=0.08, base_s=0.012, lookahead=lookahead)
    for number in range(100, 124):
        card.submit(number, 100, 4000)
    for _ in range(20):
        card.step()
    kinds, began = [], {}
    for step in range(60):
        card.submit(step, 900, 1)
        began[step] = card.num_steps
        plan = card.step()
        assert plan is not None
        kinds.append(any(chunk.length > 1 for chunk in plan.chunks))
    assert 25 <= sum(kinds) <= 35
    assert all(sum(pair) < 2 for pair in pairwise(kinds[20:]))
    waited = [card.first_token[number] - began[number] for number in range(50)]
    assert max(waited) <= 4


def test_nothing_rests_while_prompts_are_left() -> None:
    """What does not fit into a step beside many decodes fills the steps behind it."""
    card = Card(token_budget=8192, max_gap_s=0.08, base_s=0.012)
    for number in range(100, 124):
        card.submit(number, 100, 4000)
    for _ in range(20):
        card.step()
    for number in range(7):
        card.submit(number, 3000, 1)
    plans = []
    while len(card.first_token) < 24 + 7:
        plans.append(card.step())
    assert all(plan is not None and any(c.length > 1 for c in plan.chunks) for plan in plans)
    durations = [card.duration_s(plan) for plan in plans[2:-1] if plan is not None]
    assert min(durations) > 0.07


def test_a_burst_of_prompts_gets_the_whole_gap() -> None:
    """A burst of as many prompts as decodes gets the whole gap."""
    card = Card(token_budget=8192, max_gap_s=0.05)
    for number in range(100, 110):
        card.submit(number, 100, 400)
    for _ in range(20):
        card.step()
    for number in range(10):
        card.submit(number, 3000, 1)
    plans = [card.step() for _ in range(12)]
    durations = [card.duration_s(plan) for plan in plans if plan is not None]
    assert sorted(durations)[len(durations) // 2] > 0.045


def test_without_decodes_the_whole_budget_is_used() -> None:
    """Without decodes a step uses the whole budget, because no answer waits for it."""
    card = Card(token_budget=4096, max_gap_s=0.02)
    card.submit(0, 8000, 1)
    assert lengths(card.step()) == {1: 4096}
    assert lengths(card.step()) == {1: 3904}


def test_decodes_that_take_the_whole_gap_leave_prompts_a_part() -> None:
    """A quarter more of their own time: here 500 tokens of 20 us, once that is known."""
    card = Card(token_budget=4096, max_gap_s=0.02, base_s=0.04)
    card.submit(0, 100, 4000)
    for _ in range(5):
        card.step()
    card.submit(1, 8000, 1)
    plans = [lengths(card.step()) for _ in range(6)]
    assert all(350 < plan[2] < 600 for plan in plans[1:])


@pytest.mark.parametrize(("max_gap_s", "tile"), [(0.06, 128), (0.1, 256)])
def test_a_step_beside_decodes_has_whole_tiles_of_rows(max_gap_s: float, tile: int) -> None:
    """A step beside decodes has whole tiles of rows, where prompts that have just begun fill its
    time: products compute whole tiles.
    """
    card = Card(token_budget=8192, max_gap_s=max_gap_s)
    for number in range(5):
        card.submit(number, 40, 400)
    card.step()
    for number in range(5, 30):
        card.submit(number, 900, 300)
    rows = [sum(lengths(card.step()).values()) for _ in range(10)][4:]
    assert all(num_rows % tile == 0 for num_rows in rows), rows


class GapLife(RuleBasedStateMachine):
    """Prompts and decodes in any order, on a card that stumbles at times."""

    @initialize(
        token_budget=st.sampled_from([64, 256, 2048, 8192]),
        max_gap_s=st.sampled_from([0.005, 0.03, 0.2]),
        lookahead=st.integers(0, 1),
    )
    def begin(self, token_budget: int, max_gap_s: float, lookahead: int) -> None:
        """A card with room for all."""
        self.card = Card(token_budget=token_budget, max_gap_s=max_gap_s, lookahead=lookahead)
        self.number = 0

    @precondition(lambda self: len(self.card.live) < 12)
    @rule(num_prompt=st.integers(1, 60) | st.integers(500, 4000), max_tokens=st.integers(1, 60))
    def submit(self, num_prompt: int, max_tokens: int) -> None:
        """A short or a long one."""
        self.card.submit(self.number, num_prompt, max_tokens)
        self.number += 1

    @rule(num_steps=st.integers(1, 6), dice=st.integers(0, 9))
    def steps(self, num_steps: int, dice: int) -> None:
        """Some steps; one in ten times they take ten times as long."""
        for _ in range(num_steps):
            self._step(10.0 if dice == 0 else 1.0)

    def teardown(self) -> None:
        """Everything ends: the oldest prompt of each step gets on by at least `LEAST_TOKENS`."""
        if not hasattr(self, "card"):
            return
        pace = min(LEAST_TOKENS, self.card.limits.token_budget - 32)
        bound = sum(self.card.live.values()) // pace + 70 * len(self.card.live) + 10
        for _ in range(2 * bound):
            if not self.card.live:
                return
            self._step(1.0)
        raise AssertionError(f"{self.card.scheduler!r} starves somebody")

    def _step(self, slower: float) -> None:
        """No more than the token budget; and beside decodes no more than the model allows them."""
        cost, limits = self.card.scheduler.step_cost, self.card.limits
        running = self.card.scheduler._queues.running.values()
        prompts = [one.seq for one in running if one.num_due - one.num_planned > 1]
        # A prompt of one token is no decode: it has no token before, so no gap.
        decoding = {one.seq for one in running}.difference(prompts)
        plan = self.card.plan()
        if plan is not None:
            parts = [one for one in plan.chunks if one.length > 1 or one.seq not in decoding]
            num_decodes = len(plan.chunks) - len(parts)
            num_tokens = sum(chunk.length for chunk in parts)
            assert num_decodes + num_tokens <= limits.token_budget
            if prompts:
                oldest = next(chunk for chunk in parts if chunk.seq == prompts[0])
                half = (limits.token_budget - num_decodes) // 2
                assert oldest.samples or oldest.length >= min(LEAST_TOKENS, half)
                seen["oldest goes on"] += 1
            if num_decodes and parts:
                decode_s = cost.decode_s(num_decodes)
                allowed_s = max(limits.max_gap_s - decode_s, LEAST_SHARE * decode_s)
                spent_s = sum(cost.prompt_s(chunk.start, chunk.length) for chunk in parts)
                assert num_tokens <= LEAST_TOKENS or spent_s <= allowed_s * (1 + 1e-9)
                assert num_tokens <= cost.most_tokens
                seen["beside decodes"] += 1
                seen["bounded by seconds"] += spent_s > 0.9 * allowed_s
        self.card.collect(plan, slower)


def test_gaps_and_budgets_are_kept_in_random_lives() -> None:
    """The model's word is kept in every step, and nobody starves for it."""
    seen.clear()
    num_lives = max(25, settings().max_examples // 20)
    run_state_machine_as_test(
        GapLife, settings=settings(max_examples=num_lives, stateful_step_count=STEPS_PER_LIFE)
    )
    # Which lives are drawn depends on the loaded modules: a fraction of what one run saw.
    assert seen["oldest goes on"] > 50
    assert seen["beside decodes"] > 100
    assert seen["bounded by seconds"] > 20
