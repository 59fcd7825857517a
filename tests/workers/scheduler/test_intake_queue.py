"""Gateways that share a full engine: which sequence is admitted, and that every gateway gets
places.
"""

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

from protocol.messages import Rejected
from tests.fakes.scheduling import Engine, make_submit, number_of

LINKS = (1, 2, 3, 4)
SEEDS = st.integers(0, 2**32 - 1)
NUM_STEPS = 60
NUM_TURNS = 600
seen: Counter[str] = Counter()


class Shared:
    """An engine and, by number of the request, whose it was, until it is over."""

    def __init__(self, *, max_seqs: int, max_waiting: int) -> None:
        self.engine = Engine(max_seqs=max_seqs, max_waiting=max_waiting, num_blocks=64)
        self.owner: dict[int, int] = {}
        self.num_sent = 0

    def submit(self, link: int, max_tokens: int = 3, deadline_s: float | None = None) -> bool:
        """Whether one more of that gateway was taken."""
        number, self.num_sent = self.num_sent, self.num_sent + 1
        self.owner[number] = link
        submit = make_submit(number, [1], max_tokens=max_tokens, deadline_s=deadline_s)
        self.engine.submit(submit, link=link)
        self.forget_the_ended()
        return number not in self.engine.ledger.rejected

    def abort(self, number: int) -> None:
        """Abort a sequence, as its gateway asks."""
        link = self.owner[number]
        self.engine.ledger.hear(self.engine.scheduler.abort(link, number.to_bytes(16, "little"), 0))
        self.forget_the_ended()

    def drop(self, link: int) -> None:
        """The gateway is gone."""
        self.engine.scheduler.drop_link(link)
        gone = [number for number, owner in self.owner.items() if owner == link]
        self.engine.ledger.closed.update(gone)
        for number in gone:
            del self.owner[number]

    def step(self) -> None:
        """One token for each that runs."""
        self.engine.step()
        self.forget_the_ended()

    def forget_the_ended(self) -> list[int]:
        """The gateways of what ended or was refused since."""
        ledger = self.engine.ledger
        over = [n for n in self.owner if n in ledger.finished or n in ledger.rejected]
        return [self.owner.pop(number) for number in over]

    @property
    def inside(self) -> Counter[int]:
        """How many each gateway has in the engine."""
        return Counter(self.engine.scheduler._queues.num_by_link)

    @property
    def at_door(self) -> dict[int, list[int]]:
        """The requests of each gateway that wait in the intake queue."""
        lines = self.engine.scheduler._intake_queue._lines
        return {link: [number_of(key[1]) for key in line] for link, line in lines.items()}


def test_a_gateway_alone_has_all_places() -> None:
    """A gateway alone has all places to run and to wait, and no more; in order of arrival."""
    shared = Shared(max_seqs=2, max_waiting=3)
    assert [shared.submit(1) for _ in range(7)] == [True] * 5 + [False] * 2
    assert shared.at_door == {1: [2, 3, 4]}
    assert shared.engine.scheduler.load(1, 0.0, 0.0).waiting == 5  # two start with the next step
    shared.engine.drain()
    assert list(shared.engine.ledger.accepted) == [0, 1, 2, 3, 4]
    assert list(shared.engine.ledger.finished) == [0, 1, 2, 3, 4]


def test_gateways_share_the_places_to_wait_in() -> None:
    """Gateways share the places to wait in, in equal parts, once there are several; each has room
    for one.
    """
    shared = Shared(max_seqs=1, max_waiting=4)
    assert [shared.submit(1) for _ in range(6)] == [True] * 5 + [False]
    assert [shared.submit(2), shared.submit(2)] == [True, False]
    for _ in range(4 * 3 + 1):  # it is admitted, and after it those of the first but one
        shared.step()
    assert shared.at_door == {1: [4]}
    assert [shared.submit(2) for _ in range(3)] == [True, True, False]


def test_each_has_room_for_one() -> None:
    """Each gateway has room for one, also where no sequence is meant to wait."""
    shared = Shared(max_seqs=1, max_waiting=0)
    assert [shared.submit(link) for link in (1, 1, 2, 2, 3, 1, 1)] == [
        True,
        False,
        True,
        False,
        True,
        True,
        False,
    ]


def test_who_has_fewer_inside_goes_first() -> None:
    """The gateway with fewer running sequences goes first, even if its request came later."""
    shared = Shared(max_seqs=3, max_waiting=1)
    for link in (1, 1, 2, 2, 1, 3):
        assert shared.submit(link, max_tokens=1 if link == 1 else 9)
    assert [*shared.at_door] == [2, 1, 3]
    shared.step()  # both of the first gateway end
    assert [*shared.at_door] == [2]
    assert shared.inside == {1: 1, 2: 1, 3: 1}


def test_at_the_door_it_can_be_aborted_and_expires() -> None:
    """A sequence that waits for admission can be aborted and expires, and frees no place, since it
    had none.
    """
    shared = Shared(max_seqs=1, max_waiting=0)
    shared.submit(1, max_tokens=9)
    assert shared.submit(2)
    shared.abort(1)
    assert not shared.at_door
    assert shared.submit(2, deadline_s=5.0)
    shared.engine.ledger.hear(shared.engine.scheduler.expire(5.0))
    assert not shared.at_door
    assert [m.reason for m in shared.engine.ledger.finished.values()] == ["abort", "abort"]
    assert shared.inside == {1: 1}


def test_a_request_stands_at_the_door_once() -> None:
    """A request waits for admission once: the same attempt again is a fault, not load."""
    shared = Shared(max_seqs=1, max_waiting=0)
    shared.submit(1)
    submit = make_submit(7, [1])
    assert shared.engine.scheduler.submit(2, submit, 0.0) == ()
    ((_, message),) = shared.engine.scheduler.submit(2, submit, 0.0)
    assert isinstance(message, Rejected)
    assert message.reason == "invalid"


def test_a_gateway_that_vanishes_leaves_nothing_at_the_door() -> None:
    """Its sequences in the intake queue are not admitted to the places that its own running
    sequences leave.
    """
    shared = Shared(max_seqs=2, max_waiting=0)
    for link in (1, 2, 1, 3):
        assert shared.submit(link, max_tokens=9)
    shared.drop(1)
    assert not shared.at_door
    assert shared.inside == {2: 1, 3: 1}


def test_a_gateway_that_connects_again_passes_nobody_again() -> None:
    """A gateway that connects again passes no waiting one again, because it counts as new each
    time.
    """
    shared = Shared(max_seqs=1, max_waiting=0)
    for link in (1, 2):
        assert shared.submit(link, max_tokens=1)
    for _ in range(2):  # both end, the second was admitted from its line
        shared.step()
    for link in (1, 2, 3):
        assert shared.submit(link, max_tokens=9)
    shared.drop(3)
    assert shared.submit(3)
    assert [*shared.at_door] == [2, 3]
    shared.drop(1)
    assert shared.inside == {2: 1}


@pytest.mark.parametrize("places", [(1, 0), (2, 0), (2, 1), (6, 0), (6, 20)])
def test_who_always_comes_last_has_its_share(places: tuple[int, int]) -> None:
    """The first gateway wants as many places as there are at every moment, the second comes after
    it, the third every fifth time only: nobody has much more than another, and no place is idle.
    """
    max_seqs, max_waiting = places
    shared = Shared(max_seqs=max_seqs, max_waiting=max_waiting)
    rng = random.Random(7)
    tokens: Counter[int] = Counter()
    for turn in range(NUM_TURNS):
        for link in (1, 2, 3) if turn % 5 == 0 else (1, 2):
            while shared.submit(link, max_tokens=rng.randrange(8, 16)):
                pass
        assert shared.inside.total() == max_seqs
        tokens += shared.inside
        shared.step()
    assert min(tokens[link] for link in (1, 2, 3)) >= 0.8 * tokens.total() / 3, tokens


def test_answers_of_one_length_fall_into_no_step() -> None:
    """Two places that free together, again and again: nobody has one of them for good by being
    back in the intake queue before the others.
    """
    shared = Shared(max_seqs=2, max_waiting=1)
    tokens: Counter[int] = Counter()
    for _ in range(NUM_TURNS):
        for link in (1, 2, 3):
            while Counter(shared.owner.values())[link] < 2 and shared.submit(link, max_tokens=4):
                pass
        tokens += shared.inside
        shared.step()
    fair = tokens.total() / 3
    assert all(abs(num - fair) <= 8 for num in tokens.values()), tokens


class DoorLife(RuleBasedStateMachine):
    """Gateways that come, abort and vanish as they like."""

    @initialize(max_seqs=st.integers(1, 4), max_waiting=st.integers(0, 6))
    def begin(self, max_seqs: int, max_waiting: int) -> None:
        """A small engine."""
        self.shared = Shared(max_seqs=max_seqs, max_waiting=max_waiting)
        self.max_seqs, self.max_waiting = max_seqs, max_waiting
        self.was_at_door: dict[int, list[int]] = {}
        # By gateway that waits and has none inside: which were admitted before it, how often.
        self.passed_by: dict[int, Counter[int]] = {}

    @rule(link=st.sampled_from(LINKS), max_tokens=st.integers(1, 5), num=st.integers(1, 3))
    def submit(self, link: int, max_tokens: int, num: int) -> None:
        """A gateway that is refused has other sequences here, and learns of a free place when one
        of them ends.
        """
        for _ in range(num):
            inside, at_door = self.shared.inside, self.shared.at_door
            if not self.shared.submit(link, max_tokens):
                assert inside.total() == self.max_seqs
                assert link in inside or link in at_door
                seen["refused"] += 1

    @rule(seed=SEEDS)
    def abort(self, seed: int) -> None:
        """Any of those that live."""
        if self.shared.owner:
            self.shared.abort(random.Random(seed).choice([*self.shared.owner]))

    @rule(link=st.sampled_from(LINKS), dice=st.integers(0, 5))
    def vanish(self, link: int, dice: int) -> None:
        """At times; nothing of it is left."""
        if dice == 0:
            self.shared.drop(link)
            assert link not in self.shared.at_door
            assert link not in self.shared.inside

    @rule()
    def step(self) -> None:
        """Some end, others are admitted."""
        self.shared.step()

    @invariant()
    def all_is_in_bounds(self) -> None:
        """No place is free while somebody waits, and no more wait than there is room for."""
        if not hasattr(self, "shared"):
            return
        self.shared.engine.check()
        inside, at_door = self.shared.inside, self.shared.at_door
        num_at_door = sum(map(len, at_door.values()))
        assert inside.total() + num_at_door == len(self.shared.owner)
        assert inside.total() <= self.max_seqs
        assert inside.total() == self.max_seqs or not at_door
        assert num_at_door <= self.max_waiting + len(LINKS)

    @invariant()
    def nobody_is_left_outside(self) -> None:
        """A gateway without a running sequence is passed by each of the others once at most."""
        if not hasattr(self, "shared"):
            return
        at_door, inside = self.shared.at_door, self.shared.inside
        still_there = {number for line in at_door.values() for number in line}
        admit = [
            link
            for link, line in self.was_at_door.items()
            for number in line
            if number not in still_there and self.shared.owner.get(number) == link
        ]
        seen["admitted"] += len(admit)
        waiting = [link for link in at_door if not inside[link]]
        self.passed_by = {link: self.passed_by.get(link, Counter()) for link in waiting}
        for link, passed_by in self.passed_by.items():
            if link in self.was_at_door:
                passed_by.update(admit)
                seen["passed"] += len(admit)
            assert max(passed_by.values(), default=0) <= 1, (link, passed_by)
        self.was_at_door = at_door

    def teardown(self) -> None:
        """All that was taken ends."""
        if hasattr(self, "shared"):
            self.shared.engine.drain()
            self.shared.forget_the_ended()
            assert not self.shared.owner


def test_nobody_is_left_outside_in_random_lives() -> None:
    """In random lives of any gateways each of them gets places."""
    seen.clear()
    num_lives = max(25, settings().max_examples)
    run_state_machine_as_test(
        DoorLife, settings=settings(max_examples=num_lives, stateful_step_count=NUM_STEPS)
    )
    assert seen["refused"] > 12
    assert seen["admitted"] > 4
    assert seen["passed"] > 0
