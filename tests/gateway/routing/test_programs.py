"""Which conversations keep their place when not all of them fit."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.routing.programs import (
    LEAST_QUANTUM_S,
    LOST_COUNTS_S,
    MAX_PROGRAMS,
    MISSING,
    PATIENCE_S,
    SWITCHES,
    Claim,
    Programs,
)

CAPACITY = 1000
SWITCH_S = 5.0
ANSWER_S = 1.0
LONG_S = 1000.0


class Agents:
    """Programs, and which of their conversations have a request."""

    def __init__(self, max_pause_s: float = LONG_S) -> None:
        self.programs = Programs(lambda _key, name: name in self.open, max_pause_s)
        self.open: set[str] = set()
        self.asked: dict[str, float] = {}

    def may(
        self,
        name: str,
        now: float,
        tokens: int = 400,
        switch_s: float = SWITCH_S,
        answer_s: float = ANSWER_S,
    ) -> bool:
        """A request asks, unless all fit."""
        asked_at = self.asked.setdefault(name, now)
        claim = Claim(asked_at, tokens, CAPACITY, 1, switch_s, answer_s)
        return not self.programs.is_full or self.programs.may_start(name, claim, now)

    def turn(
        self, name: str, now: float, tokens: int = 400, key: str = "k", found: int = 0
    ) -> None:
        """A request that runs for a second."""
        self.asked.pop(name, None)
        self.programs.ended(name, key, 1.0, tokens, found, CAPACITY, now, now + 1.0)

    def work(self, name: str, begin: float, end: float) -> None:
        """Requests without pauses."""
        now = begin
        while now < end:
            self.turn(name, now)
            now += 1.0


def full(max_pause_s: float = LONG_S) -> Agents:
    """Two residents of 400 tokens, since 11 and 13, and a third program that did not fit."""
    agents = Agents(max_pause_s)
    for name, now in (("a", 0.0), ("b", 2.0), ("c", 4.0), ("a", 10.0), ("b", 12.0), ("c", 13.0)):
        agents.turn(name, now)
    return agents


def test_nothing_waits_while_all_fit_or_without_a_bound() -> None:
    agents = Agents()
    for now in range(6):
        for name in ("a", "b"):
            assert not agents.programs.is_full
            agents.turn(name, now)
    off = full(0.0)
    assert off.may("c", 14.0)


def test_conversations_that_share_their_beginning_fit_until_a_turn_finds_too_little() -> None:
    """Four of 400 tokens, of which 300 are the same instructions, need 700 of 1,000."""
    agents = Agents()
    for now in range(20):
        for name in "abcd":
            assert not agents.programs.is_full
            agents.turn(name, float(now), found=390 if now else 300)
    agents.turn("a", 20.0, found=201)
    assert not agents.programs.is_full
    agents.turn("a", 21.0, found=199)
    assert agents.programs.is_full
    agents.turn("b", 20.9 + LOST_COUNTS_S, found=390)
    assert agents.programs.is_full
    agents.turn("b", 21.0 + LOST_COUNTS_S, found=390)
    assert not agents.programs.is_full


def test_a_first_request_is_never_held() -> None:
    agents = full()
    assert agents.may("new", 14.0)
    agents.turn("new", 14.0)
    assert not agents.may("new", 15.5)


def test_residents_go_on_and_others_wait_until_a_quantum_is_over() -> None:
    agents = full()
    assert not agents.may("c", 14.0)
    quantum_s = SWITCHES * SWITCH_S
    assert agents.may("a", 15.0)
    over = 11.0 + quantum_s
    agents.work("a", 15.0, over - 1.0)
    agents.work("b", 15.0, over - 1.0)
    assert agents.may("a", over - 0.5)
    assert not agents.may("a", over)
    assert agents.may("c", over)
    agents.turn("c", over)
    assert not agents.may("a", over + 1.5)
    assert agents.may("b", over + 1.5)


def test_a_resident_that_waits_for_its_worker_keeps_its_place() -> None:
    """A resident that waits for its worker keeps its place: its quantum is over by the clock, but
    it has used none of it.
    """
    agents = full()
    assert not agents.may("c", 14.0)
    over = 11.0 + SWITCHES * SWITCH_S
    agents.work("a", 15.0, over - 1.0)
    agents.work("b", 15.0, over - 1.0)
    assert not agents.may("a", over)
    assert agents.may("c", over)
    assert agents.may("c", over + 2 * SWITCHES * SWITCH_S)


def test_one_that_stays_away_gives_its_place_up() -> None:
    agents = full()
    assert not agents.may("c", 14.5)
    assert agents.may("b", 15.0)
    agents.turn("b", 19.0)
    assert not agents.may("c", 10.5 + PATIENCE_S)
    assert agents.may("c", 11.5 + PATIENCE_S)


def test_one_with_a_request_is_not_away() -> None:
    agents = full()
    agents.open = {"a", "b"}
    assert not agents.may("c", 14.5)
    assert not agents.may("c", 15.5 + PATIENCE_S)
    agents.open = {"b"}
    assert agents.may("c", 15.5 + PATIENCE_S)


def test_one_that_has_grown_beyond_the_room_asks_for_its_place_again() -> None:
    agents = Agents()
    for name, now in (("a", 0.0), ("b", 2.0), ("a", 10.0), ("b", 12.0)):
        agents.turn(name, now)
    assert not agents.programs.is_full
    agents.turn("b", 13.5, tokens=600)
    assert agents.programs.held_tokens == CAPACITY
    agents.turn("b", 15.0, tokens=601)
    assert agents.programs.held_tokens == 400
    assert not agents.may("b", 16.5, tokens=601)
    assert agents.may("a", 16.5)


def test_nobody_waits_for_longer_than_the_bound() -> None:
    agents = full(8.0)
    assert not agents.may("c", 14.0)
    assert agents.programs.wait_s("c", 14.0) <= 8.0
    assert agents.may("c", 22.0)


def test_one_that_needs_the_whole_memory_does_not_wait_for_itself() -> None:
    """A conversation that needs the whole memory runs where it is alone on a card; beside others it
    waits until they are away.
    """
    agents = Agents()
    for now in range(4):
        agents.turn("large", now, tokens=CAPACITY - 1)
        assert agents.may("large", now + 1.0, tokens=CAPACITY)
    agents.turn("a", 5.0)
    agents.turn("a", 6.0)
    assert not agents.may("a", 7.0)
    agents = full()
    assert agents.may("large", 14.0)
    agents.turn("large", 14.0, tokens=CAPACITY)
    assert not agents.may("large", 15.0, tokens=CAPACITY)
    assert agents.may("large", 15.0 + PATIENCE_S, tokens=CAPACITY)


def test_people_and_short_prompts_are_not_held() -> None:
    """A pause or an answer that takes longer than to compute all that fits anew, and a prompt that
    takes no time; what waited for its place waits no longer.
    """
    agents = full()
    rebuild_s = MISSING * CAPACITY / 400 * SWITCH_S
    assert not agents.may("c", 14.0)
    assert agents.may("c", 14.0, answer_s=rebuild_s)
    assert not agents.programs._line
    assert not agents.may("c", 14.0)
    assert agents.may("c", 14.0, switch_s=0.9 * LEAST_QUANTUM_S / SWITCHES)
    agents = full()
    assert agents.may("c", 14.0 + 2 * rebuild_s)


def test_the_key_that_holds_least_is_next() -> None:
    agents = Agents()
    for now in (0.0, 2.0):
        for name, key in (("a", "large"), ("b", "large"), ("c", "large"), ("d", "small")):
            agents.turn(name, now, key=key)
    assert not agents.may("c", 4.0)
    assert not agents.may("d", 5.0)
    later = 4.0 + PATIENCE_S
    assert not agents.may("c", later)
    assert agents.may("d", later)


def test_a_request_that_leaves_is_out_of_the_line() -> None:
    agents = full()
    assert not agents.may("c", 14.0)
    agents.programs.left("c")
    assert not agents.programs._line
    assert agents.programs.wait_s("c", 15.0) == 0.0


def test_the_line_is_asked_for_until_nothing_waits_and_all_fit() -> None:
    agents = full()
    assert not agents.may("c", 14.0)
    agents.turn("b", 15.0)
    assert agents.programs.is_full
    agents.programs.left("c")
    agents.turn("a", 40.0, tokens=200)
    assert agents.programs.is_full
    agents.turn("a", 41.0, tokens=100)
    assert not agents.programs.is_full


def test_programs_are_forgotten_in_the_order_of_their_last_requests() -> None:
    agents = full()
    agents.open = {"a"}
    for number in range(MAX_PROGRAMS):
        agents.turn(f"p{number}", 20.0 + number, tokens=1)
    assert agents.programs.tokens_of("a") == 400
    assert agents.programs.tokens_of("b") == agents.programs.tokens_of("p0") == 0
    assert agents.programs.held_tokens == 400


class Lives(RuleBasedStateMachine):
    """Random agents: each waits, runs or pauses."""

    def __init__(self) -> None:
        super().__init__()
        self.agents = Agents(30.0)
        self.programs = self.agents.programs
        self.now = 0.0
        self.waits: dict[str, float] = {}
        self.running: dict[str, tuple[int, float]] = {}

    @rule(
        name=st.sampled_from("abcdef"),
        tokens=st.integers(1, 700),
        switch_s=st.sampled_from((0.1, SWITCH_S)),
    )
    def asks(self, name: str, tokens: int, switch_s: float) -> None:
        if name in self.running:
            return
        since = self.waits.setdefault(name, self.now)
        self.agents.open.add(name)
        if self.agents.may(name, self.now, tokens, switch_s):
            del self.waits[name]
            self.running[name] = tokens, since
        else:
            assert self.now - since < self.programs.max_pause_s
            assert self.programs.tokens_of(name)
            assert switch_s == SWITCH_S

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def ends(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.running)))
        tokens, asked_at = self.running.pop(name)
        self.agents.asked.pop(name, None)
        found = data.draw(st.integers(0, tokens))
        self.programs.ended(name, name, 1.0, tokens + 10, found, CAPACITY, asked_at, self.now)
        self.agents.open.discard(name)

    @precondition(lambda self: self.waits)
    @rule(data=st.data())
    def gives_up(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.waits)))
        del self.waits[name]
        self.agents.open.discard(name)
        self.programs.left(name)

    @rule(seconds=st.sampled_from((0.1, 3.0, 40.0)))
    def waits_on(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def books_agree(self) -> None:
        residents = self.programs._residents
        assert self.programs.held_tokens == sum(one.tokens for one in residents.values())
        for name, one in self.programs._table.items():
            assert one.resident_since is None or one.waits_since is None
            assert (name in residents) == (one.resident_since is not None)
            assert (name in self.programs._line) == (one.waits_since is not None)
        assert set(self.programs._line) <= set(self.waits)
        assert self.programs.is_full or not self.programs._line

    @invariant()
    def what_is_between_requests_fits(self) -> None:
        """Residents that run may have grown beyond the room; the others fit."""
        if not self.running and not self.waits and not self.programs.is_full:
            assert self.programs.held_tokens <= CAPACITY


TestLives = Lives.TestCase
TestLives.settings = settings(
    max_examples=max(40, settings().max_examples // 10), stateful_step_count=40
)
