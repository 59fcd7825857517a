"""Snapshots of recurrent states: which prefixes have one, in which slot, and which one goes.

Owns the slots and the rule of eviction. A recurrent state exists only where it was saved, so a hit
is the deepest snapshot at or below the cached keys and values. A snapshot is useless without those:
it is forgotten with them. Must not know states, devices, tokens or time.

Which one goes: that which spares the fewest tokens, those beyond the snapshot before it, times how
often it should be hit. Of the last one of a prefix that falls with every snapshot that was saved
since it was used: whose next turn has not come for long is done. One that a longer one follows is
hit only if a prompt parts in between, and that is rare. Where several part (a junction, Pan et al.,
Marconi, 2024) a further one comes as often as they came.

Of one within an answer nothing says whether a turn will begin behind it: the answer is under way,
or one of several, or a template leaves out what was reasoned. So it takes the slots that hardly
anything else needs, until a turn has begun there.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from protocol.ids import BlockDigest
from workers.scheduler.block_events import BlockEvents
from workers.scheduler.integrity import require


class Hit(NamedTuple):
    """`num_blocks` of a prefix, whose state is in `slot`; pinned until `unpin`."""

    num_blocks: int
    slot: int


_PARTS_BEFORE: Final = 0.05
"""How often a prompt goes on before the last snapshot of its prefix, rather than behind it: agents'
turns grow, few are taken back."""


_UNSURE: Final = 0.02
"""The same of one within an answer. With a half, or with the share of answers that were gone on
with, long answers pushed out the ends of prompts where slots are few: 24 states found 67 to 80 % of
a fleet's prompts instead of 83 %. With this 64 states find as much as with a half, but for 0.5
points."""


_GROWS: Final = 0.2
"""The same of one behind a whole prompt, which spares less than 65 tokens beside the end before it:
a template may leave out the opening of an answer's reasoning, with which prompts end. It takes the
slots of answers. With a half it took those of ends: twelve agents lost 0.63 points of what full
attention reuses, 0.56 with a fifth (`python -m benchmarks.micro reuse`)."""


class Place(Enum):
    """Where a snapshot lies: at the `END` of a prompt, or where two part; `WITHIN` one; behind the
    `WHOLE` of it, or in an `ANSWER`, where nothing has begun yet: what begins there makes it an
    end.
    """

    END = 1
    WITHIN = 2
    ANSWER = 3
    WHOLE = 4

    @property
    def is_unsure(self) -> bool:
        """Whether nothing has begun there yet: it takes no worth from the end before it."""
        return self in (Place.ANSWER, Place.WHOLE)


@dataclass(slots=True, eq=False)
class _Snapshot:
    """`digest` of the last block of the prefix, whose next shorter snapshot is `parent`; `children`
    go on behind this one.
    """

    digest: BlockDigest
    num_blocks: int
    slot: int
    place: Place
    parent: _Snapshot | None
    saved_at: int
    used_at: int
    pins: int = 1
    is_saved: bool = False
    children: set[_Snapshot] = field(default_factory=set)

    def worth(self, now: int) -> float:
        """Blocks that it should spare the prompts that come while the next state is saved."""
        base = self.base
        spared = self.num_blocks - (0 if base is None else base.num_blocks)
        since_use = 1 + now - self.used_at
        if self.place.is_unsure:
            return spared * (_GROWS if self.place is Place.WHOLE else _UNSURE) / since_use
        num_behind = sum([not child.place.is_unsure for child in self.children])
        if num_behind == 0:
            return spared * (1.0 if self.place is Place.END else _PARTS_BEFORE) / since_use
        parting = (num_behind - 1) / (1 + now - self.saved_at)
        return spared * max(parting, _PARTS_BEFORE / since_use)

    @property
    def base(self) -> _Snapshot | None:
        """What is left if this one goes; of an answer one snapshot stays, the last."""
        found = self.parent
        while self.place is Place.ANSWER and found is not None and found.place is Place.ANSWER:
            found = found.parent
        return found


class SnapshotPool:
    """`num_slots` states. Prefixes are given by the digests of their blocks, first to last. The
    `events` hear which ones can be hit.
    """

    def __init__(self, num_slots: int, events: BlockEvents | None = None) -> None:
        self.events = events or BlockEvents()
        self.num_slots = num_slots
        # The first are a card's, the last may be the host's: those are taken last.
        self._free = list(range(num_slots))[::-1]
        self._snapshots: dict[BlockDigest, _Snapshot] = {}
        self._by_slot: dict[int, _Snapshot] = {}
        self._num_saved = 0

    @property
    def num_free(self) -> int:
        """Slots that hold nothing."""
        return len(self._free)

    @property
    def num_pinned(self) -> int:
        """Slots that are read or written by a step."""
        return sum(found.pins > 0 for found in self._by_slot.values())

    @property
    def saved(self) -> list[BlockDigest]:
        """The ends of all prefixes that can be hit."""
        return [digest for digest, found in self._snapshots.items() if found.is_saved]

    def depths(self, digests: Sequence[BlockDigest]) -> list[int]:
        """How many blocks of this prefix each of its snapshots covers, rising: what events tell."""
        found = (self._snapshots.get(digest) for digest in digests)
        return [each.num_blocks for each in found if each is not None and each.is_saved]

    def __contains__(self, digest: BlockDigest) -> bool:
        """Whether the state behind this block is there or on its way."""
        return digest in self._snapshots

    def depth(self, digests: Sequence[BlockDigest]) -> int:
        """How many blocks of this prefix its deepest snapshot covers."""
        found = (self._snapshots.get(digest) for digest in reversed(digests))
        return next((each.num_blocks for each in found if each is not None and each.is_saved), 0)

    def hit(self, digests: Sequence[BlockDigest], *, is_next: bool = True) -> Hit | None:
        """The deepest snapshot of the prefix, whose keys and values are all there. It stays in its
        slot until `unpin`. Unless it `is_next`, the same sequence goes on that was there before.
        """
        for digest in reversed(digests):
            found = self._snapshots.get(digest)
            if found is not None and found.is_saved:
                if is_next and found.place.is_unsure:
                    found.place = Place.END
                found.used_at = self._num_saved
                found.pins += 1
                return Hit(found.num_blocks, found.slot)
        return None

    def reserve(self, digests: Sequence[BlockDigest], place: Place = Place.END) -> int | None:
        """A slot for the state behind these blocks, pinned until `save` or `drop`. None if it is
        there or on its way, or if all others are pinned or worth more. An answer that has one gives
        it up for the next, at once if no slot is free.
        """
        now = self._num_saved
        if digests[-1] in self._snapshots:
            return None
        parent = self._deepest(digests[:-1])
        made = _Snapshot(digests[-1], len(digests), 0, place, parent, now, now)
        if not self._free and not (self._give_up_for(made) or self._evict_for(made)):
            return None
        # The eviction may have taken its parent.
        made.slot, made.parent = self._free.pop(), self._deepest(digests[:-1])
        self._snapshots[made.digest] = self._by_slot[made.slot] = made
        if made.parent is not None:
            made.parent.children.add(made)
        return made.slot

    def save(self, slot: int) -> None:
        """The state is in the slot: from now on it is hit."""
        found = self._by_slot[slot]
        if self._snapshots.get(found.digest) is found:
            found.is_saved = True
            self.events.saved(found.digest)
            self._give_up_for(found)
        if not found.place.is_unsure:  # those of one answer are one, which moves
            self._num_saved += 1
        self.unpin(slot)

    def drop(self, slot: int) -> None:
        """A reserved slot that is not needed; it may have been forgotten meanwhile."""
        found = self._by_slot[slot]
        found.pins -= 1
        if self._snapshots.get(found.digest) is found:
            self._remove(found)
        else:
            self._release(found)

    def unpin(self, slot: int) -> None:
        """The state of a hit was read."""
        found = self._by_slot[slot]
        found.pins -= 1
        if found.pins == 0 and self._snapshots.get(found.digest) is not found:
            self._release(found)  # it was forgotten while it was read

    def forget(self, digest: BlockDigest) -> None:
        """The keys and values of this block are gone: so is the snapshot that ends in it."""
        if (found := self._snapshots.get(digest)) is not None:
            self._remove(found)

    def check_integrity(self, cached: Container[BlockDigest]) -> None:
        """Raise `IntegrityError` unless each slot has one owner, and each saved state its block."""
        slots = sorted([*self._free, *self._by_slot])
        require(slots == list(range(self.num_slots)), f"slots {slots} of {self.num_slots}")
        for digest, found in self._snapshots.items():
            require(self._by_slot.get(found.slot) is found, f"two snapshots in slot {found.slot}")
            is_there = digest in cached or not found.is_saved
            require(is_there, f"the snapshot in slot {found.slot} outlived its block")
            parent = found.parent
            is_linked = parent is None or (
                self._snapshots.get(parent.digest) is parent and found in parent.children
            )
            require(is_linked, f"the snapshot in slot {found.slot} has lost its parent")

    def _deepest(self, digests: Sequence[BlockDigest]) -> _Snapshot | None:
        found = map(self._snapshots.get, reversed(digests))
        return next((each for each in found if each is not None), None)

    def _give_up_for(self, made: _Snapshot) -> bool:
        """Remove the snapshot before this one of the same answer; whether a slot is free then."""
        before = made.parent
        if made.place is not Place.ANSWER or before is None or before.place is not Place.ANSWER:
            return False
        if before.pins > 0:
            return False
        self._remove(before)
        return True

    def _evict_for(self, made: _Snapshot) -> bool:
        """Free the slot of what is worth least; whether there was one that is worth less."""
        now = self._num_saved
        idle = [each for each in self._snapshots.values() if each.pins == 0]
        least = min(idle, key=lambda each: (each.worth(now), each.used_at), default=None)
        if least is None or least.worth(now) > made.worth(now):
            return False
        self._remove(least)
        return True

    def _remove(self, found: _Snapshot) -> None:
        """No longer hit; its slot is free once no reader is left."""
        del self._snapshots[found.digest]
        if found.is_saved:
            self.events.forgotten(found.digest)
        if found.parent is not None:
            found.parent.children.remove(found)
            found.parent.children |= found.children
        for child in found.children:
            child.parent = found.parent
        found.children.clear()
        if found.pins == 0:
            self._release(found)

    def _release(self, found: _Snapshot) -> None:
        del self._by_slot[found.slot]
        self._free.append(found.slot)
