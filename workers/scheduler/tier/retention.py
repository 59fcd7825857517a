"""The order in which entries leave the host tier: by what keeping them is expected to save.

Owns what is expected of the chains whose blocks a tier has, and the queues of entries that may go.
The value is the card's (`workers/scheduler/retention.py`), with the seconds since an entry's last
use; where nothing is expected the order is that of least recent use. Must not know pages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, final

from protocol.ids import BlockDigest
from workers.scheduler.retention import (
    CHOOSE_EVERY_S,
    OVER,
    PLAIN,
    ChainNames,
    ReturnClass,
    ReturnExpectation,
    class_of,
    value,
)
from workers.scheduler.tier.entry import Name, TierEntry

_SPARE_QUEUE: Final = 64


@final
class _Chain:
    """The cached prefix of an ended sequence: its digests, and when it is expected to be used
    again. This sequence is the last user of `num_blocks` of its blocks.
    """

    __slots__ = ("digests", "expected", "name", "num_blocks")

    def __init__(self, digests: Sequence[BlockDigest], name: object) -> None:
        self.digests = digests
        self.name = name
        self.expected = PLAIN
        self.num_blocks = 0


@final
class ExpectedReturns:
    """What is expected of the blocks that a tier has: what is expected of the chain that used each
    last. A state is wanted when the block before it is.
    """

    def __init__(self) -> None:
        self.block_size = 1
        self._users: dict[BlockDigest, _Chain] = {}
        self._names: ChainNames[_Chain] = ChainNames()

    def __repr__(self) -> str:
        return f"<ExpectedReturns of {len(self._users)} blocks>"

    def of(self, digest: BlockDigest) -> ReturnClass:
        """The class of a block, and of the state behind it."""
        chain = self._users.get(digest)
        return PLAIN if chain is None else chain.expected

    def use(self, digests: Sequence[BlockDigest], name: object) -> None:
        """A sequence has used these blocks, first to last, all of which a tier has."""
        chain = _Chain(digests, name)
        for digest in digests:
            self.forget(digest)
            self._users[digest] = chain
        chain.num_blocks = len(digests)
        if digests:
            self._names.enter(chain)

    def retain(
        self, name: object, conversation: object, expected: ReturnExpectation
    ) -> list[BlockDigest]:
        """Set what is expected of the chain of that name; see `KeptChains.retain`. Returns the
        blocks whose class may be another now: none if there is no such chain.
        """
        chain, before = self._names.pass_on(name, conversation)
        if chain is None:
            return []
        chain.expected = class_of(expected, len(chain.digests) * self.block_size)
        if before is None:
            return list(chain.digests)
        before.expected = OVER
        return [*chain.digests, *before.digests]

    def forget(self, digest: BlockDigest) -> None:
        """No tier has a block any more, or it has another user."""
        chain = self._users.pop(digest, None)
        if chain is not None:
            chain.num_blocks -= 1
            if not chain.num_blocks:
                self._names.leave(chain)


@final
class EvictionOrder:
    """The entries that may go, each in the queue of its class, least recently used first. Values
    fall with age, so of a class only the first can have the least.
    """

    def __init__(self, entries: Mapping[Name, TierEntry]) -> None:
        self._entries = entries
        self._queues: dict[ReturnClass, list[tuple[int, int, Name]]] = {}
        self._serial = 0
        self._num_queued = 0
        self._chosen: ReturnClass | None = None
        self._chosen_at = -math.inf
        self._next_value = math.inf

    def put(self, entry: TierEntry, expected: ReturnClass) -> None:
        """Give an entry its place. An earlier place is void; so is this while it may not go."""
        self._serial += 1
        entry.serial = self._serial
        place = entry.used_at, entry.serial, entry.name
        heappush(self._queues.setdefault(expected, []), place)
        self._num_queued += 1
        if self._num_queued > 4 * len(self._entries) + _SPARE_QUEUE:
            self._drop_void()

    def changed(self) -> None:
        """Classes of entries have changed: what was chosen may not be the least any more."""
        self._chosen = None

    def take(self, now: float) -> TierEntry | None:
        """The entry of least value, without its place; None if none may go."""
        chosen = self._chosen
        if chosen is not None and now - self._chosen_at <= CHOOSE_EVERY_S:
            first = self._first(chosen)
            if first is not None and value(chosen, now - first.used_s) <= self._next_value:
                return self._taken(chosen, first)
        least: tuple[float, int] | None = None
        found: TierEntry | None = None
        self._next_value = math.inf
        for expected in list(self._queues):
            first = self._first(expected)
            if first is None:
                continue
            rank = value(expected, now - first.used_s), first.used_at
            if least is None or rank < least:
                if least is not None:
                    self._next_value = least[0]
                least, found, self._chosen = rank, first, expected
            else:
                self._next_value = min(self._next_value, rank[0])
        if found is None:
            return None
        assert self._chosen is not None
        self._chosen_at = now
        return self._taken(self._chosen, found)

    def _first(self, expected: ReturnClass) -> TierEntry | None:
        """The first of a class that may go. Forgets void places before it."""
        queue = self._queues.get(expected, [])
        while queue:
            _, serial, name = queue[0]
            entry = self._entries.get(name)
            if entry is not None and entry.serial == serial and entry.may_go:
                return entry
            heappop(queue)
            self._num_queued -= 1
        self._queues.pop(expected, None)
        return None

    def _taken(self, expected: ReturnClass, entry: TierEntry) -> TierEntry:
        heappop(self._queues[expected])
        self._num_queued -= 1
        entry.serial = 0
        return entry

    def _drop_void(self) -> None:
        for expected, queue in list(self._queues.items()):
            kept = [
                place
                for place in queue
                if (found := self._entries.get(place[2])) is not None and found.serial == place[1]
            ]
            heapify(kept)
            self._queues[expected] = kept
            if not kept:
                del self._queues[expected]
        self._num_queued = sum(map(len, self._queues.values()))
