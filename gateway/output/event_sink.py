"""Who is told of a turn's events.

Owns that this may change while the turn goes on. Must not know who it is, nor what is told.

A function that passes each event on to whoever listens now would cost every token a call and three
objects that are in no cache. So whoever tells often looks here for whom to tell.
"""

from collections.abc import Callable
from typing import Self, final

from gateway.api import TurnEvent

Tell = Callable[[TurnEvent], object]


@final
class EventSink:
    """To be called as one function, or asked each time for `tell`, which is that function."""

    __slots__ = ("tell",)

    def __init__(self, tell: Tell) -> None:
        self.tell = tell

    def __call__(self, event: TurnEvent) -> None:
        self.tell(event)

    @classmethod
    def of(cls, tell: Tell) -> Self:
        """The audience that `tell` is, or one that never changes."""
        return tell if isinstance(tell, cls) else cls(tell)
