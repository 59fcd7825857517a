"""The host tier as the scheduler sees it: what to store, what to load, and what a prompt finds.

Owns the blocks of the card that wait to be stored, the copies under way, and the proofs of
prefixes. Must not know sequences, queues or tensors.

Everything is stored as soon as it is computed and the link is idle, parents first: so an engine
that is killed loses little. Loads go before stores.

A digest is no proof that two prefixes are equal (xxh3 is not collision-proof), and the host keeps
no tokens. So each entry has a `proof`: a BLAKE2 hash of all tokens up to its end.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol, final

from protocol.ids import BlockDigest
from protocol.messages import CacheUse, Tier
from workers.scheduler.retention import ReturnExpectation
from workers.scheduler.tier.entry import EntryKind, Name, TierEntry
from workers.scheduler.tier.load_meter import LoadMeter
from workers.scheduler.tier.pool import TierPool
from workers.scheduler.tier.tier_state import BlockEvent, TierState
from workers.scheduler.tier.transfers import Copy, Transfer, Transferred

_PROOF_BYTES: Final = 32
_MAX_TRANSFERS: Final = 4
"""The most transfers under way at once. Each is as large as `TierRoom.transfer_pages`, 64 MiB on a
card: with a step of 5 ms between two turns of the loop, four keep a link of 50 GB/s busy."""

_MAX_STORES: Final = 2
"""The most transfers under way that store: a load that is wanted meanwhile waits for them."""


class TierRoom(NamedTuple):
    """What the host has: `num_pages` pages; a block of keys and values takes one, a recurrent state
    `state_pages` (0: the model has none). A transfer copies at most `transfer_pages` pages, or one
    state. `page_bytes` is for counters.
    """

    num_pages: int
    state_pages: int = 0
    transfer_pages: int = 16
    page_bytes: int = 0


@dataclass(slots=True)
class _OnCard:
    """A block or state in the card's prefix cache: where, and its entry's facts."""

    place: int
    before: BlockDigest
    parent: Name | None
    proof: bytes
    depth: int


@dataclass(slots=True, eq=False)
class TierLoad:
    """Blocks, and perhaps a state, on their way to the card. `waiting` are copies that no transfer
    has taken yet. `on_done` is called once, with the number of leading `blocks` that came as they
    were stored, and whether the state did.
    """

    blocks: list[tuple[TierEntry, int]]
    state: tuple[TierEntry, int] | None
    on_done: Callable[[int, bool], None]
    waiting: deque[tuple[TierEntry, int]] = field(default_factory=deque)
    num_open: int = 0
    bad: set[Name] = field(default_factory=set)
    failed: set[Name] = field(default_factory=set)


class LoadSource(Protocol):
    """The owner of loads that go part by part."""

    @property
    def has_more(self) -> bool:
        """Whether a part can begin."""

    def begin_next(self) -> bool:
        """Begin a part, by `HostTier.load`; False if there is none."""


class _NoLoads:
    has_more = False

    def begin_next(self) -> bool:
        return False


@dataclass(slots=True)
class _UnderWay:
    items: tuple[tuple[TierEntry, int], ...]
    load: TierLoad | None


@final
class HostTier:
    """The tier over one pool. `changed(name, is_known)` is called when a block or a state that no
    tier had comes into one, or leaves the last; `moved(digest, tier)` when a block that stays is on
    the host alone from now on, or on the card again. The block manager sets both, and announces it.
    `pin_state` and `unpin_state` keep a slot of the card while it is read. `source` has the loads.
    Counted are the pages that were stored and loaded, and the entries that came back spoilt.
    """

    def __init__(self, room: TierRoom, pool: TierPool) -> None:
        self.room = room
        self.pool = pool
        self.changed: Callable[[Name, bool], None] = _tell_nobody
        self.moved: Callable[[BlockDigest, Tier], None] = _tell_nobody
        self.source: LoadSource = _NoLoads()
        self._card: dict[Name, _OnCard] = {}
        self._to_store: OrderedDict[Name, None] = OrderedDict()
        self._under_way: dict[int, _UnderWay] = {}
        self._loads: deque[TierLoad] = deque()
        self._num_loads = 0
        self._number = 0
        self._lacks_room = False
        self._to_forget: list[Name] = []
        self.num_stored = self.num_loaded = self.num_spoilt = 0
        self.num_recovered = 0
        self._meter = LoadMeter()
        self.pin_state: Callable[[int], None] = _ignore
        self.unpin_state: Callable[[int], None] = _ignore

    def __repr__(self) -> str:
        return f"<HostTier {self.pool!r} {len(self._to_store)} to store>"

    @property
    def is_copying(self) -> bool:
        """Whether a transfer is under way, could begin, or will once its pages are open."""
        return bool(self._under_way or self._loads) or self.source.has_more or self.pool.is_opening

    @property
    def part_pages(self) -> int:
        """Pages of one part of a load: what can be under way at once."""
        return _MAX_TRANSFERS * self.room.transfer_pages

    @property
    def is_clearing(self) -> bool:
        """Whether what `clear` was to forget is still copied."""
        return bool(self._to_forget)

    @property
    def has_to_store(self) -> bool:
        """Whether something waits to be stored that had room when that was tried last."""
        return bool(self._to_store) and not self._lacks_room

    def on_host_alone(self) -> list[BlockDigest]:
        """The digests of the blocks that the card does not have."""
        names = [name for name in self.pool.names if name.kind is EntryKind.BLOCK]
        return [name.digest for name in names if name not in self._card]

    def use(self, num_hit: int, num_loaded: int, num_prompt: int) -> CacheUse:
        """The figures for operators. `num_hit` of the `num_prompt` tokens of prompts that began
        were cached, `num_loaded` of these on the host.
        """
        each, pool = self.room.page_bytes, self.pool
        return CacheUse(
            num_bytes=pool.num_usable * each,
            held_bytes=pool.num_used * each,
            stored_bytes=self.num_stored * each,
            loaded_bytes=self.num_loaded * each,
            hit_tokens=num_hit,
            loaded_tokens=num_loaded,
            evicted=pool.num_evicted,
            spoilt=self.num_spoilt,
            recovered=self.num_recovered,
            prompt_tokens=num_prompt,
            block_bytes=each,
            load_bytes_per_s=self._meter.bytes_per_s,
        )

    def known(self) -> tuple[list[BlockDigest], list[BlockDigest]]:
        """The digests of all blocks, and of all states, that a tier has."""
        names = {**dict.fromkeys(self._card), **dict.fromkeys(self.pool.names)}
        blocks = [name.digest for name in names if name.kind is EntryKind.BLOCK]
        return blocks, [name.digest for name in names if name.kind is EntryKind.STATE]

    # The card's prefix cache tells what comes and goes.

    def computed(
        self, digest: BlockDigest, place: int, before: BlockDigest, packed: bytes, *, is_first: bool
    ) -> bool:
        """A block came into the card's prefix cache. `before` is the digest of the block before it,
        of the root if it `is_first`; `packed` are its tokens. True: the tier announces it, unless
        it is behind a collision.
        """
        parent = None if is_first else Name(EntryKind.BLOCK, before)
        proof, depth = b"", 0
        if parent is None:
            proof = root_proof(before)
        elif (found := self._card.get(parent)) is not None:
            proof, depth = found.proof, found.depth
        else:
            return True  # behind a collision
        here = _OnCard(place, before, parent, next_proof(proof, packed), depth + 1)
        self._came(Name(EntryKind.BLOCK, digest), here)
        return True

    def saved(self, digest: BlockDigest, slot: int, *, is_final: bool) -> bool:
        """A state came into a slot of the card. One that is not `is_final` is about to be replaced,
        and not stored. False if its prefix is private, which the tier does not know.
        """
        block = self._card.get(Name(EntryKind.BLOCK, digest))
        if block is None:
            return False
        parent = Name(EntryKind.BLOCK, digest)
        here = _OnCard(slot, block.before, parent, block.proof, block.depth)
        self._came(Name(EntryKind.STATE, digest), here, stores=is_final)
        return True

    def settled(self, digest: BlockDigest) -> None:
        """A saved state turned out to be final."""
        name = Name(EntryKind.STATE, digest)
        if name in self._card and self.pool.get(name) is None:
            self._to_store[name] = None

    def left(self, kind: EntryKind, digest: BlockDigest) -> bool:
        """A block or a state left the card's prefix cache. False for one of a private prefix."""
        name = Name(kind, digest)
        if self._card.pop(name, None) is None:
            return False
        self._to_store.pop(name, None)
        entry = self.pool.get(name)
        if entry is None:
            self._lost(name)
        else:
            entry.follow(BlockEvent.LEFT_CARD)
            if kind is EntryKind.BLOCK:
                self.moved(digest, "host")
        return True

    def used(self, digests: Sequence[BlockDigest], name: object, now: float) -> None:
        """A sequence has released these blocks of the card, first to last; `name` is for `retain`.
        `now` is the time in seconds here and below.
        """
        names = [each for one in digests if (each := Name(EntryKind.BLOCK, one)) in self._card]
        self.pool.returns.use([each.digest for each in names], name)
        # What is used last goes last: the blocks before others, and the block before its state.
        names.reverse()
        if self.room.state_pages:
            self.pool.use([Name(EntryKind.STATE, each.digest) for each in names], now)
        self.pool.use(names, now)

    def retain(self, name: object, conversation: object, expected: ReturnExpectation) -> bool:
        """Set what is expected of the prefix that was released under `name`. False if no tier has
        a block of it.
        """
        digests = self.pool.returns.retain(name, conversation, expected)
        self.pool.reorder([Name(kind, digest) for kind in EntryKind for digest in digests])
        return bool(digests)

    def _came(self, name: Name, here: _OnCard, *, stores: bool = True) -> None:
        entry = self.pool.get(name)
        if entry is not None and entry.proof != here.proof:
            # Another prefix has this digest on the host. It goes; one that is copied now stays, and
            # the tier knows nothing of the card's.
            if entry.tier_state is not TierState.HOST:
                return
            for gone in self.pool.evict(entry):
                self._forgot(gone)
            entry = None
        self._card[name] = here
        if entry is not None:
            entry.follow(BlockEvent.COMPUTED)
            if name.kind is EntryKind.BLOCK:
                self.moved(name.digest, "card")
            return
        self.changed(name, True)
        if stores:
            self._to_store[name] = None

    # What a prompt finds.

    def proof_on_card(self, digests: Sequence[BlockDigest], root: BlockDigest) -> bytes | None:
        """The proof of a prefix that the card has; None if it has another of these digests."""
        if not digests:
            return root_proof(root)
        last = self._card.get(Name(EntryKind.BLOCK, digests[-1]))
        return None if last is None else last.proof

    def num_held(self, digests: Sequence[BlockDigest], first: int) -> int:
        """How many blocks from index `first` on, one behind the other, the host can give now. Their
        proofs are compared later, by `find`.
        """
        get, gives = self.pool.get, self.gives
        for index in range(first, len(digests)):
            entry = get(Name(EntryKind.BLOCK, digests[index]))
            if entry is None or not gives(entry):
                return index - first
        return len(digests) - first

    def gives(self, entry: TierEntry) -> bool:
        """Whether the host can give what an entry holds now, and the card has it not."""
        return entry.tier_state is TierState.HOST and self.pool.is_open(entry.pages)

    def opening(self, digests: Sequence[BlockDigest], first: int) -> Name | None:
        """The first of what the host has of blocks from index `first` on, one behind the other, and
        of the states behind them, that it can give once its pages are open.
        """
        if not self.pool.is_opening:
            return None
        for digest in digests[first:]:
            if not self.has(digest):
                return None
            for kind in EntryKind:
                if self._is_opening(name := Name(kind, digest)):
                    return name
        return None

    def _is_opening(self, name: Name) -> bool:
        entry = self.pool.get(name)
        if entry is None or entry.tier_state is not TierState.HOST:
            return False
        return self.pool.will_open(entry.pages)

    def find(
        self, digests: Sequence[BlockDigest], blocks: Sequence[bytes], proof: bytes
    ) -> list[TierEntry]:
        """The entries of blocks with these `digests` and tokens behind a prefix of that `proof`, as
        far as the host can give them now.
        """
        found = []
        for digest, packed in zip(digests, blocks, strict=True):
            entry = self.pool.get(Name(EntryKind.BLOCK, digest))
            proof = next_proof(proof, packed)
            if entry is None or entry.proof != proof or not self.gives(entry):
                break
            found.append(entry)
        return found

    def state(self, digest: BlockDigest) -> TierEntry | None:
        """The recurrent state behind a block that was found, if the host can give it now."""
        state, name = self.pool.get(Name(EntryKind.STATE, digest)), Name(EntryKind.BLOCK, digest)
        if state is None or not self.gives(state):
            return None
        block = self._card.get(name) or self.pool.get(name)
        return state if block is not None and block.proof == state.proof else None

    def is_coming(self, name: Name) -> bool:
        """Whether the entry is on its way to the card, or can be soon."""
        entry = self.pool.get(name)
        if entry is None:
            return False
        return entry.tier_state in (TierState.LOADING, TierState.PARTING) or self._is_opening(name)

    # Copies.

    def load(self, load: TierLoad) -> None:
        """Begin a load of entries that are on the host alone. The places on the card are the
        caller's until `on_done`.
        """
        items = [*load.blocks, *([] if load.state is None else [load.state])]
        for entry, _ in items:
            entry.follow(BlockEvent.LOAD)
        load.waiting.extend(items)
        load.num_open = len(items)
        self._num_loads += 1
        self._loads.append(load)

    def transfers(self, now: float) -> list[Transfer]:
        """The transfers that begin now. Begin them before the next step is planned."""
        made = []
        if self._loads or self.source.has_more:
            self._meter.began(now)
        while len(self._under_way) < _MAX_TRANSFERS and (self._loads or self.source.begin_next()):
            made.append(self._next_load())
        may_store = not self._loads and not self.source.has_more
        while may_store and len(self._under_way) < _MAX_STORES:
            transfer = self._next_store(now)
            if transfer is None:
                break
            made.append(transfer)
        self._tell_evicted()
        return made

    def over(self, done: Transferred, now: float) -> None:
        """Take the end of a transfer."""
        what = self._under_way.pop(done.number)
        checksums = done.checksums or ((),) * len(what.items)
        for (entry, place), sums in zip(what.items, checksums, strict=True):
            if what.load is None:
                self._stored(entry, place, sums, done.error)
            else:
                self._came_back(what.load, entry, sums, done.error)
                self._meter.loaded(len(entry.pages) * self.room.page_bytes)
        if what.load is not None and what.load.num_open == 0:
            self._end_load(what.load, now)
        self._forget(self._to_forget)

    def open(self, pages: range) -> None:
        """Let these pages be used; see `TierPool.open`."""
        for entry in self.pool.open(pages):
            self._forgot(entry)

    def clear(self) -> int:
        """Forget what the host has; what is copied now, as soon as it is not. Returns the number of
        entries that are forgotten now.
        """
        self._to_store.clear()
        return self._forget(self.pool.names)

    def _forget(self, names: Sequence[Name]) -> int:
        """Forget these entries, as far as they can go now; the others go when copies are over."""
        gone = self.pool.clear(names)
        for entry in gone:
            self._forgot(entry)
        left = [name for name in names if self.pool.get(name) is not None]
        copied = any(not self.pool.rests(name) for name in left)
        self._to_forget = left if copied else []
        return len(gone)

    def take_pages(self, num_pages: int, owner: int, now: float) -> tuple[int, ...] | None:
        """Pages for a swapped sequence. Evicts entries if need be; None if that is not enough."""
        pages = self.pool.take(num_pages, owner, now)
        self._tell_evicted()
        return pages

    def check_integrity(self, swapped: Iterable[int] = ()) -> None:
        """Raise `IntegrityError` if the books contradict each other."""
        self.pool.check_integrity(swapped)

    def has(self, digest: BlockDigest) -> bool:
        """Whether the host has a block, or will soon."""
        return self.pool.get(Name(EntryKind.BLOCK, digest)) is not None

    def _next_load(self) -> Transfer:
        load = self._loads[0]
        taken: list[tuple[TierEntry, int]] = []
        num_pages = 0
        while load.waiting:
            entry, _ = load.waiting[0]
            if taken and num_pages + len(entry.pages) > self.room.transfer_pages:
                break
            taken.append(load.waiting.popleft())
            num_pages += len(entry.pages)
        if not load.waiting:
            self._loads.popleft()
        return self._begin(taken, load)

    def _next_store(self, now: float) -> Transfer | None:
        """None while pages of an earlier engine open: they would be evicted for want of free ones,
        which open behind them.
        """
        if self.pool.is_opening:
            return None
        taken: list[tuple[TierEntry, int]] = []
        num_pages = 0
        self._lacks_room = False
        while self._to_store and num_pages < self.room.transfer_pages:
            name = next(iter(self._to_store))
            found = self._lacking(name)
            if found is None:
                del self._to_store[name]
                continue
            entry, place = found
            size = self.room.state_pages if entry.name.kind is EntryKind.STATE else 1
            if taken and num_pages + size > self.room.transfer_pages:
                break
            if taken and taken[0][0].name.kind is not entry.name.kind:
                break  # devices copy blocks and states in different ways
            if not self.pool.is_worth_storing(entry):
                del self._to_store[name]
                continue
            if not self.pool.store(entry, size, now):
                # Pages are not open yet, or all are copied or swapped to: it is tried again.
                self._lacks_room = True
                break
            self._to_store.pop(entry.name, None)
            if entry.name.kind is EntryKind.STATE:
                self.pin_state(place)
            taken.append((entry, place))
            num_pages += size
        return self._begin(taken, None) if taken else None

    def _lacking(self, name: Name) -> tuple[TierEntry, int] | None:
        """What must be stored next so that `name` is stored: itself, or the first block of its
        prefix that the host lacks. None if the card has not all of these, or the host has it.
        """
        found: tuple[TierEntry, int] | None = None
        at: Name | None = name
        while at is not None and self.pool.get(at) is None:
            here = self._card.get(at)
            if here is None:
                return None
            if at != name:  # store it before the entry that needs it
                self._to_store[at] = None
                self._to_store.move_to_end(at, last=False)
            found = TierEntry(at, here.parent, here.before, here.proof, here.depth), here.place
            at = here.parent
        return found

    def _begin(self, items: Sequence[tuple[TierEntry, int]], load: TierLoad | None) -> Transfer:
        self._number += 1
        self._under_way[self._number] = _UnderWay(tuple(items), load)
        copies = [
            Copy(place, entry.pages, entry.name.kind is EntryKind.STATE) for entry, place in items
        ]
        return Transfer(self._number, load is not None, tuple(copies))

    def _stored(self, entry: TierEntry, place: int, sums: tuple[int, ...], error: str) -> None:
        if entry.name.kind is EntryKind.STATE:
            self.unpin_state(place)
        if error:
            for gone in self.pool.end(entry, BlockEvent.FAILED):
                self._forgot(gone)
            return
        self.num_stored += len(entry.pages)
        for gone in self.pool.stored(entry, sums):
            self._forgot(gone)

    def _came_back(
        self, load: TierLoad, entry: TierEntry, sums: tuple[int, ...], error: str
    ) -> None:
        load.num_open -= 1
        if error:
            load.failed.add(entry.name)
        elif sums != entry.checksums:
            load.bad.add(entry.name)
        else:
            self.num_loaded += len(entry.pages)

    def _end_load(self, load: TierLoad, now: float) -> None:
        self._num_loads -= 1
        if not self._num_loads:
            self._meter.ended(now)
        unusable = load.bad | load.failed
        flags = [entry.name in unusable for entry, _ in load.blocks]
        num_good = flags.index(True) if True in flags else len(flags)
        has_state = load.state is not None and load.state[0].name not in unusable
        load.on_done(num_good, has_state and num_good == len(flags))
        for entry, _ in [*load.blocks, *([] if load.state is None else [load.state])]:
            gone: list[TierEntry] = []
            if entry.name in load.bad:
                self.num_spoilt += 1
                gone = self.pool.end(entry, BlockEvent.SPOILT)
            elif entry.tier_state is TierState.TWICE:
                gone = self.pool.loaded(entry, now)
            elif entry.tier_state is TierState.LOADING:
                gone = self.pool.end(entry, BlockEvent.FAILED)
            for each in gone:
                self._forgot(each)

    def _tell_evicted(self) -> None:
        for entry in self.pool.take_evicted():
            self._forgot(entry)

    def _forgot(self, entry: TierEntry) -> None:
        """The host has an entry no more."""
        if entry.name not in self._card:
            self._lost(entry.name)

    def _lost(self, name: Name) -> None:
        """No tier has a block or a state any more."""
        if name.kind is EntryKind.BLOCK:
            self.pool.returns.forget(name.digest)
        self.changed(name, False)


def root_proof(root: BlockDigest) -> bytes:
    """The proof before the first block of a root."""
    return blake2b(root, digest_size=_PROOF_BYTES, person=b"herma root").digest()


def next_proof(proof: bytes, packed: bytes) -> bytes:
    """The proof of a block with the tokens `packed` behind that of `proof`."""
    return blake2b(proof + packed, digest_size=_PROOF_BYTES).digest()


def _tell_nobody(_what: object, _how: object) -> None:
    """Do nothing: the listener until the block manager sets another."""


def _ignore(_slot: int) -> None:
    """A model without recurrent layers has no states."""
