"""When a sequence has been silent for too long, and when not. Time is simulated."""

from collections.abc import Callable
from typing import Final

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gateway.link.attempts import OVERDUE, STALLED, Attempt, Attempts
from gateway.link.relays import RelayAttempt
from gateway.link.silence import MOST_RENEWALS, SECOND_PLACE, Silence
from gateway.routing.lease import Lease
from gateway.telemetry import GatewayCounters
from protocol.ids import RequestId, WorkerId
from protocol.messages import Accepted, RelayData, RelayHead, RelayTaken, SequenceAlive, TokenItem
from protocol.tokens import pack_tokens

FIRST_S: Final = 600.0
STALL_S: Final = 120.0
LOOK_S: Final = 0.2
W: Final = WorkerId(b"worker-w".ljust(16))


def named(number: int) -> RequestId:
    return RequestId(bytes([number]) * 16)


class Engine:
    """Attempts on one worker, and what its engine says of them."""

    def __init__(self, *, has_steps: bool = False) -> None:
        self.attempts = Attempts(GatewayCounters())
        self.now = 0.0
        self.has_steps = has_steps
        self.all: list[Attempt] = []

    def begin(self, first_s: float = FIRST_S, stall_s: float = STALL_S) -> Attempt:
        number = len(self.all)
        attempt = Attempt(
            Lease(number, W, 0, "test"),
            named(number),
            1,
            expected=0,
            on_tokens=lambda _: False,
            on_accepted=lambda _: None,
            silence=Silence(first_s, stall_s, self.now),
        )
        self.attempts.add(attempt)
        self.all.append(attempt)
        return attempt

    def token(self, attempt: Attempt) -> None:
        item = TokenItem(attempt.request_id, 1, attempt.expected, pack_tokens([7]))
        assert self.attempts.tokens(W, (item,)) is None

    def alive(self, attempt: Attempt) -> None:
        self.attempts.read(W, SequenceAlive(attempt.request_id, 1))

    def run(self, seconds: float, step: Callable[[], None] = lambda: None) -> None:
        """Let time pass; `step` is called each second."""
        until, said_at = self.now + seconds, self.now
        while self.now < until:
            if self.now >= said_at:
                said_at += 1.0
                step()
            self.now += LOOK_S
            self.attempts.end_overdue(self.now, lambda _: self.has_steps)


def test_one_of_eight_that_is_preempted_for_90_s_is_not_lost() -> None:
    engine = Engine()
    eight = [engine.begin() for _ in range(8)]
    engine.run(10, lambda: [engine.token(one) for one in eight] and None)
    engine.run(90, lambda: [engine.token(one) for one in eight[1:]] and None)
    engine.run(10, lambda: [engine.token(one) for one in eight] and None)
    assert [one.outcome for one in eight] == [None] * 8


def test_a_preemption_that_the_engine_reports_may_last_for_any_time() -> None:
    engine = Engine()
    one, two = engine.begin(), engine.begin()
    engine.token(one)

    def work() -> None:
        engine.token(two)
        engine.alive(one)

    engine.run(3600, work)
    assert one.outcome is None


def test_a_prompt_of_five_minutes_is_not_lost() -> None:
    engine = Engine()
    one = engine.begin()
    engine.run(300)
    engine.token(one)
    engine.run(1)
    assert one.outcome is None


def test_a_stream_that_stands_still_beside_others_is_noticed() -> None:
    """Progress of others does not count after the first token."""
    engine = Engine(has_steps=True)
    one, two = engine.begin(), engine.begin()
    engine.token(one)
    engine.run(STALL_S - 2, lambda: engine.token(two))
    assert one.outcome is None
    engine.run(3, lambda: engine.token(two))
    assert one.outcome is STALLED
    assert two.outcome is None


@pytest.mark.parametrize("how", ["tokens", "steps", "answers"])
def test_progress_of_others_counts_before_the_first_token(how: str) -> None:
    """Progress of other sequences counts before the first token, for a bounded time, so that no
    sequence is forgotten beside busy ones.
    """
    engine = Engine(has_steps=how == "steps")
    one, two = engine.begin(), engine.begin()

    def work() -> None:
        if how == "tokens":
            engine.token(two)
        elif how == "answers":
            engine.attempts.note_answer(W)

    engine.run(5 * FIRST_S, work)
    assert one.outcome is None
    engine.run((MOST_RENEWALS - 5) * FIRST_S + 2, work)
    assert one.outcome is OVERDUE


def test_silence_before_the_first_token() -> None:
    engine = Engine()
    one = engine.begin()
    engine.run(FIRST_S - 1)
    assert one.outcome is None
    engine.attempts.accepted(W, Accepted(one.request_id, 1, 0))
    engine.run(FIRST_S - 1)
    assert one.outcome is None
    engine.run(2)
    assert one.outcome is OVERDUE


def test_an_attempt_without_bounds_is_left_alone() -> None:
    engine = Engine()
    engine.begin().silence = None
    engine.run(10 * FIRST_S)
    assert engine.all[0].outcome is None


def test_bytes_of_an_exchange_are_no_answer() -> None:
    """Comments of a text-level engine do not renew the bound; reports of the prompt do."""
    engine = Engine(has_steps=True)
    exchange = RelayAttempt(Lease(0, W, 0, ""), named(0), 1, Silence(FIRST_S, STALL_S, 0.0))
    engine.attempts.add(exchange)
    exchange.take(RelayTaken(named(0), 1, 0))
    exchange.take(RelayHead(named(0), 1, 200, ()))

    def say(data: bytes) -> None:
        exchange.num_granted = exchange.num_came
        assert exchange.take(RelayData(named(0), 1, exchange.num_came, data)) is None

    engine.run(2 * FIRST_S, lambda: say(b'data: {"prompt_progress": {"processed": 1}}\n\n'))
    assert exchange.outcome is None
    engine.run(FIRST_S + 2, lambda: say(b": ping\n\n"))
    assert exchange.outcome is OVERDUE


def test_an_exchange_that_has_begun_is_watched_by_its_owner() -> None:
    """An exchange that has begun is watched by its own turn, and its bytes count as progress for
    sequences that wait.
    """
    engine = Engine()
    exchange = RelayAttempt(Lease(0, W, 0, ""), named(9), 1, Silence(FIRST_S, float("inf"), 0.0))
    engine.attempts.add(exchange)
    exchange.take(RelayHead(named(9), 1, 200, ()))
    exchange.begin()
    one = engine.begin()

    def say() -> None:
        exchange.num_granted = exchange.num_came
        exchange.take(RelayData(named(9), 1, exchange.num_came, b"data: 1\n\n"))

    engine.run(3 * FIRST_S, say)
    engine.run(FIRST_S - 2)
    assert (one.outcome, exchange.outcome) == (None, None)
    engine.run(4)
    assert (one.outcome, exchange.outcome) == (OVERDUE, None)


@given(
    st.lists(
        st.tuples(st.sampled_from(["part", "sign", "others", "nothing"]), st.integers(1, 50)),
        max_size=60,
    )
)
def test_the_bounds_hold_whatever_comes(steps: list[tuple[str, int]]) -> None:
    """The bounds of silence hold whatever comes: never early; never later than one look after the
    bound, or after its last renewal.
    """
    first_s, stall_s, now = 20.0, 10.0, 0.0
    silence, num_parts, num_signs, last = Silence(first_s, stall_s, 0.0), 0, 0, 0.0
    for what, seconds in steps:
        num_parts += what == "part"
        num_signs += what == "sign"
        for _ in range(seconds):
            now += 1.0
            bound = stall_s if num_parts else first_s
            waits = what == "others" and not num_parts and now <= MOST_RENEWALS * first_s
            is_overdue = silence.look(now, num_parts, num_signs, others_move=what == "others")
            if what in ("part", "sign") and _ == 0:
                last = now
            if waits:
                last = min(now, (MOST_RENEWALS - 1) * first_s)
            if is_overdue:
                assert now - last >= bound
                return
            assert now - last <= bound or waits
    assert SECOND_PLACE > 1
