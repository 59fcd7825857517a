"""How many sequences an engine takes at once: the ceiling, the estimates, and what they prevent."""

import random

from hypothesis import given
from hypothesis import strategies as st

from protocol.messages import Load
from tests.fakes.scheduling import EOS, Engine, make_submit
from workers.scheduler.concurrency import (
    CARD_SEQS,
    CPU_SEQS,
    Concurrency,
    most_sequences,
    peak_growth,
)

BLOCK_SIZE = 4
NUM_BLOCKS = 64
NUM_REQUESTS = 60
PROMPT = 12
MEAN_OUTPUT = 30


@given(kv_tokens=st.integers(1, 2**40), ceiling=st.sampled_from((CPU_SEQS, CARD_SEQS)))
def test_the_ceiling_follows_from_the_memory(kv_tokens: int, ceiling: int) -> None:
    """The ceiling follows from the memory: never a handful where there is memory, never more than
    graphs are made for; what the file says holds in any case.
    """
    found = most_sequences(None, kv_tokens, ceiling)
    assert 4 <= found <= ceiling
    assert found in (ceiling, 4) or found * 512 <= kv_tokens
    assert most_sequences(None, kv_tokens + 1000, ceiling) >= found
    assert most_sequences(7, kv_tokens, ceiling) == 7


def test_a_card_takes_as_many_as_its_graphs_hold() -> None:
    """An 8B on an H200 keeps 700k tokens, herma-tiny on a CPU 260k."""
    assert most_sequences(None, 700_000, CARD_SEQS) == 256
    assert most_sequences(None, 262_144, CPU_SEQS) == 16


@given(
    answers=st.lists(st.integers(0, 5000), max_size=40),
    num_preemptions=st.integers(0, 20),
    num_outputs=st.integers(0, 5000),
    left=st.integers(0, 5000),
)
def test_no_more_is_expected_than_may_come(
    answers: list[int], num_preemptions: int, num_outputs: int, left: int
) -> None:
    """An estimate lies between nothing and what the request's limit leaves, whatever was seen, and
    preemptions never lower it.
    """
    concurrency = Concurrency(8)
    for answer in answers:
        concurrency.ended(answer)
    before = concurrency.tokens_left(num_outputs, num_outputs + left)
    for _ in range(num_preemptions):
        concurrency.preempted()
    assert 0 <= before <= concurrency.tokens_left(num_outputs, num_outputs + left) <= left


def test_estimates_follow_what_is_seen() -> None:
    """Twenty answers of 40 tokens outweigh the prior; caution after a preemption fades."""
    concurrency = Concurrency(8)
    assert concurrency.tokens_left(0, 10_000) == 512
    for _ in range(100):
        concurrency.ended(40)
    assert concurrency.tokens_left(0, 10_000) <= 45
    assert concurrency.tokens_left(39, 10_000) >= 10, "what outlives the mean goes on"
    usual = concurrency.tokens_left(0, 10_000)
    for _ in range(50):
        concurrency.preempted()
    assert concurrency.tokens_left(0, 10_000) >= 1.9 * usual
    for _ in range(80):
        concurrency.ended(40)
    assert concurrency.tokens_left(0, 10_000) <= usual


@given(
    starts=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 900)), max_size=20),
    num_running=st.integers(0, 300),
    num_spare=st.integers(-1000, 100_000),
)
def test_places_are_bounded(
    starts: list[tuple[int, int]], num_running: int, num_spare: int
) -> None:
    """Places are bounded: at least one, at most `max_seqs`, at least what runs; more memory never
    means fewer.
    """
    concurrency = Concurrency(256)
    for num_starts, num_blocks in starts:
        concurrency.started(num_starts, num_blocks)
    places = concurrency.revise(num_running, num_spare, 32)
    assert min(256, max(1, num_running)) <= places <= 256
    assert concurrency.revise(num_running, num_spare + 1000, 32) >= places


def test_places_follow_the_lengths_that_are_seen() -> None:
    """A pool of 20,000 blocks: 256 chats of 20 blocks have a place, agents of 1,000 do not."""
    chats, agents = Concurrency(256), Concurrency(256)
    for concurrency, num_blocks in ((chats, 20), (agents, 1000)):
        assert concurrency.revise(0, 20_000, 32) == 256, "nothing is known yet"
        for _ in range(20):
            concurrency.started(1, num_blocks)
            concurrency.ended(128)
        concurrency.revise(0, 20_000, 32)
    assert chats.places == 256
    assert 15 <= agents.places <= 20


def _serve(seed: int, *, expects_growth: bool) -> tuple[Load, int]:
    """Many requests at once, for a pool that holds a sixth of them: answers end anywhere."""
    rng = random.Random(seed)
    engine = Engine(
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        max_seqs=NUM_REQUESTS,
        token_budget=64,
        context_length=256,
        max_waiting=NUM_REQUESTS,
        usual_outputs=512,
    )
    engine.scheduler.expects_growth = expects_growth
    for number in range(NUM_REQUESTS):
        prompt = [rng.randrange(6) for _ in range(PROMPT)]
        engine.submit(make_submit(number, prompt, max_tokens=200))

    def sample(_: int) -> tuple[int, ...]:
        return (EOS if rng.random() < 1 / MEAN_OUTPUT else rng.randrange(6),)

    num_steps = 0
    while engine.scheduler.has_work:
        engine.step(sample)
        num_steps += 1
        if num_steps % 5 == 0:
            engine.scheduler.revise_places()
    assert len(engine.ledger.finished) == NUM_REQUESTS
    return engine.scheduler.load(1, 0.0, 0.0), num_steps


def test_many_sequences_do_not_thrash() -> None:
    """Answers whose lengths nobody knows (the worst case: how long one is says nothing about how
    long it goes on): fewer than half as many are computed twice as where a prompt is enough to
    start, and it takes hardly more steps.
    """
    preemptions, steps = _serve_some()
    preemptions_without, steps_without = _serve_some(expects_growth=False)
    assert preemptions_without > 20
    assert preemptions < preemptions_without / 2
    assert steps <= 1.25 * steps_without


def _serve_some(*, expects_growth: bool = True) -> tuple[int, int]:
    """Preemptions and steps of three crowds."""
    crowds = [_serve(seed, expects_growth=expects_growth) for seed in range(3)]
    return sum(load.preemptions for load, _ in crowds), sum(num for _, num in crowds)


def test_what_has_no_place_waits_outside() -> None:
    """Where memory holds few, the places shrink below `max_seqs`: what comes then waits in the
    intake queue, and has a place once there is room again.
    """
    engine = Engine(num_blocks=32, block_size=4, max_seqs=16, max_waiting=16, usual_outputs=512)
    for number in range(12):
        engine.submit(make_submit(number, [number % 6] * 9, max_tokens=40))
    for _ in range(6):
        engine.step()
    engine.scheduler.revise_places()
    few = engine.scheduler.load(1, 0.0, 0.0).places
    assert few < 12
    for number in range(12, 16):
        engine.submit(make_submit(number, [number % 6] * 9, max_tokens=2))
    assert len(engine.scheduler._intake_queue) == 4
    engine.drain()
    engine.scheduler.revise_places()
    assert len(engine.ledger.finished) == 16
    assert engine.scheduler.load(1, 0.0, 0.0).places > 1


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=8),
)
def test_the_peak_is_that_of_the_lives_in_time(lives: list[tuple[int, int]]) -> None:
    """What is held at any time until the last end is at most the peak, and once it is the peak."""
    held = sum(own for own, _ in lives)
    over = [sum(own + time for own, growth in lives if growth >= time) - held for time in range(51)]
    assert peak_growth(lives) == max(0, *over)
    assert peak_growth(lives) <= sum(growth for _, growth in lives)
