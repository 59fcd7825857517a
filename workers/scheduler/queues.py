"""The sequences that wait, and the sequences that run.

Owns the two queues and the names of the live sequences. Must not know blocks or budgets.

Running sequences are in the order of their first starts, waiting ones in the order of arrival. A
preemption puts the latest running sequence before all waiting ones, so preempted sequences start
again in their old order, before any new one. So the runner never keeps the state of more sequences
than may run.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import final

from workers.scheduler.integrity import require
from workers.scheduler.sequence import Key, Sequence


@final
class Queues:
    """The queues. All operations are O(1), except those over a whole queue. Only this class changes
    `waiting`. `num_by_link` counts the live sequences of each link that has any.
    """

    def __init__(self) -> None:
        self.running: OrderedDict[int, Sequence] = OrderedDict()
        self.waiting: OrderedDict[int, Sequence] = OrderedDict()
        self.num_by_link: dict[int, int] = {}
        self._by_key: dict[Key, Sequence] = {}
        self._num_starts = 0

    def __repr__(self) -> str:
        return f"<Queues running={list(self.running)} waiting={list(self.waiting)}>"

    @property
    def num_waiting(self) -> int:
        """Sequences that hold no blocks; those in the intake queue do not count."""
        return len(self.waiting)

    @property
    def num_live(self) -> int:
        """Sequences that run or wait."""
        return len(self._by_key)

    def find(self, key: Key) -> Sequence | None:
        """The live sequence of that name."""
        return self._by_key.get(key)

    def live(self, seq: int) -> Sequence | None:
        """The live sequence of that number, running or waiting."""
        return self.running.get(seq) or self.waiting.get(seq)

    def of_link(self, link: int) -> list[Sequence]:
        """The live sequences of a link, oldest first."""
        return [sequence for sequence in self._by_key.values() if sequence.link == link]

    def add(self, sequence: Sequence) -> None:
        """Append a new sequence to the waiting ones."""
        link, num_by_link = sequence.link, self.num_by_link
        num_by_link[link] = num_by_link.get(link, 0) + 1
        self._by_key[sequence.key] = sequence
        self.waiting[sequence.seq] = sequence

    def start(self, sequence: Sequence) -> None:
        """Move a waiting sequence behind the running ones."""
        del self.waiting[sequence.seq]
        self.running[sequence.seq] = sequence
        if not sequence.turn:
            self._num_starts = sequence.turn = self._num_starts + 1

    def put_back_latest(self) -> Sequence:
        """Move the latest running sequence to the front of the waiting ones."""
        seq, sequence = self.running.popitem()
        self.waiting[seq] = sequence
        self.waiting.move_to_end(seq, last=False)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that has ended."""
        del self._by_key[sequence.key]
        link, num_by_link = sequence.link, self.num_by_link
        num_by_link[link] -= 1
        if not num_by_link[link]:
            del num_by_link[link]
        queue = self.running if sequence.seq in self.running else self.waiting
        del queue[sequence.seq]

    def check_integrity(self) -> None:
        """Raise `IntegrityError` unless queues are in order and waiting sequences hold nothing."""
        lives = [*self.running.values(), *self.waiting.values()]
        turns = [sequence.turn for sequence in lives if sequence.turn]
        require(turns == sorted(turns), f"not in order of their starts: {self!r}")
        arrivals = [0 if sequence.turn else sequence.seq for sequence in self.waiting.values()]
        require(arrivals == sorted(arrivals), f"not in order of arrival: {self!r}")
        named = {sequence.seq for sequence in self._by_key.values()}
        numbers = {sequence.seq for sequence in lives}
        require(named == numbers, f"{self!r} differs from the named {sorted(named)}")
        num_by_link = Counter(sequence.link for sequence in self._by_key.values())
        require(num_by_link == self.num_by_link, f"{self!r} counts {self.num_by_link}")
        for sequence in self.waiting.values():
            idle = not sequence.table.block_ids and sequence.num_planned == 0
            require(idle, f"{sequence!r} waits but holds {sequence.table!r}")

    def check_progress(self, num_pending: Mapping[int, int]) -> None:
        """Raise `IntegrityError` unless exactly the tokens that are known, and those that steps in
        flight sample (`num_pending` by sequence), are due.
        """
        for sequence in self._by_key.values():
            num_tokens = len(sequence.token_ids) + num_pending.get(sequence.seq, 0)
            require(sequence.num_due == min(num_tokens, sequence.max_due), f"{sequence!r}: due")
            require(sequence.num_planned <= sequence.num_due, f"{sequence!r}: planned")
