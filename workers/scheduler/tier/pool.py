"""The pages of the host tier and their owners.

Owns the entries of the tier, the pages that each has, and which entry goes when pages are needed.
A page has at most one owner: an entry or a swapped sequence. Must not know what a page holds, nor
when it is copied.

An entry has its prefix on the host: the entry of the block before it is stored before it and goes
after it. So whatever is found can be used, as far as it is found.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from protocol.ids import BlockDigest
from workers.scheduler.integrity import require
from workers.scheduler.retention import OVER
from workers.scheduler.tier.entry import EntryKind, Name, TierEntry
from workers.scheduler.tier.index import Index, PageRecord
from workers.scheduler.tier.retention import EvictionOrder, ExpectedReturns
from workers.scheduler.tier.tier_state import BlockEvent, TierState


@final
class TierPool:
    """`num_pages` pages, of which `num_open` can be used so far, and `num_usable` at last. `index`
    keeps what the pages hold beyond the engine's life; None in tests of the pool alone. `now` is
    the time in seconds, of the same clock in all calls.
    """

    def __init__(self, num_pages: int, index: Index | None = None) -> None:
        self.num_pages = self.num_usable = num_pages
        self.returns = ExpectedReturns()
        self.num_evicted = 0
        self._index = index
        self._is_open = [False] * num_pages
        self._num_open = 0
        self._expected: set[int] = set()
        self._free: list[int] = []
        self._entries: dict[Name, TierEntry] = {}
        self._owners: dict[int, Name | int] = {}
        self._order = EvictionOrder(self._entries)
        self._num_uses = 0
        self._generation = 0
        self._gone: list[TierEntry] = []

    def __repr__(self) -> str:
        return f"<TierPool {len(self._free)}/{self.num_pages} pages free, {len(self)} entries>"

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_free(self) -> int:
        """Open pages without an owner."""
        return len(self._free)

    @property
    def num_open(self) -> int:
        """Pages that can be used."""
        return self._num_open

    @property
    def num_used(self) -> int:
        """Pages with an owner."""
        return len(self._owners)

    @property
    def names(self) -> list[Name]:
        """The names of all entries."""
        return list(self._entries)

    def get(self, name: Name) -> TierEntry | None:
        """The entry of that name, if pages belong to it."""
        return self._entries.get(name)

    def rests(self, name: Name) -> bool:
        """Whether an entry is not copied now; one without pages is not."""
        entry = self._entries.get(name)
        return entry is None or entry.tier_state.may_leave_host

    @property
    def is_opening(self) -> bool:
        """Whether a page that holds something will open."""
        return bool(self._expected)

    def expect(self, pages: Iterable[int]) -> None:
        """All pages with an owner will open; `pages` are theirs."""
        self._expected = {page for page in pages if not self._is_open[page]}

    def will_open(self, pages: Iterable[int]) -> bool:
        """Whether one of these pages is closed, and all that are will open."""
        closed = [page for page in pages if not self._is_open[page]]
        return bool(closed) and self._expected.issuperset(closed)

    def open(self, pages: range) -> list[TierEntry]:
        """Let these pages be used; those that have an owner already keep it. Behind an empty range
        no page opens any more: what lies in closed ones is forgotten, and returned with all that
        needs it.
        """
        if not pages:
            self._expected.clear()
            self.num_usable = self._num_open
            return self._forget_closed()
        self._expected.difference_update(pages)
        for page in pages:
            if not self._is_open[page]:
                self._is_open[page] = True
                self._num_open += 1
                if page not in self._owners:
                    self._free.append(page)
        return []

    def _forget_closed(self) -> list[TierEntry]:
        closed = [entry for entry in self._entries.values() if not self.is_open(entry.pages)]
        for entry in closed:
            entry.follow(BlockEvent.LEFT_HOST)  # nothing is copied from or to a closed page
        return self._drop(closed)

    def is_open(self, pages: Iterable[int]) -> bool:
        """Whether all these pages are open."""
        if self._num_open == self.num_pages:
            return True
        return all(self._is_open[page] for page in pages)

    def recover(self, now: float) -> int:
        """Take the entries that the index names, with their prefixes whole; forget the others.
        Returns how many were taken, as if they were used now.
        """
        assert self._index is not None
        found: dict[tuple[int, Name], dict[int, tuple[int, PageRecord]]] = {}
        for page, record in self._index.records():
            self._generation = max(self._generation, record.generation)
            if record.kind not in (EntryKind.BLOCK, EntryKind.STATE):
                self._index.retract(page)
                continue
            name = Name(EntryKind(record.kind), BlockDigest(record.digest))
            parts_of_it = found.setdefault((record.generation, name), {})
            if record.part in parts_of_it:
                self._index.retract(page)
            else:
                parts_of_it[record.part] = page, record
        taken: set[int] = set()
        whole = [
            (name, [parts[part] for part in range(len(parts))])
            for (_, name), parts in sorted(found.items())
            if sorted(parts) == list(range(parts[min(parts)][1].num_parts))
        ]
        # Parents first. An entry without its parent is no use.
        for name, parts in sorted(whole, key=lambda one: (one[1][0][1].depth, one[0].kind)):
            entry = self._recovered(name, [record for _, record in parts])
            if name in self._entries or not self._has_parent(entry):
                continue
            entry.pages = tuple([page for page, _ in parts])
            entry.checksums = tuple([record.checksum for _, record in parts])
            taken.update(entry.pages)
            self._add(entry)
        known = [page for parts in found.values() for page, _ in parts.values()]
        for page in known:
            if page not in taken:
                self._index.retract(page)
        for entry in sorted(self._entries.values(), key=lambda one: -one.depth):
            self._use(entry, now)
        return len(self._entries)

    def store(self, entry: TierEntry, num_pages: int, now: float) -> bool:
        """Give a new entry of the card its pages, evicting others if need be; False, with nothing
        changed, if that is impossible now.
        """
        require(entry.name not in self._entries, f"{entry!r} is stored already")
        if not self._has_parent(entry):
            return False
        parent = None if entry.parent is None else self._entries[entry.parent]
        if parent is not None:
            parent.num_children += 1  # counted first, so that the parent is not evicted
        pages = self.take(num_pages, None, now)
        if parent is not None:
            parent.num_children -= 1
        if pages is None:
            if parent is not None:
                self._enqueue(parent)
            return False
        entry.pages = pages
        entry.follow(BlockEvent.STORE)
        self._add(entry)
        self._use(entry, now)
        return True

    def stored(self, entry: TierEntry, checksums: tuple[int, ...]) -> list[TierEntry]:
        """Publish an entry whose copy is over. Returns what is forgotten instead, as `end` does."""
        entry.checksums = checksums
        entry.follow(BlockEvent.STORED)
        if entry.is_doomed:
            return self.evict(entry)
        self._generation += 1
        kind, digest = entry.name
        for part, page in enumerate(entry.pages if self._index is not None else ()):
            record = PageRecord(
                self._generation,
                digest,
                entry.before,
                entry.proof,
                checksums[part],
                entry.depth,
                part,
                len(entry.pages),
                int(kind),
            )
            self._index.publish(page, record)  # type: ignore[union-attr]
        self._enqueue(entry)
        return []

    def end(self, entry: TierEntry, event: BlockEvent) -> list[TierEntry]:
        """End a copy in another way than well: take `event`, and forget the entry if it is not on
        the host any more, with all that need it. Returns the forgotten entries.
        """
        entry.follow(event)
        if not entry.tier_state.is_on_host:
            return self._drop([entry])
        if entry.is_doomed and entry.tier_state.may_leave_host:
            return self.evict(entry)
        self._enqueue(entry)
        return []

    def evict(self, entry: TierEntry) -> list[TierEntry]:
        """Forget an entry that is not copied now, and all that need it. Returns the forgotten
        entries.
        """
        return self.end(entry, BlockEvent.LEFT_HOST)

    def loaded(self, entry: TierEntry, now: float) -> list[TierEntry]:
        """Note that an entry was loaded as it was stored. Returns what is forgotten all the same,
        as `end` does.
        """
        entry.follow(BlockEvent.LOADED)
        if entry.is_doomed:
            return self.evict(entry)
        self._use(entry, now)
        return []

    def use(self, names: Iterable[Name], now: float) -> None:
        """Note a use of these entries; those without pages are ignored."""
        for name in names:
            entry = self._entries.get(name)
            if entry is not None:
                self._use(entry, now)

    def reorder(self, names: Iterable[Name]) -> None:
        """Rank these entries again, because what is expected of them has changed. Entries
        without pages are ignored.
        """
        self._order.changed()
        for name in names:
            entry = self._entries.get(name)
            if entry is not None and entry.serial:
                self._enqueue(entry)

    def is_worth_storing(self, entry: TierEntry) -> bool:
        """Whether a block or state of the card is worth a place here: what no request will want
        takes no other's.
        """
        return bool(self._free) or self.returns.of(entry.name.digest) != OVER

    def take(self, num_pages: int, owner: int | None, now: float) -> tuple[int, ...] | None:
        """Take pages for the swapped sequence `owner`, or for an entry that is about to be added
        (None). Evicts entries if need be. None, with nothing taken, if there are not so many.
        """
        while len(self._free) < num_pages:
            if not self._evict(now):
                return None
        pages = tuple([self._free.pop() for _ in range(num_pages)])
        for page in pages:
            if self._index is not None:
                self._index.retract(page)
            if owner is not None:
                self._owners[page] = owner
        return pages

    def give_back(self, pages: Iterable[int]) -> None:
        """Free pages that a swapped sequence took."""
        for page in pages:
            require(isinstance(self._owners.pop(page), int), f"page {page} is an entry's")
            self._free.append(page)

    def clear(self, names: Iterable[Name]) -> list[TierEntry]:
        """Forget each entry of these names that is not copied now, and that none needs which is.
        Returns them.
        """
        gone: list[TierEntry] = []
        found = [entry for name in names if (entry := self._entries.get(name)) is not None]
        parents: dict[Name, None] = {}
        for entry in sorted(found, key=lambda one: (-one.depth, -one.name.kind)):
            if entry.tier_state.may_leave_host and entry.num_children == 0:
                entry.follow(BlockEvent.LEFT_HOST)
                self._release(entry)
                gone.append(entry)
                if entry.parent is not None:
                    parents[entry.parent] = None
        # Most parents go too: a place among those that may go would cost each as much as its end.
        for name in parents:
            if (parent := self._entries.get(name)) is not None:
                self._enqueue(parent)
        return gone

    def take_evicted(self) -> list[TierEntry]:
        """The entries that were evicted since the last call."""
        gone, self._gone = self._gone, []
        return gone

    def check_integrity(self, swapped: Iterable[int] = ()) -> None:
        """Raise `IntegrityError` unless each page has one owner and each entry its prefix."""
        owned = [page for entry in self._entries.values() for page in entry.pages]
        taken = [*owned, *swapped]
        require(sorted(taken) == sorted(self._owners), f"owners of {self!r}")
        open_free = [page for page in range(self.num_pages) if self._is_open[page]]
        free = sorted(set(open_free) - set(taken))
        require(sorted(self._free) == free, f"free pages of {self!r}")
        children: dict[Name, int] = {}
        for name, entry in self._entries.items():
            require(entry.name == name and entry.tier_state.is_on_host, f"{entry!r} is misplaced")
            require(all(self._owners[page] == name for page in entry.pages), f"pages of {entry!r}")
            if entry.parent is not None:
                require(entry.parent in self._entries, f"{entry!r} has lost its prefix")
                children[entry.parent] = children.get(entry.parent, 0) + 1
        for name, entry in self._entries.items():
            require(entry.num_children == children.get(name, 0), f"children of {entry!r}")
            if self._index is not None:
                self._check_records(entry)

    def _check_records(self, entry: TierEntry) -> None:
        assert self._index is not None
        is_known = entry.tier_state not in (TierState.STORING, TierState.PARTING)
        for part, page in enumerate(entry.pages):
            record = self._index.read(page)
            if not is_known:
                require(record is None, f"{entry!r} is published before its end")
                continue
            require(
                record is not None
                and (record.digest, record.part) == (entry.name.digest, part)
                and record.checksum == entry.checksums[part],
                f"record of {entry!r}",
            )

    def _recovered(self, name: Name, records: list[PageRecord]) -> TierEntry:
        first, kind = records[0], name.kind
        before = BlockDigest(first.parent)
        parent: Name | None = None
        if kind is EntryKind.STATE:
            parent = Name(EntryKind.BLOCK, name.digest)
        elif first.depth > 1:
            parent = Name(EntryKind.BLOCK, before)
        entry = TierEntry(name, parent, before, first.proof, first.depth)
        entry.tier_state = TierState.HOST
        return entry

    def _has_parent(self, entry: TierEntry) -> bool:
        return entry.parent is None or entry.parent in self._entries

    def _add(self, entry: TierEntry) -> None:
        self._entries[entry.name] = entry
        for page in entry.pages:
            self._owners[page] = entry.name
        if entry.parent is not None:
            self._entries[entry.parent].num_children += 1

    def _use(self, entry: TierEntry, now: float) -> None:
        self._num_uses += 1
        entry.used_at = self._num_uses
        entry.used_s = now
        self._enqueue(entry)

    def _enqueue(self, entry: TierEntry) -> None:
        """Give an entry that may go its place among the others."""
        entry.serial = 0
        if entry.may_go:
            self._order.put(entry, self.returns.of(entry.name.digest))

    def _evict(self, now: float) -> bool:
        """Evict the entry of least value. Returns whether there was one."""
        entry = self._order.take(now)
        if entry is None:
            return False
        entry.follow(BlockEvent.LEFT_HOST)
        self._forget(entry)
        self._gone.append(entry)
        self.num_evicted += 1
        return True

    def _drop(self, first: list[TierEntry]) -> list[TierEntry]:
        """Forget entries that have left the host, and all that need them: a prefix has no hole. An
        entry that is copied now is doomed to go when its copy is over. Returns what is forgotten.
        """
        doomed = self._with_those_behind(first)
        gone = []
        for entry in reversed(doomed):
            if entry.tier_state.is_on_host and not entry.tier_state.may_leave_host:
                entry.is_doomed = True
                if entry.parent is not None:
                    self._entries[entry.parent].num_children -= 1
                    entry.parent = None
                continue
            if entry.tier_state.is_on_host:
                entry.follow(BlockEvent.LEFT_HOST)
            self._forget(entry)
            gone.append(entry)
        return gone

    def _with_those_behind(self, first: list[TierEntry]) -> list[TierEntry]:
        """These entries and all that need them, each behind the one that it needs."""
        if not any(entry.num_children for entry in first):
            return first
        needing: dict[Name, list[TierEntry]] = {}
        for entry in self._entries.values():
            if entry.parent is not None:
                needing.setdefault(entry.parent, []).append(entry)
        found = {entry.name: entry for entry in first}
        waiting = list(first)
        while waiting:
            for child in needing.get(waiting.pop().name, ()):
                if child.name not in found:
                    found[child.name] = child
                    waiting.append(child)
        return sorted(found.values(), key=lambda one: (one.depth, one.name.kind))

    def _forget(self, entry: TierEntry) -> None:
        self._release(entry)
        if entry.parent is not None and entry.parent in self._entries:
            self._enqueue(self._entries[entry.parent])

    def _release(self, entry: TierEntry) -> None:
        """Free the pages of an entry. The caller gives its parent, if it has one, a place among
        those that may go.
        """
        del self._entries[entry.name]
        entry.serial = 0
        for page in entry.pages:
            if self._index is not None:
                self._index.retract(page)
            del self._owners[page]
            if self._is_open[page]:
                self._free.append(page)
        entry.pages = entry.checksums = ()
        if entry.parent is not None and entry.parent in self._entries:
            self._entries[entry.parent].num_children -= 1
