"""Snapshots of recurrent states: which prefixes have one, in which slot, and which one goes.

Owns the slots and the rule of eviction. A recurrent state exists only where it was saved, so a hit
is the deepest snapshot at or below the cached keys and values. A snapshot is useless without those:
it is forgotten with them. Must not know states, devices, tokens or time.

What a snapshot is worth: the tokens that it spares, times its uses, less with every snapshot that
was saved since the last use. Where two prefixes part (a junction, Pan et al., Marconi, 2024) it is
worth more than all others: the next fork finds it too.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from workers.scheduler.integrity import require


class Hit(NamedTuple):
    """`num_blocks` of a prefix, whose state is in `slot`; pinned until `unpin`."""

    num_blocks: int
    slot: int


@dataclass(slots=True)
class _Snapshot:
    """`digest` of the last block of the prefix; `children`: snapshots whose prefix goes on here."""

    digest: bytes
    num_blocks: int
    slot: int
    parent: bytes | None
    used_at: int
    uses: int = 1
    children: int = 0
    pins: int = 1
    is_saved: bool = False


class SnapshotPool:
    """`num_slots` states. Prefixes are given by the digests of their blocks, first to last."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._free = list(range(num_slots))
        self._snapshots: dict[bytes, _Snapshot] = {}
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

    def depths(self, digests: Sequence[bytes]) -> list[int]:
        """How many blocks of this prefix each of its snapshots covers, rising: what events tell."""
        found = (self._snapshots.get(digest) for digest in digests)
        return [each.num_blocks for each in found if each is not None and each.is_saved]

    def __contains__(self, digest: bytes) -> bool:
        """Whether the state behind this block is there or on its way."""
        return digest in self._snapshots

    def depth(self, digests: Sequence[bytes]) -> int:
        """How many blocks of this prefix its deepest snapshot covers."""
        found = (self._snapshots.get(digest) for digest in reversed(digests))
        return next((each.num_blocks for each in found if each is not None and each.is_saved), 0)

    def hit(self, digests: Sequence[bytes]) -> Hit | None:
        """The deepest snapshot of the prefix, whose keys and values are all there. It stays in its
        slot until `unpin`.
        """
        for digest in reversed(digests):
            found = self._snapshots.get(digest)
            if found is not None and found.is_saved:
                found.uses += 1
                found.used_at = self._num_saved
                found.pins += 1
                return Hit(found.num_blocks, found.slot)
        return None

    def reserve(self, digests: Sequence[bytes]) -> int | None:
        """A slot for the state behind these blocks, pinned until `save` or `drop`. None if it is
        there or on its way, and if all others are pinned.
        """
        digest = digests[-1]
        if digest in self._snapshots or not (self._free or self._evict()):
            return None
        # Behind the eviction, which may have taken it.
        parent = next((each for each in reversed(digests[:-1]) if each in self._snapshots), None)
        made = _Snapshot(digest, len(digests), self._free.pop(), parent, self._num_saved)
        self._snapshots[digest] = self._by_slot[made.slot] = made
        if parent is not None:
            self._snapshots[parent].children += 1
        return made.slot

    def save(self, slot: int) -> None:
        """The state is in the slot: from now on it is hit."""
        self._by_slot[slot].is_saved = True
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

    def forget(self, digest: bytes) -> None:
        """The keys and values of this block are gone: so is the snapshot that ends in it."""
        if (found := self._snapshots.get(digest)) is not None:
            self._remove(found)

    def check_integrity(self, cached: Container[bytes]) -> None:
        """Raise `IntegrityError` unless each slot has one owner, and each saved state its block."""
        slots = sorted([*self._free, *self._by_slot])
        require(slots == list(range(self._num_slots)), f"slots {slots} of {self._num_slots}")
        for digest, found in self._snapshots.items():
            require(self._by_slot.get(found.slot) is found, f"two snapshots in slot {found.slot}")
            is_there = digest in cached or not found.is_saved
            require(is_there, f"the snapshot in slot {found.slot} outlived its block")

    def _evict(self) -> bool:
        """Free the slot of what is worth least; whether there was one."""
        idle = [each for each in self._snapshots.values() if each.pins == 0]
        if not idle:
            return False
        self._remove(min(idle, key=self._worth))
        return True

    def _worth(self, found: _Snapshot) -> tuple[bool, float, int]:
        age = self._num_saved - found.used_at
        return found.children > 1, found.num_blocks * found.uses / (1 + age), found.used_at

    def _remove(self, found: _Snapshot) -> None:
        """No longer hit; its slot is free once no reader is left."""
        del self._snapshots[found.digest]
        if found.parent is not None and (parent := self._snapshots.get(found.parent)) is not None:
            parent.children -= 1
        if found.pins == 0:
            self._release(found)

    def _release(self, found: _Snapshot) -> None:
        del self._by_slot[found.slot]
        self._free.append(found.slot)
