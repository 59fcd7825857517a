"""Which sequences wait while all places of an engine are taken, and which is admitted next.

Owns one line for each gateway, the bounds on the lines and the order of admission. Must not know
when a place is free, blocks or clocks.

Gateways that share an engine do not coordinate. In a single line the gateway that fills it first
would keep it full: it resubmits first whenever a place becomes free, and a slow gateway would get
none. So each gateway has a line of its own, and a place goes to the gateway with the fewest
admitted sequences; of equals, to the one whose last admission is longest ago. A gateway that is new
counts as admitted just now. So a gateway without admitted sequences is overtaken by each other one
at most once, however often that one connects again. Nothing is reserved for absent gateways, so a
slow or dead one delays no other.
"""

from collections.abc import Mapping
from typing import final

from workers.scheduler.sequence import Key, Sequence


@final
class IntakeQueue:
    """Room for `max_waiting` sequences, in equal parts for the gateways that have sequences here.

    Each of several gateways has room for one, even if that exceeds `max_waiting` together.
    """

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._by_key: dict[Key, Sequence] = {}
        self._lines: dict[int, dict[Key, Sequence]] = {}  # without empty lines
        self._turns: dict[int, int] = {}
        self._num_turns = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def __repr__(self) -> str:
        return f"<IntakeQueue {[[*line.values()] for line in self._lines.values()]}>"

    def find(self, key: Key) -> Sequence | None:
        """The waiting sequence with that key."""
        return self._by_key.get(key)

    def of_link(self, link: int) -> list[Sequence]:
        """The line of that link."""
        return [*self._lines.get(link, {}).values()]

    def has_room(self, link: int, num_admitted: Mapping[int, int]) -> bool:
        """Whether one more sequence of that link may wait here. A refused link always has other
        sequences here or admitted; when one of them ends, it can submit again.
        """
        num_links = len({link, *num_admitted, *self._lines})
        num_own = len(self._lines.get(link, ()))
        if num_own == 0 and num_links > 1:
            return True
        return num_own < self._max_waiting // num_links and len(self) < self._max_waiting

    def add(self, sequence: Sequence) -> None:
        """Append to the line of its link."""
        self._by_key[sequence.key] = sequence
        self._lines.setdefault(sequence.link, {})[sequence.key] = sequence
        self._turns.setdefault(sequence.link, self._num_turns)

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence that ended."""
        del self._by_key[sequence.key]
        line = self._lines[sequence.link]
        del line[sequence.key]
        if not line:
            del self._lines[sequence.link]

    def admit(self, num_admitted: Mapping[int, int]) -> Sequence | None:
        """Take out the next one, given the admitted sequences of each link; None if none waits."""
        if not self._lines:
            return None
        turns = self._turns
        link = min(self._lines, key=lambda link: (num_admitted.get(link, 0), turns[link]))
        self._num_turns = turns[link] = self._num_turns + 1
        sequence = next(iter(self._lines[link].values()))
        self.remove(sequence)
        return sequence

    def forget(self, link: int) -> None:
        """Drop the record of a link that is gone and has no line."""
        self._turns.pop(link, None)
