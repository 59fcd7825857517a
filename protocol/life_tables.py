"""Tables of lives: the next state for each possible pair of a state and an event.

Owns how an impossible pair is refused, and how a table is drawn for the documentation. Must not
know what the states are of.
"""

from collections.abc import Iterable
from enum import Enum
from typing import NoReturn, TypeVar


class LifeEnum(Enum):
    """States or events. They are hashed by their identity: `Enum` hashes their names, which costs
    two calls of Python in each look-up of a transition. Python 3.11 finds a member on its class in
    880 instructions and a name of a module in 5, so members that every request uses are also names
    of their module.
    """

    __hash__ = object.__hash__


State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)


class ImpossibleEventError(Exception):
    """An event that cannot happen in a state: a fault of the program, never of its input."""


class LifeTable(dict[tuple[State, Event], State]):
    """The next states. A transition is a mere look-up, which costs no call on the way of a request;
    a pair that the table lacks raises `ImpossibleEventError`.
    """

    def __missing__(self, pair: tuple[State, Event]) -> NoReturn:
        state, event = pair
        raise ImpossibleEventError(f"{event.name} in {state.name}")

    def diagram(
        self,
        first: State,
        *,
        without: Event | None = None,
        ends: Iterable[State] = (),
        direction: str = "",
    ) -> str:
        """A mermaid state diagram that begins at `first`, without events that change nothing, and
        without the event that leads from every state to one state. Lives end in `ends`.
        """
        lines = ["stateDiagram-v2", *([f"    direction {direction}"] if direction else [])]
        lines.append(f"    [*] --> {_titled(first)}")
        for state in type(first):
            arrows: dict[State, list[str]] = {}
            for (begin, event), to in sorted(self.items(), key=_order_of_events):
                if begin is state and to is not state and event is not without:
                    arrows.setdefault(to, []).append(event.value)
            for to, why in arrows.items():
                lines.append(f"    {_titled(state)} --> {_titled(to)}: {', or '.join(why)}")
        return "\n".join([*lines, *(f"    {_titled(state)} --> [*]" for state in ends)])


def _order_of_events(entry: tuple[tuple[State, Event], State]) -> int:
    """A sort key: events in the order in which their enumeration lists them."""
    (_, event), _ = entry
    return list(type(event)).index(event)


def _titled(state: Enum) -> str:
    return state.name.title().replace("_", "")
