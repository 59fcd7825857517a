"""One prefix that nobody has computed: the first computes it, the others wait for its blocks."""

import random
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.fakes.scheduling import EOS, Engine, make_submit
from workers.scheduler.plan import StepPlan

SHARED = list(range(100, 116))
BLOCK_SIZE = 4
STEPS_PER_LIFE = 60
SEEDS = st.integers(0, 2**32 - 1)
seen: Counter[str] = Counter()


def chunks(plan: StepPlan | None) -> list[tuple[int, int, int]]:
    """Sequence, start and length of each chunk."""
    assert plan is not None
    return [(chunk.seq, chunk.start, chunk.length) for chunk in plan.chunks]


def cold(engine: Engine, count: int, *, max_tokens: int = 1) -> None:
    """Prompts of 16 shared tokens and two tokens of their own."""
    for number in range(count):
        engine.submit(make_submit(number, [*SHARED, number, 9], max_tokens=max_tokens))


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_cold_prefix_is_computed_once(lookahead: int) -> None:
    """The others start behind it, all in the plan after the step was committed."""
    engine = Engine(num_blocks=64, token_budget=64, max_seqs=8, lookahead=lookahead)
    cold(engine, 5)
    assert chunks(engine.launch()) == [(1, 0, 18)]
    if lookahead:
        assert engine.launch() is None
    engine.collect()
    assert chunks(engine.launch()) == [(seq, 16, 2) for seq in (2, 3, 4, 5)]
    engine.drain()
    assert engine.runner.num_computed == 18 + 4 * 2
    assert {m.cached_tokens for n, m in engine.ledger.accepted.items() if n} == {16}


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_prefix_of_several_steps_is_waited_for_up_to_where_it_parts(lookahead: int) -> None:
    """A prefix of several steps is waited for up to where it parts, and not for the end of the
    prompt that computes it.
    """
    engine = Engine(num_blocks=64, token_budget=8, max_seqs=8, lookahead=lookahead)
    engine.submit(make_submit(0, [*SHARED, *range(200, 240)], max_tokens=1))
    engine.submit(make_submit(1, [*SHARED, 1], max_tokens=1))
    engine.drain()
    of_both = [chunks(plan) for plan in engine.plans]
    starts = [start for step in of_both for seq, start, _ in step if seq == 2]
    assert starts == [16]
    beside = next(step for step in of_both if any(seq == 2 for seq, *_ in step))
    assert any(seq == 1 and start + length < 56 for seq, start, length in beside)


def test_who_does_not_wait_passes() -> None:
    """A prompt behind those that wait starts at once."""
    engine = Engine(num_blocks=64, token_budget=32, max_seqs=8)
    cold(engine, 3)
    engine.submit(make_submit(9, [5, 5, 5], max_tokens=1))
    assert chunks(engine.step()) == [(1, 0, 18), (4, 0, 3)]
    assert chunks(engine.step()) == [(2, 16, 2), (3, 16, 2)]


def test_a_short_common_start_is_not_waited_for() -> None:
    """One block of five: to compute it again is sooner."""
    engine = Engine(num_blocks=64, token_budget=64, max_seqs=8)
    for number in range(2):
        engine.submit(make_submit(number, [*SHARED[:4], *[number] * 16], max_tokens=1))
    assert chunks(engine.step()) == [(1, 0, 20), (2, 0, 20)]


def test_private_caches_do_not_wait_for_each_other() -> None:
    """What has another salt is another prefix."""
    engine = Engine(num_blocks=64, token_budget=64, max_seqs=8)
    engine.submit(make_submit(0, [*SHARED, 1], max_tokens=1))
    engine.submit(make_submit(1, [*SHARED, 1], max_tokens=1, salt=b"own"))
    assert chunks(engine.step()) == [(1, 0, 17), (2, 0, 17)]


def test_a_prompt_that_is_waited_for_comes_before_its_turn() -> None:
    """A prompt that others wait for is computed before its turn. It has more tokens left than the
    oldest prompt, but the others need only its start.
    """
    engine = Engine(num_blocks=64, token_budget=16, max_seqs=8, context_length=128)
    engine.submit(make_submit(0, list(range(30)), max_tokens=1))
    engine.step()
    engine.submit(make_submit(1, list(range(300, 313)), max_tokens=1))
    engine.submit(make_submit(2, [*range(300, 312), 9], max_tokens=1))
    assert chunks(engine.step()) == [(2, 0, 8), (1, 16, 8)]
    # 6 and 5 tokens are left; 4 of the 5 are waited for.
    assert chunks(engine.step()) == [(2, 8, 5), (1, 24, 6)]
    assert chunks(engine.step()) == [(3, 12, 1)]


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("end", ["abort", "failure", "deadline", "link"])
def test_when_the_computer_is_gone_the_next_computes(end: str, lookahead: int) -> None:
    """When the sequence that computes is gone in the middle of the prefix, with a step in flight,
    the second computes and the third waits.
    """
    engine = Engine(num_blocks=64, token_budget=8, max_seqs=8, lookahead=lookahead)
    first = make_submit(0, [*SHARED, 0, 9], max_tokens=1, deadline_s=5.0)
    engine.submit(first, link=2)
    for number in (1, 2):
        engine.submit(make_submit(number, [*SHARED, number, 9], max_tokens=1))
    engine.step()
    engine.launch()
    if end == "abort":
        engine.ledger.hear(engine.scheduler.abort(2, first.request_id, 0))
    elif end == "deadline":
        engine.ledger.hear(engine.scheduler.expire(6.0))
    elif end == "link":
        engine.scheduler.drop_link(2)
        engine.ledger.closed.add(0)
    while engine.in_flight:
        engine.collect(failing=lambda seq: end == "failure" and seq == 1)
    engine.drain()
    assert {1, 2} <= set(engine.ledger.finished)
    assert {engine.ledger.finished[n].reason for n in (1, 2)} == {"length"}
    third = [chunk for plan in engine.plans for chunk in chunks(plan) if chunk[0] == 3]
    assert third == [(3, 16, 2)]


def test_a_failed_step_stores_nothing() -> None:
    """What was announced and not computed was never told to a gateway, and is not found."""
    engine = Engine(num_blocks=64, token_budget=64, max_seqs=8)
    cold(engine, 2)
    engine.step(failing=lambda seq: seq == 1)
    assert engine.ledger.cached == set()
    assert len(engine.scheduler.blocks.planned) == 0
    assert chunks(engine.step()) == [(2, 0, 18)]
    assert len(engine.ledger.cached) == 4


def test_when_the_computer_is_preempted_it_computes_again() -> None:
    """When the sequence that computes a prefix is preempted, it starts first again, because it is
    older than the one that waits for it; both end.
    """
    engine = Engine(num_blocks=7, block_size=2, token_budget=4, context_length=14, max_seqs=4)
    engine.submit(make_submit(0, [1, 2], max_tokens=10))
    engine.step()
    for number in (1, 2):
        engine.submit(make_submit(number, [3, 4, 5, 6, 7, number], max_tokens=2))
    engine.drain()
    assert engine.scheduler.load(1, 0.0, 0.0).preemptions > 0
    assert sorted(engine.ledger.finished) == [0, 1, 2]
    assert [m.reason for m in engine.ledger.finished.values()] == ["length"] * 3


class WaitingLife(RuleBasedStateMachine):
    """Prompts of few families that are cold, long and cut into steps, in a small pool; whoever
    computes them is aborted, fails, is preempted or finishes.
    """

    @initialize(
        num_blocks=st.integers(10, 40),
        max_seqs=st.integers(4, 8),
        token_budget=st.integers(4, 14),
        lookahead=st.integers(0, 1),
    )
    def begin(self, num_blocks: int, max_seqs: int, token_budget: int, lookahead: int) -> None:
        """A pool of 40 to 160 tokens for sequences of up to 40."""
        self.engine = Engine(
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            max_seqs=max_seqs,
            token_budget=token_budget,
            context_length=40,
            max_waiting=20,
            lookahead=lookahead,
        )
        self.live: set[int] = set()
        self.number = 0
        self.salt = 0

    @rule(seed=SEEDS)
    def submit(self, seed: int) -> None:
        """Some at once, each with a part of a family's prefix and tokens of its own."""
        rng = random.Random(seed)
        family = rng.randrange(2)
        for _ in range(rng.randrange(1, 5)):
            prefix = [family, self.salt, *range(10, 10 + int(rng.triangular(0, 26, 24)))]
            prompt = [*prefix, *[50 + self.number % 40] * rng.randrange(1, 6)]
            submit = make_submit(self.number, prompt, max_tokens=rng.choice((1, 4, 16)))
            self.engine.submit(submit)
            if self.number not in self.engine.ledger.rejected:
                self.live.add(self.number)
            self.number += 1

    @rule()
    def cool(self) -> None:
        """Prompts to come have a prefix that nobody has computed."""
        self.salt += 1

    @rule(seed=SEEDS)
    def abort(self, seed: int) -> None:
        """At times one of the oldest, who are those that compute."""
        rng = random.Random(seed)
        if rng.random() < (0.1 if self.num_waiting else 0.7) or not self.live:
            return
        number = sorted(self.live)[min(rng.randrange(3), len(self.live) - 1)]
        seen["aborted for waiters"] += self.num_waiting > 0
        request_id = make_submit(number, [1]).request_id
        self.engine.ledger.hear(self.engine.scheduler.abort(1, request_id, 0))

    @rule(seed=SEEDS)
    def steps(self, seed: int) -> None:
        """At times one of a step fails."""
        rng = random.Random(seed)
        for _ in range(rng.randrange(1, 4)):
            seen["waits"] += self.num_waiting
            token = rng.choice((1, 1, 1, EOS))
            self.engine.step(lambda _, token=token: (token,), lambda _: rng.random() < 0.02)

    @rule()
    def launch(self) -> None:
        """One more in flight, if there may be."""
        if len(self.engine.in_flight) <= self.engine.scheduler.lookahead:
            self.engine.launch()

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for a block that is under way."""
        planned = self.engine.scheduler.blocks.planned
        waiting = self.engine.scheduler._queues.waiting.values()
        return sum(one.awaits is not None and one.awaits in planned for one in waiting)

    @invariant()
    def somebody_goes_on(self) -> None:
        """While any lives and nothing is in flight, the next plan computes something."""
        if not hasattr(self, "engine"):
            return
        self.live -= set(self.engine.ledger.finished)
        running = self.engine.scheduler._queues.running
        assert self.num_waiting == 0 or running
        if self.live and not self.engine.in_flight:
            assert self.engine.launch() is not None

    def teardown(self) -> None:
        """All end, in as many steps as they have tokens; nothing stays announced."""
        if not hasattr(self, "engine"):
            return
        self.engine.drain(limit=2 * (60 * len(self.live) + 10))
        assert self.live <= set(self.engine.ledger.finished)
        assert len(self.engine.scheduler.blocks.planned) == 0
        load = self.engine.scheduler.load(1, 0.0, 0.0)
        assert load.free_blocks == load.num_blocks
        seen["preemptions"] += load.preemptions
        seen["ended"] += len(self.engine.ledger.finished)


def test_waiting_for_a_block_never_blocks() -> None:
    """Waiting for a block never blocks for ever, whatever happens to the sequence that
    computes it.
    """
    seen.clear()
    num_lives = max(80, settings().max_examples // 20)
    run_state_machine_as_test(
        WaitingLife, settings=settings(max_examples=num_lives, stateful_step_count=STEPS_PER_LIFE)
    )
    # Which lives are drawn depends on the loaded modules: a fraction of what one run saw.
    assert seen["waits"] > 10
    assert seen["aborted for waiters"] > 0
    assert seen["preemptions"] > 3
    assert seen["ended"] > 300
