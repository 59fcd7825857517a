"""Snapshots of recurrent states: which prefixes have one, in which slot, and which is evicted.

Owns the slots and the rule of eviction. A recurrent state exists only where it was saved, so a hit
is the deepest snapshot at or below the cached keys and values. A snapshot is useless without those,
so it is forgotten with them. Must not know states, devices, tokens or time.

The snapshot of the least worth is evicted. Its worth is the number of tokens that it spares, beyond
those of the snapshot before it, times how often it should be hit:

- The last snapshot of a prefix: less with every snapshot that was saved since it was used, because
  a conversation whose next turn has not come for long is over.
- One that a longer snapshot follows is hit only if a prompt parts in between, which is rare.
- One that several snapshots follow (a junction; Pan et al., Marconi, 2024): a further prompt comes
  as often as these came.
- One within an answer: little, until a turn begins behind it. The answer may still be under way, or
  be one of several, or the template may leave its reasoning out of the next prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from protocol.ids import BlockDigest
from workers.scheduler.block_events import BlockEvents
from workers.scheduler.integrity import require
from workers.scheduler.tier import EntryKind, HostTier, NoHostTier


class Hit(NamedTuple):
    """The state behind `num_blocks` blocks of a prefix is in `slot`, pinned until `unpin`."""

    num_blocks: int
    slot: int


_PARTS_BEFORE: Final = 0.05
"""How often a prompt begins from a snapshot that is not the last of its prefix, relative to the
last: agents' turns grow, and few are taken back."""


_UNSURE: Final = 0.02
"""How often a prompt begins from a snapshot within an answer, relative to the last one of its
prefix. With 0.5, or with the measured share of answers that a next turn continued, long answers
evicted the ends of prompts where slots are few: 24 states found 67 to 80 % of a fleet's prompts
instead of 83 %. With this value 64 states find at most 0.5 points less than with 0.5."""


_GROWS: Final = 0.2
"""How often a prompt begins from a snapshot behind a whole prompt, relative to the last one of its
prefix. It spares less than 65 tokens beside the prompt's end before it, and a template may leave
out what prompts end with, the opening of the answer's reasoning. So it competes with snapshots of
answers. With 0.5 it evicted ends: twelve agents lost 0.63 points of what full attention reuses, and
0.56 with 0.2 (`python -m benchmarks.micro reuse`).
"""


class SnapshotPlace(Enum):
    """The place of a snapshot: at the `END` of a prompt or a junction, `WITHIN` a prompt, behind
    the `WHOLE` prompt, or in an `ANSWER`. When a sequence begins from one of the last two, it
    becomes an `END`.
    """

    END = 1
    WITHIN = 2
    ANSWER = 3
    WHOLE = 4

    @property
    def is_unsure(self) -> bool:
        """Whether no sequence has begun from it yet. Then it takes no worth from the snapshot
        before it.
        """
        return self in (SnapshotPlace.ANSWER, SnapshotPlace.WHOLE)


@dataclass(slots=True, eq=False)
class _Snapshot:
    """`digest` is that of the prefix's last block. `parent` is the next shorter snapshot of the
    prefix; `children` are those whose parent this is. `saved_at` and `used_at` count snapshots
    saved so far, in place of time.
    """

    digest: BlockDigest
    num_blocks: int
    slot: int
    place: SnapshotPlace
    parent: _Snapshot | None
    saved_at: int
    used_at: int
    pins: int = 1
    is_saved: bool = False
    children: set[_Snapshot] = field(default_factory=set)

    def worth(self, now: int) -> float:
        """How many blocks it should spare prompts until the next snapshot is saved."""
        base = self.base
        spared = self.num_blocks - (0 if base is None else base.num_blocks)
        since_use = 1 + now - self.used_at
        if self.place.is_unsure:
            return spared * (_GROWS if self.place is SnapshotPlace.WHOLE else _UNSURE) / since_use
        num_behind = sum([not child.place.is_unsure for child in self.children])
        if num_behind == 0:
            return spared * (1.0 if self.place is SnapshotPlace.END else _PARTS_BEFORE) / since_use
        parting = (num_behind - 1) / (1 + now - self.saved_at)
        return spared * max(parting, _PARTS_BEFORE / since_use)

    @property
    def base(self) -> _Snapshot | None:
        """The snapshot that prompts would begin from without this one. An answer keeps only its
        last snapshot, so its earlier ones do not count.
        """
        found = self.parent
        while (
            self.place is SnapshotPlace.ANSWER
            and found is not None
            and found.place is SnapshotPlace.ANSWER
        ):
            found = found.parent
        return found


class SnapshotPool:
    """`num_slots` states. A prefix is given by the digests of its blocks, first to last. `events`
    record which prefixes can be hit. `released` is called with each slot that becomes free.
    """

    def __init__(self, num_slots: int) -> None:
        self.events = BlockEvents()
        self.tier: HostTier | NoHostTier = NoHostTier()
        self.released: Callable[[int], None] | None = None
        self.num_slots = num_slots
        self._free = list(range(num_slots))[::-1]
        self._snapshots: dict[BlockDigest, _Snapshot] = {}
        self._by_slot: dict[int, _Snapshot] = {}
        self._num_saved = 0

    @property
    def pinned(self) -> list[int]:
        """The slots that a planned step reads or writes."""
        return [slot for slot, found in self._by_slot.items() if found.pins > 0]

    @property
    def used(self) -> list[int]:
        """The slots that are not free."""
        return list(self._by_slot)

    def slot_of(self, digest: BlockDigest) -> int:
        """The slot of the saved snapshot that ends in this block."""
        return self._snapshots[digest].slot

    @property
    def saved(self) -> list[BlockDigest]:
        """The ends of all prefixes that can be hit."""
        return [digest for digest, found in self._snapshots.items() if found.is_saved]

    def __contains__(self, digest: BlockDigest) -> bool:
        """Whether the state behind this block is there or on its way."""
        return digest in self._snapshots

    def depth(self, digests: Sequence[BlockDigest]) -> int:
        """How many blocks of this prefix its deepest snapshot covers."""
        found = (self._snapshots.get(digest) for digest in reversed(digests))
        return next((each.num_blocks for each in found if each is not None and each.is_saved), 0)

    def hit(self, digests: Sequence[BlockDigest], *, is_next: bool = True) -> Hit | None:
        """The deepest snapshot of a prefix whose keys and values are all cached; pinned until
        `unpin`. Pass `is_next` False for a sequence that continues after a preemption: that is no
        new turn.
        """
        for digest in reversed(digests):
            found = self._snapshots.get(digest)
            if found is not None and found.is_saved:
                if is_next and found.place.is_unsure:
                    found.place = SnapshotPlace.END
                    self.tier.settled(digest)
                found.used_at = self._num_saved
                found.pins += 1
                return Hit(found.num_blocks, found.slot)
        return None

    def reserve(
        self, digests: Sequence[BlockDigest], place: SnapshotPlace = SnapshotPlace.END
    ) -> int | None:
        """A slot for the state behind these blocks, pinned until `save` or `drop`. None if the
        state is there or on its way, or if all snapshots are pinned or worth more. A snapshot of an
        answer replaces the one before it in the same answer: here if no slot is free, else when it
        is saved.
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
        """The state is in the slot; it can be hit from now on."""
        found = self._by_slot[slot]
        if self._snapshots.get(found.digest) is found:
            found.is_saved = True
            is_final = found.place is not SnapshotPlace.ANSWER
            if not self.tier.saved(found.digest, slot, is_final=is_final):
                self.events.saved(found.digest)
            self._give_up_for(found)
        if not found.place.is_unsure:  # all snapshots of one answer count as one
            self._num_saved += 1
        self.unpin(slot)

    def drop(self, slot: int) -> None:
        """Give back a reserved slot; its snapshot may have been forgotten meanwhile."""
        found = self._by_slot[slot]
        found.pins -= 1
        if self._snapshots.get(found.digest) is found:
            self._remove(found)
        else:
            self._release(found)

    def pin(self, slot: int) -> None:
        """Keep the state of a slot, which holds one, until `unpin`."""
        self._by_slot[slot].pins += 1

    def unpin(self, slot: int) -> None:
        """The state of a hit was read: its slot may be reused."""
        found = self._by_slot[slot]
        found.pins -= 1
        if found.pins == 0 and self._snapshots.get(found.digest) is not found:
            self._release(found)  # the snapshot was forgotten while it was read

    def forget(self, digest: BlockDigest) -> None:
        """The keys and values of this block are evicted: forget the snapshot that ends in it."""
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
        """Remove the snapshot before this one in the same answer. Returns whether it did."""
        before = made.parent
        if (
            made.place is not SnapshotPlace.ANSWER
            or before is None
            or before.place is not SnapshotPlace.ANSWER
        ):
            return False
        if before.pins > 0:
            return False
        self._remove(before)
        return True

    def _evict_for(self, made: _Snapshot) -> bool:
        """Evict the snapshot of the least worth, unless that is worth more than `made`. Returns
        whether it did.
        """
        now, least = self._num_saved, self._least()
        if least is None or least.worth(now) > made.worth(now):
            return False
        self._remove(least)
        return True

    def evict_least(self) -> bool:
        """Evict the snapshot of the least worth, whatever that is. Returns whether there was one
        that is not pinned.
        """
        least = self._least()
        if least is not None:
            self._remove(least)
        return least is not None

    def _least(self) -> _Snapshot | None:
        """The snapshot of the least worth among those that are not pinned."""
        now = self._num_saved
        idle = [each for each in self._snapshots.values() if each.pins == 0]
        return min(idle, key=lambda each: (each.worth(now), each.used_at), default=None)

    def _remove(self, found: _Snapshot) -> None:
        """Make a snapshot unfindable. Its slot is free once it is not pinned any more."""
        del self._snapshots[found.digest]
        if found.is_saved and not self.tier.left(EntryKind.STATE, found.digest):
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
        if self.released is not None:
            self.released(found.slot)
