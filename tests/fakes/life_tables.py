"""A table of states beside a model that keeps flags: every walk of both, and faults to plant."""

import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Protocol, TypeVar

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


def verdicts(
    table: Mapping[tuple[State, Event], State],
    events: type[Event],
    begin: tuple[State, Flags],
    agrees: Callable[[State, Flags], bool],
) -> dict[str, str | None]:
    """What `disagreement` says of each of the `faults` of `table`, by the name of the fault."""
    return {
        name: disagreement(faulty, events, begin, agrees)
        for name, faulty in faults(table, type(begin[0]), events)
    }


def documented_diagrams() -> list[str]:
    """The diagrams of docs/architecture.md."""
    return re.findall(r"```mermaid\n(.*?)\n```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
