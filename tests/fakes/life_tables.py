"""A table of states beside a model that keeps flags: every walk of both, and faults to plant."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Generic, Protocol, TypeVar
from unittest import TestCase

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from protocol.life_tables import ImpossibleEventError

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"

State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)
Flags = TypeVar("Flags", bound="Model")


class Model(Protocol):
    """What is so, one word each; hashable."""

    def possible(self) -> set[Enum]:
        """The events that can happen now."""
        ...

    def after(self: Flags, event: Enum) -> Flags:
        """What is so after an event."""
        ...


def disagreement(
    table: Mapping[tuple[State, Event], State],
    events: type[Event],
    begin: tuple[State, Flags],
    agrees: Callable[[State, Flags], bool],
) -> str | None:
    """The first difference between `table` and the model, on all walks from `begin`; None: there is
    none, and the walks have reached every state.
    """
    todo, seen = [begin], set[tuple[State, Flags]]()
    while todo:
        state, flags = todo.pop()
        if (state, flags) in seen:
            continue
        seen.add((state, flags))
        taken = {event for event in events if (state, event) in table}
        if taken != flags.possible():
            return f"{state} takes {taken}, {flags} takes {flags.possible()}"
        for event in taken:
            to, after = table[state, event], flags.after(event)
            if not agrees(to, after):
                return f"{state} leads by {event} to {to}, {flags} to {after}"
            todo.append((to, after))
    missed = {*type(begin[0])} - {state for state, _ in seen}
    return f"{missed} cannot be reached" if missed else None


def faults(
    table: Mapping[tuple[State, Event], State], states: type[State], events: type[Event]
) -> Iterator[tuple[str, Mapping[tuple[State, Event], State]]]:
    """The table with one fault each, and its name: an entry that is missing, that leads to another
    state or that cannot be; two states in each other's place; an event that happens nowhere.
    """
    for pair, to in table.items():
        yield f"without {pair}", {one: at for one, at in table.items() if one != pair}
        for other in {*states} - {to}:
            yield f"{pair} leads to {other}", {**table, pair: other}
    for state in states:
        for event in events:
            if (state, event) not in table:
                for to in states:
                    yield f"{state} takes {event}", {**table, (state, event): to}
        for other in {*states} - {state}:
            names = {state: other, other: state}
            yield (
                f"{state} is {other}",
                {
                    (names.get(one, one), event): names.get(to, to)
                    for (one, event), to in table.items()
                },
            )
    for event in events:
        yield f"no {event}", {pair: to for pair, to in table.items() if pair[1] is not event}


def says(said: Mapping[State, bool], state: State) -> bool:
    """Whether of all that is said of the states only that of `state` is so."""
    return [one for one, is_so in said.items() if is_so] == [state]


def impossible(event: Enum, state: Enum) -> tuple[type[Exception], str]:
    """How an event that cannot happen is refused, and in which words."""
    return ImpossibleEventError, f"^{event.name} in {state.name}$"


@dataclass(frozen=True)
class Life(Generic[State, Event, Flags]):
    """A table and a model that begin with `state` and `flags`; `agrees` compares one with the
    other.
    """

    table: Mapping[tuple[State, Event], State]
    state: State
    flags: Flags
    agrees: Callable[[State, Flags], bool]

    @property
    def events(self) -> type[Event]:
        return type(next(event for _, event in self.table))

    def check_walks(self) -> None:
        """All states and all entries of the table are reached, and no others."""
        begin = self.state, self.flags
        assert disagreement(self.table, self.events, begin, self.agrees) is None

    def check_faults(self) -> None:
        """An entry that is missing, wrong or too much, swapped states, a lost event: each fault
        that is planted in the table is found.
        """
        found = {
            name: disagreement(faulty, self.events, (self.state, self.flags), self.agrees)
            for name, faulty in faults(self.table, type(self.state), self.events)
        }
        assert all(found.values()), [name for name, why in found.items() if why is None]
        assert len(found) > len(self.table) * (len(type(self.state)) - 1)

    def machine(
        self,
        steps: int,
        *,
        also: Callable[[State, Flags], None] = lambda _state, _flags: None,
        last: Event | None = None,
        refusal: Callable[[Event, State], tuple[type[Exception], str]] = impossible,
    ) -> type[TestCase]:
        """Whole lives of `steps` events in any order, those that cannot happen among them. `also`
        asserts what else is so of a state. `last` happens only where nothing else can, so that
        lives are long. `refusal` is how the table refuses an event.
        """
        life = self

        class LifeMachine(RuleBasedStateMachine):
            def __init__(self) -> None:
                super().__init__()
                self.state, self.flags = life.state, life.flags

            @rule(draw=st.data())
            def happens(self, draw: st.DataObject) -> None:
                possible = self.flags.possible()
                events = sorted(possible - {last} or possible, key=lambda event: event.name)
                if events:
                    event = draw.draw(st.sampled_from(events))
                    self.state = life.table[self.state, event]
                    self.flags = self.flags.after(event)

            @rule(event=st.sampled_from(life.events))
            def cannot_happen(self, event: Event) -> None:
                if event not in self.flags.possible():
                    kind, words = refusal(event, self.state)
                    with pytest.raises(kind, match=words):
                        life.table[self.state, event]

            @invariant()
            def agrees(self) -> None:
                assert life.agrees(self.state, self.flags)
                also(self.state, self.flags)

        found: type[TestCase] = LifeMachine.TestCase
        found.settings = settings(
            max_examples=max(60, settings().max_examples // 10),
            stateful_step_count=steps,
            deadline=None,
        )
        return found


def documented_diagrams() -> list[str]:
    """The diagrams of docs/architecture.md."""
    return re.findall(r"```mermaid\n(.*?)\n```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
