"""Which conversations keep their place when not all of them fit."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.routing.programs import LEAST_QUANTUM_S, PATIENCE_S, SWITCHES, Programs

CAPACITY = 1000
SWITCH_S = 1.0
LONG_S = 200.0


def may(programs: Programs, name: str, now: float, tokens: int = 400) -> bool:
    return programs.may_start(name, tokens, CAPACITY, SWITCH_S, now)


def turn(programs: Programs, name: str, now: float, tokens: int = 400, key: str = "k") -> None:
    """A request that runs for a second."""
    programs.placed(name, key, 1.0, tokens, now)
    programs.ended(name, tokens, now + 1.0)


def full() -> Programs:
    """Two residents of 400 tokens, since 10 and 12, and a third program that has run once."""
    programs = Programs(LONG_S)
    for name, now in (("a", 0.0), ("b", 2.0), ("c", 4.0), ("a", 10.0), ("b", 12.0)):
        turn(programs, name, now)
    return programs


def test_nothing_waits_while_all_fit_or_without_a_bound() -> None:
    programs = Programs(LONG_S)
    for now in range(6):
        for name in ("a", "b"):
            assert may(programs, name, now)
            turn(programs, name, now)
    off = Programs(0.0)
    for number in range(9):
        assert may(off, f"p{number}", 0.0)
        turn(off, f"p{number}", 0.0)
        assert may(off, f"p{number}", 1.0)


def test_a_first_request_is_never_held() -> None:
    programs = full()
    assert may(programs, "new", 13.0)
    turn(programs, "new", 13.0)
    assert not may(programs, "new", 14.0)


def test_residents_go_on_and_others_wait_until_a_quantum_is_over() -> None:
    programs = full()
    assert not may(programs, "c", 14.0)
    quantum_s = SWITCHES * SWITCH_S
    assert may(programs, "a", 15.0)
    turn(programs, "a", 15.0)
    over = 10.0 + quantum_s
    turn(programs, "b", over - 2.0)
    assert not may(programs, "a", over)
    assert may(programs, "c", over)
    turn(programs, "c", over)
    assert not may(programs, "a", over + 1.5)
    assert may(programs, "b", over + 1.5)


def test_one_that_stays_away_gives_its_place_up() -> None:
    programs = full()
    assert not may(programs, "c", 14.0)
    assert may(programs, "b", 14.0)
    turn(programs, "b", 20.0)
    assert not may(programs, "c", 10.5 + PATIENCE_S)
    assert may(programs, "c", 11.5 + PATIENCE_S)


def test_nobody_waits_for_longer_than_the_bound() -> None:
    programs = Programs(8.0)
    for name, now in (("a", 0.0), ("b", 2.0), ("c", 4.0), ("a", 10.0), ("b", 12.0)):
        turn(programs, name, now)
    assert not may(programs, "c", 14.0)
    assert programs.wait_s("c", 14.0) <= 8.0
    assert may(programs, "c", 22.0)


def test_the_key_that_holds_least_is_next() -> None:
    programs = Programs(LONG_S)
    for name, key in (("a", "large"), ("b", "large"), ("c", "large"), ("d", "small")):
        turn(programs, name, 0.0, key=key)
    for name in "ab":
        assert may(programs, name, 2.0)
        turn(programs, name, 2.0, key="large")
    assert not may(programs, "c", 4.0)
    assert not may(programs, "d", 5.0)
    later = 4.0 + PATIENCE_S
    assert not may(programs, "c", later)
    assert may(programs, "d", later)


def test_a_request_that_leaves_is_out_of_the_line() -> None:
    programs = full()
    assert not may(programs, "c", 14.0)
    programs.left("c")
    assert programs.num_waiting == 0
    assert programs.wait_s("c", 15.0) == 0.0


def test_a_quantum_has_a_least_length() -> None:
    programs = full()
    assert not programs.may_start("c", 400, CAPACITY, 0.0, 12.5)
    assert programs.may_start("a", 400, CAPACITY, 0.0, 10.0 + LEAST_QUANTUM_S - 0.5)
    assert not programs.may_start("a", 400, CAPACITY, 0.0, 10.0 + LEAST_QUANTUM_S)


class Lives(RuleBasedStateMachine):
    """Random agents: each waits, runs or pauses."""

    def __init__(self) -> None:
        super().__init__()
        self.programs = Programs(30.0)
        self.now = 0.0
        self.waits: dict[str, float] = {}
        self.running: dict[str, int] = {}

    @rule(name=st.sampled_from("abcdef"), tokens=st.integers(1, 700))
    def asks(self, name: str, tokens: int) -> None:
        if name in self.running:
            return
        self.waits.setdefault(name, self.now)
        if self.programs.may_start(name, tokens, CAPACITY, SWITCH_S, self.now):
            del self.waits[name]
            self.running[name] = tokens
            self.programs.placed(name, name, 1.0, tokens, self.now)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def ends(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.running)))
        self.programs.ended(name, self.running.pop(name) + 10, self.now)

    @precondition(lambda self: self.waits)
    @rule(data=st.data())
    def gives_up(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.waits)))
        del self.waits[name]
        self.programs.left(name)

    @rule(seconds=st.sampled_from((0.1, 3.0, 40.0)))
    def waits_on(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def books_agree(self) -> None:
        residents = self.programs._residents.values()
        assert self.programs.held_tokens == sum(one.tokens for one in residents)
        for one in self.programs._table.values():
            assert one.resident_since is None or one.waits_since is None
        assert set(self.programs._line) <= set(self.waits)

    @invariant()
    def long_waits_end(self) -> None:
        for name, since in self.waits.items():
            program = self.programs._table.get(name)
            if program is not None and program.waits_since is not None:
                assert program.waits_since >= since


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=40, stateful_step_count=40)
