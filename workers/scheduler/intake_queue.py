"""Who waits while all places of an engine are taken, and who is let in next.

Owns the lines at the door, one for each gateway, the bounds on them and whose turn it is. Must not
know when a place is free, blocks or clocks.

Gateways that share an engine know nothing of each other. In one line in order of arrival, whoever
fills it first keeps it full: a place that frees is taken by who comes again first, and one that is
slow, or out of step, gets none. So each has a line of its own, and a place goes to the gateway that
has the fewest sequences inside; of equals, to the one that was let in longest ago. One with none
inside is passed by each of the others once at most. Nothing is kept for those who are not here, so
one that is slow or gone holds up nobody.
"""

from collections.abc import Mapping
from typing import final

from workers.scheduler.sequence import Key, Sequence


@final
class IntakeQueue:
    """Room for `max_waiting` sequences, in equal parts for the gateways that are here; each finds
    room for one, as long as it is not alone, also where that is more than `max_waiting` together.
    """

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._by_key: dict[Key, Sequence] = {}
        self._lines: dict[int, dict[Key, Sequence]] = {}  # none is empty
        self._turns: dict[int, int] = {}
        self._num_turns = 0
        self.find = self._by_key.get

    def __len__(self) -> int:
        return len(self._by_key)

    def __repr__(self) -> str:
        return f"<IntakeQueue {[[*line.values()] for line in self._lines.values()]}>"

    def of_link(self, link: int) -> list[Sequence]:
        """The line of that link."""
        return [*self._lines.get(link, {}).values()]

    def has_room(self, link: int, num_inside: Mapping[int, int]) -> bool:
        """Whether one more of that link may wait here. Who may not has others here or inside, and
        hears of their end.
        """
        num_links = len({link, *num_inside, *self._lines})
        num_own = len(self._lines.get(link, ()))
        if num_own == 0 and num_links > 1:
            return True
        return num_own < self._max_waiting // num_links and len(self) < self._max_waiting

    def add(self, sequence: Sequence) -> None:
        """It waits behind those of its link."""
        self._by_key[sequence.key] = sequence
        self._lines.setdefault(sequence.link, {})[sequence.key] = sequence

    def remove(self, sequence: Sequence) -> None:
        """It waits no more."""
        del self._by_key[sequence.key]
        line = self._lines[sequence.link]
        del line[sequence.key]
        if not line:
            del self._lines[sequence.link]

    def admit(self, num_inside: Mapping[int, int]) -> Sequence | None:
        """Take out whose turn it is, by how many each link has inside; None if nobody waits."""
        if not self._lines:
            return None
        turns = self._turns
        link = min(self._lines, key=lambda link: (num_inside.get(link, 0), turns.get(link, 0)))
        self._num_turns = turns[link] = self._num_turns + 1
        sequence = next(iter(self._lines[link].values()))
        self.remove(sequence)
        return sequence

    def forget(self, link: int) -> None:
        """That link is gone, and nothing of it waits."""
        self._turns.pop(link, None)
