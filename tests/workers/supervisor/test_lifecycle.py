"""The table of an engine's life, walked beside a model that keeps flags, and its diagram."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from protocol.errors import ConfigError
from protocol.life_tables import ImpossibleEventError
from tests.fakes.life_tables import documented_diagrams
from workers.supervisor.hold import WorkerHold
from workers.supervisor.lifecycle import (
    REFUSALS,
    SERVING,
    SHOWN,
    TABLE,
    EngineState,
    Lifecycle,
    LifeEvent,
    diagram,
)
from workers.supervisor.restart_policy import MAX_FAILED_STARTS, RestartPolicy

OPERATORS = frozenset(
    (LifeEvent.HOLD, LifeEvent.UNHOLD, LifeEvent.RESTART, LifeEvent.RESTART_NOW, LifeEvent.LEAVE)
)
LEASE_S = 60.0
SHOWN_ALIVE = ("ready", "draining", "falling asleep")


@dataclass(frozen=True)
class Flags:
    """What is so of a worker and its engine, one word each."""

    has_process: bool = False
    is_loaded: bool = False
    is_proven: bool = False
    is_dead: bool = False
    is_told: bool = False
    is_asked_to_end: bool = False
    drains_for: str = ""
    sleep: str = ""
    is_given_up: bool = False
    is_held: bool = False
    is_leaving: bool = False

    @property
    def shown(self) -> str:
        if self.is_leaving:
            return "leaving"
        if self.is_given_up:
            return "stopped"
        if self.sleep:
            shown = {"falling": "falling asleep", "asleep": "asleep", "waking": "waking"}
            return shown[self.sleep]
        if not self.has_process:
            return "waiting"
        if self.is_dead or self.is_asked_to_end:
            return "ending"
        if self.drains_for == "sleep":
            return "falling asleep"
        if self.drains_for:
            return "draining"
        return "ready" if self.is_proven else "starting"

    @property
    def serves(self) -> bool:
        return self.shown == "ready" and not self.is_held

    @property
    def lives(self) -> bool:
        """Whether it is proven, and nothing has ended it."""
        has_memory = not self.sleep
        return self.is_proven and has_memory and self.shown in SHOWN_ALIVE

    def possible(self) -> Iterator[LifeEvent]:  # noqa: C901
        """What can happen now, besides the wishes of operators."""
        if self.is_leaving:
            yield from LifeEvent
        elif self.sleep:
            yield from self._of_sleep()
        elif not self.has_process:
            yield LifeEvent.SLEEP
            if not self.is_given_up:
                yield LifeEvent.START
        elif self.is_dead:
            yield LifeEvent.RETRY
            yield LifeEvent.GIVE_UP
        elif self.is_asked_to_end:
            yield from (
                LifeEvent.EXITED,
                LifeEvent.LINGERS,
                LifeEvent.RETRY,
                LifeEvent.LOADED,
                LifeEvent.PROVEN,
            )
        else:
            yield from (LifeEvent.EXITED, LifeEvent.LINGERS)
            if not self.is_proven:  # a rank has no model of its own to load
                yield from (LifeEvent.PROVEN, LifeEvent.LOADED)
            if self.drains_for == "hold":
                yield LifeEvent.YIELDED
            if self.drains_for == "restart":
                yield LifeEvent.DRAINED
            if self.drains_for == "sleep":
                yield from (LifeEvent.RESTED, LifeEvent.SLEEP)
            if self.serves:
                yield LifeEvent.SLEEP

    def _of_sleep(self) -> Iterator[LifeEvent]:
        if self.has_process:
            yield from (LifeEvent.EXITED, LifeEvent.LINGERS)
        match self.sleep:
            case "falling":
                yield from (
                    LifeEvent.SLEEP,
                    LifeEvent.MOVED_OUT if self.has_process else LifeEvent.SLEPT,
                )
            case "asleep":
                yield from (
                    LifeEvent.SLEEP,
                    LifeEvent.WAKE if self.has_process else LifeEvent.START,
                )
            case "waking":
                yield from (LifeEvent.PROVEN, LifeEvent.MOVED_OUT)

    def refuses(self, event: LifeEvent) -> bool:
        is_running = self.has_process and not (self.is_dead or self.is_asked_to_end)
        match event:
            case LifeEvent.HOLD:
                return self.is_leaving or bool(self.drains_for and is_running) or bool(self.sleep)
            case LifeEvent.RESTART:
                drains = self.drains_for in ("hold", "restart") and is_running
                return self.is_leaving or drains or self.sleep == "falling"
            case LifeEvent.RESTART_NOW:
                return self.is_leaving or self.sleep == "falling"
            case _:
                return False

    def after(self, event: LifeEvent) -> "Flags":  # noqa: C901, PLR0911, PLR0912
        is_running = self.has_process and not (self.is_dead or self.is_asked_to_end)
        gone = Flags(is_held=self.is_held)
        if event is LifeEvent.LEAVE or self.is_leaving:
            return replace(self, is_leaving=True)
        if self.sleep or event in (LifeEvent.SLEEP, LifeEvent.RESTED):
            return self._asleep_after(event)
        match event:
            case LifeEvent.START:
                return replace(gone, has_process=True)
            case LifeEvent.LOADED:
                return replace(self, is_loaded=True)
            case LifeEvent.PROVEN:
                return replace(self, is_proven=True)
            case LifeEvent.HOLD:
                is_served = is_running and self.is_proven
                return replace(self, is_held=True, drains_for="hold" if is_served else "")
            case LifeEvent.YIELDED:
                return replace(self, drains_for="")
            case LifeEvent.UNHOLD:
                if self.is_given_up:
                    return Flags()
                drains_for = "" if self.drains_for == "hold" else self.drains_for
                return replace(self, is_held=False, drains_for=drains_for)
            case LifeEvent.RESTART if is_running and self.is_proven:
                return replace(self, drains_for="restart")
            case LifeEvent.RESTART | LifeEvent.RESTART_NOW:
                if is_running:
                    return replace(self, is_asked_to_end=True)
                return gone if self.is_given_up else self
            case LifeEvent.DRAINED:
                return replace(self, is_asked_to_end=True)
            case LifeEvent.EXITED if is_running:
                return replace(self, is_dead=True)
            case LifeEvent.LINGERS if is_running:
                return replace(self, is_dead=True, is_told=True)
            case LifeEvent.RETRY:
                return gone
            case LifeEvent.GIVE_UP:
                return replace(gone, is_given_up=True)
            case _:
                return self

    def _asleep_after(self, event: LifeEvent) -> "Flags":  # noqa: C901, PLR0911, PLR0912
        match event:
            case LifeEvent.SLEEP if self.serves:
                return replace(self, drains_for="sleep")
            case LifeEvent.SLEEP if not self.has_process and not self.is_given_up:
                return Flags(sleep=self.sleep or "asleep", is_held=self.is_held)
            case LifeEvent.RESTED:
                return replace(self, drains_for="", sleep="falling")
            case LifeEvent.SLEPT | LifeEvent.MOVED_OUT:
                return replace(self, sleep="asleep")
            case LifeEvent.WAKE:
                return replace(self, sleep="waking")
            case LifeEvent.PROVEN:
                return replace(self, sleep="")
            case LifeEvent.START:
                return Flags(has_process=True, is_held=self.is_held)
            case LifeEvent.UNHOLD:
                return replace(self, is_held=False)
            case LifeEvent.EXITED | LifeEvent.LINGERS if self.sleep == "waking":
                return replace(self, sleep="", is_dead=True, is_told=event is LifeEvent.LINGERS)
            case LifeEvent.EXITED | LifeEvent.LINGERS:
                return replace(self, has_process=False, sleep="falling")
            case LifeEvent.RESTART | LifeEvent.RESTART_NOW if self.sleep == "waking":
                return replace(self, sleep="", is_asked_to_end=True)
            case LifeEvent.RESTART | LifeEvent.RESTART_NOW if self.has_process:
                return replace(self, sleep="falling")
            case _:
                return self


def _events(flags: Flags) -> set[LifeEvent]:
    wishes = OPERATORS - ({LifeEvent.HOLD} if flags.is_held else {LifeEvent.UNHOLD})
    return {*flags.possible(), *wishes}


def _taken(life: Lifecycle, flags: Flags, event: LifeEvent) -> Flags:
    """Let both take the event, as the supervisor does: a hold begins and ends around it."""
    if flags.refuses(event):
        before = life.state
        with pytest.raises(ConfigError):
            life.on(event)
        assert life.state is before
        return flags
    if event is LifeEvent.UNHOLD:
        life.hold.end()
    life.on(event)
    if event is LifeEvent.HOLD and not flags.is_leaving:
        life.hold.begin(0.0, LEASE_S)
    return flags.after(event)


def _agree(life: Lifecycle, flags: Flags) -> None:
    assert SHOWN[life.state] == flags.shown
    assert (life.state is EngineState.READY) == flags.serves
    assert (life.state is EngineState.PROBING) == (flags.is_loaded and flags.shown == "starting")
    assert (life.state is EngineState.LINGERING) == (flags.is_told and flags.shown == "ending")
    if not flags.is_leaving:
        assert (life.state in SERVING) == flags.lives


def test_every_walk_agrees_with_a_model_of_flags() -> None:
    """From the first state all states and all entries of the table are reached, and no other."""
    todo, seen = [((), EngineState.WAITING, Flags())], set()
    reached: set[tuple[EngineState, LifeEvent]] = set()
    while todo:
        way, state, flags = todo.pop()
        if (state, flags) in seen:
            continue
        seen.add((state, flags))
        for event in _events(flags):
            life = Lifecycle(WorkerHold(0.0, LEASE_S if flags.is_held else None))
            life.state = state
            after = _taken(life, flags, event)
            if not flags.refuses(event):
                reached.add((state, event))
            _agree(life, after)
            todo.append(((*way, event), life.state, after))
    assert {state for _, state, _ in todo} | {state for state, _ in seen} == {*EngineState}
    # A worker that leaves takes anything.
    assert {(state, event) for state, event in {*TABLE} - reached} <= {
        (EngineState.LEAVING, event) for event in LifeEvent
    }
    assert reached <= {*TABLE}


class LifeMachine(RuleBasedStateMachine):
    """Long lives with deaths that are judged."""

    def __init__(self) -> None:
        super().__init__()
        self.life, self.flags, self.now = Lifecycle(policy=RestartPolicy()), Flags(), 0.0

    @rule(draw=st.data())
    def happens(self, draw: st.DataObject) -> None:
        events = sorted(
            _events(self.flags) - {LifeEvent.RETRY, LifeEvent.GIVE_UP}, key=lambda e: e.name
        )
        event = draw.draw(st.sampled_from([one for one in events if one is not LifeEvent.LEAVE]))
        self.flags = _taken(self.life, self.flags, event)
        if event is LifeEvent.PROVEN and not self.flags.is_asked_to_end:
            self.life.policy.ready(self.now)

    @precondition(lambda self: self.flags.is_dead)
    @rule(
        passed_s=st.floats(0.0, 1e4), is_permanent=st.booleans(), is_outside=st.booleans(),
        is_rank=st.booleans(),
    )  # fmt: skip
    def is_judged(
        self, passed_s: float, is_permanent: bool, is_outside: bool, is_rank: bool
    ) -> None:
        self.now += passed_s
        delay_s = self.life.delay_after_death(
            self.now, is_permanent=is_permanent, is_outside=is_outside, is_rank=is_rank
        )
        if is_rank:
            assert delay_s == 0.0
        elif self.flags.is_held or (is_permanent and not self.flags.is_proven):
            assert delay_s is None
        event = LifeEvent.GIVE_UP if delay_s is None else LifeEvent.RETRY
        self.flags = _taken(self.life, self.flags, event)

    @invariant()
    def agrees(self) -> None:
        _agree(self.life, self.flags)


TestLives = LifeMachine.TestCase
TestLives.settings = settings(
    max_examples=max(60, settings().max_examples // 10), stateful_step_count=40, deadline=None
)


@pytest.mark.parametrize("state", EngineState)
def test_what_cannot_happen_is_refused_by_name(state: EngineState) -> None:
    """An event that cannot happen is refused by name, and changes nothing."""
    for event in LifeEvent:
        life = Lifecycle()
        life.state = state
        if (state, event) in TABLE:
            continue
        with pytest.raises((ImpossibleEventError, ConfigError), match=r"^(the worker|it )|in "):
            life.on(event)
        assert life.state is state
        if event not in OPERATORS:
            with pytest.raises(ImpossibleEventError, match=f"{event.name} in {state.name}"):
                life.on(event)


def test_a_trial_has_one_try_and_a_rank_any_number() -> None:
    """A head counts the tries of its group, an engine that was ready has any number."""
    life = Lifecycle(WorkerHold(0.0, LEASE_S))

    def judged(*, is_rank: bool = False) -> float | None:
        return life.delay_after_death(1.0, is_permanent=False, is_outside=False, is_rank=is_rank)

    life.policy.ready(0.5)
    assert judged() is None
    assert judged(is_rank=True) == 0.0
    life.hold.end()
    life.policy.reset()
    tries = [judged() for _ in range(MAX_FAILED_STARTS)]
    assert None not in tries[:-1]
    assert tries[-1] is None


def test_a_trial_that_failed_lengthens_no_later_delay() -> None:
    """A trial that failed lengthens no later delay of the version before, which starts again once
    the hold has ended.
    """
    life = Lifecycle(WorkerHold(0.0, LEASE_S), RestartPolicy(0.5))

    def judged() -> float | None:
        return life.delay_after_death(1.0, is_permanent=False, is_outside=False, is_rank=False)

    assert judged() is None
    life.hold.end()
    assert [judged(), judged()] == [0.5, 1.0]


def test_each_new_state_is_told_once() -> None:
    """Each new state is reported once, after it was taken. An event that leaves the state, or is
    refused, is not reported.
    """
    life, seen = Lifecycle(), list[EngineState]()
    life.on_change = lambda: seen.append(life.state)
    for event in (LifeEvent.RESTART, LifeEvent.START, LifeEvent.LOADED, LifeEvent.LOADED):
        life.on(event)
    with pytest.raises(ImpossibleEventError):
        life.on(LifeEvent.WAKE)
    assert seen == [EngineState.STARTING, EngineState.PROBING]


def test_what_sleeps_is_refused_as_one_that_comes_back() -> None:
    """A gateway that hears `draining` sends nothing more; one that hears `not_ready` waits."""
    reasons = {state: reason for state, (reason, _) in REFUSALS.items()}
    comes_back = (
        EngineState.DROWSY,
        EngineState.FALLING_ASLEEP,
        EngineState.ASLEEP,
        EngineState.DORMANT,
        EngineState.WAKING,
    )
    assert {reasons[state] for state in comes_back} == {"not_ready"}
    words = {state: REFUSALS[state][1] for state in comes_back}
    for state in comes_back:  # the same word as in the worker's status
        assert words[state] == f"the engine is {SHOWN[state]}"


def test_every_state_has_its_words() -> None:
    """A status and a refusal; what no engine serves is refused as a draining or a missing one."""
    assert {*SHOWN} == {*REFUSALS} == {*EngineState}
    assert {reason for reason, _ in REFUSALS.values()} == {"draining", "not_ready"}
    for state in (
        EngineState.YIELDING,
        EngineState.HELD,
        EngineState.DRAINING,
        EngineState.LEAVING,
    ):
        assert REFUSALS[state][0] == "draining"


def test_the_diagram_of_the_documentation_is_the_table() -> None:
    """`workers.supervisor.lifecycle.diagram` prints it anew."""
    assert diagram() in documented_diagrams()
