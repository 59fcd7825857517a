"""The pool against a model: 100,000 random operations, kills and planted faults included."""

import random
from dataclasses import dataclass, field

import pytest

from protocol.hashing import chained_digests, root_digest
from protocol.ids import BlockDigest
from workers.scheduler.integrity import IntegrityError
from workers.scheduler.retention import ReturnClass, ReturnExpectation
from workers.scheduler.tier import (
    BlockEvent,
    EntryKind,
    HostTier,
    Index,
    Name,
    PageRecord,
    TierLayout,
    TierPool,
    TierRoom,
    TierState,
    Transfer,
    Transferred,
)
from workers.scheduler.tier.entry import TierEntry
from workers.scheduler.tier.host_tier import TierLoad, root_proof
from workers.scheduler.tier.retention import EvictionOrder

ROOT = root_digest("m")
IDENTITY = bytes(32)
NUM_PAGES = 24
NUM_OPERATIONS = 100_000


def _sum(content: bytes) -> int:
    return int.from_bytes(content[:7], "little")


@dataclass
class World:
    """A card's prefix cache, the host's pages, and copies that take time. The content of a block is
    its digest, so what is wrong shows.
    """

    rng: random.Random
    region: bytearray
    pages: list[bytes] = field(default_factory=lambda: [b""] * NUM_PAGES)
    card: dict[BlockDigest, tuple[BlockDigest, bytes]] = field(default_factory=dict)
    states: set[BlockDigest] = field(default_factory=set)
    known: set[Name] = field(default_factory=set)
    under_way: dict[int, tuple[Transfer, list[bytes]]] = field(default_factory=dict)
    holds: dict[BlockDigest, int] = field(default_factory=dict)
    swapped: dict[int, tuple[int, ...]] = field(default_factory=dict)
    flipped: set[int] = field(default_factory=set)
    now: float = 0.0
    num_loads: int = 0
    num_spoilt: int = 0
    num_kills: int = 0
    num_warm: int = 0

    def __post_init__(self) -> None:
        self.attach()

    def attach(self) -> None:
        """As an engine does at its start: of the card nothing is left."""
        layout = TierLayout(IDENTITY, 4096, NUM_PAGES)
        pool = TierPool(NUM_PAGES, index=Index(memoryview(self.region), layout))
        self.num_warm += pool.recover(self.now)
        pool.open(range(NUM_PAGES))
        self.tier = HostTier(TierRoom(NUM_PAGES, state_pages=2, transfer_pages=4), pool)
        self.tier.changed = self.changed
        self.known = set(pool.names)
        for names in (self.card, self.states, self.under_way, self.holds, self.swapped):
            names.clear()

    def changed(self, name: Name, is_known: bool) -> None:
        """Nothing comes twice, nor leaves twice."""
        assert (name in self.known) != is_known
        (self.known.add if is_known else self.known.remove)(name)

    def compute(self) -> None:
        """A block of one token behind a cached one."""
        parents = [*self.card, ROOT] if len(self.card) < 40 else [ROOT]
        before = self.rng.choice(parents)
        token = bytes([self.rng.randrange(3), 0, 0, 0])
        (digest,) = chained_digests(before, [token])
        if digest in self.card:
            return
        self.card[digest] = before, token
        self.tier.computed(digest, 0, before, token, is_first=before == ROOT)

    def save(self) -> None:
        """The state behind a cached block."""
        if self.card and (digest := self.rng.choice(list(self.card))) not in self.states:
            self.states.add(digest)
            self.tier.saved(digest, 0, is_final=self.rng.random() < 0.8)

    def evict(self) -> None:
        """A block of the card that no other needs."""
        needed = {before for before, _ in self.card.values()} | set(self.holds)
        free = [digest for digest in self.card if digest not in needed]
        if free:
            digest = self.rng.choice(free)
            if digest in self.states:
                self.states.remove(digest)
                self.tier.left(EntryKind.STATE, digest)
            del self.card[digest]
            self.tier.left(EntryKind.BLOCK, digest)

    def begin(self) -> None:
        """What a store copies is read at once, and written to the host's pages until its end."""
        for transfer in self.tier.transfers(self.now):
            contents = []
            for number, copy in enumerate(transfer.copies):
                entry = self.tier._under_way[transfer.number].items[number][0]
                contents.append(entry.name.digest)
                for page in copy.pages if not transfer.is_load else ():
                    self.pages[page] = b"torn"
                    self.flipped.discard(page)
            self.under_way[transfer.number] = transfer, contents

    def end(self) -> None:
        """The end of a copy: well, or not made."""
        if not self.under_way:
            return
        number = self.rng.choice(list(self.under_way))
        transfer, contents = self.under_way.pop(number)
        if self.rng.random() < 0.1:
            self.tier.over(Transferred(number, (), "the driver says no"), self.now)
            return
        if not transfer.is_load:
            for copy, content in zip(transfer.copies, contents, strict=True):
                for page in copy.pages:
                    self.pages[page] = content
        sums = tuple(
            tuple(_sum(self.pages[page]) for page in copy.pages) for copy in transfer.copies
        )
        self.tier.over(Transferred(number, sums), self.now)

    def load(self) -> None:  # noqa: C901 - one prompt, from its tokens to what came of it
        """A prompt that goes on behind a cached block, as far as the host has it."""
        path: list[BlockDigest] = []
        tokens: list[bytes] = []
        before = ROOT
        for _ in range(self.rng.randrange(1, 6)):
            token = bytes([self.rng.randrange(3), 0, 0, 0])
            (before,) = chained_digests(before, [token])
            path.append(before)
            tokens.append(token)
        num_cached = next((i for i, each in enumerate(path) if each not in self.card), len(path))
        proof = self.tier.proof_on_card(path[:num_cached], ROOT)
        found = (
            [] if proof is None else self.tier.find(path[num_cached:], tokens[num_cached:], proof)
        )
        for entry, digest in zip(found, path[num_cached:], strict=False):
            assert entry.name == (EntryKind.BLOCK, digest)
        end = num_cached + len(found)
        state = self.tier.state(path[end - 1]) if end and path[end - 1] not in self.states else None
        if not found and state is None:
            return
        self.num_loads += 1
        for digest in path[:num_cached]:
            self.holds[digest] = self.holds.get(digest, 0) + 1
        is_flipped = [
            any(page in self.flipped for page in entry.pages)
            for entry in [*found, *([] if state is None else [state])]
        ]

        def done(num_good: int, has_state: bool) -> None:
            assert num_good <= ([*is_flipped[: len(found)], True].index(True))
            for at in range(num_cached, num_cached + num_good):
                digest = path[at]
                assert all(self.pages[page] == digest for page in found[at - num_cached].pages)
                if digest not in self.card:
                    before = path[at - 1] if at else ROOT
                    self.card[digest] = before, tokens[at]
                    self.tier.computed(digest, 0, before, tokens[at], is_first=at == 0)
            if has_state:
                assert state is not None
                assert not is_flipped[-1]
                assert all(self.pages[page] == state.name.digest for page in state.pages)
                if state.name.digest not in self.states:
                    self.states.add(state.name.digest)
                    self.tier.saved(state.name.digest, 0, is_final=True)
            for digest in path[:num_cached]:
                self.holds[digest] -= 1
                if not self.holds[digest]:
                    del self.holds[digest]

        self.tier.load(TierLoad([(one, 0) for one in found], state and (state, 0), done))

    def flip(self) -> None:
        """Plant a fault in a page that is stored."""
        stored = [
            page
            for name in self.tier.pool.names
            if (entry := self.tier.pool.get(name)) is not None
            and entry.tier_state in (TierState.BOTH, TierState.HOST)
            for page in entry.pages
        ]
        if stored:
            page = self.rng.choice(stored)
            self.pages[page] = bytes([self.pages[page][0] ^ 1]) + self.pages[page][1:]
            self.flipped ^= {page}

    def swap(self) -> None:
        """A sequence is swapped out, or back in."""
        if self.swapped and self.rng.random() < 0.6:
            self.tier.pool.give_back(self.swapped.pop(self.rng.choice(list(self.swapped))))
            return
        number = self.rng.randrange(10**9)
        pages = self.tier.take_pages(self.rng.randrange(1, 5), number, self.now)
        if pages is not None:
            self.swapped[number] = pages
            for page in pages:
                self.pages[page] = b"of a sequence"

    def use(self) -> None:
        """A sequence that used a prefix ends, and the gateway may say what it expects."""
        self.now += self.rng.expovariate(1.0)
        if not self.card:
            return
        chain = [self.rng.choice(list(self.card))]
        while (before := self.card[chain[0]][0]) != ROOT:
            chain.insert(0, before)
        request = self.rng.randrange(10**9)
        self.tier.used(chain, request, self.now)
        if self.rng.random() < 0.7:
            expected = ReturnExpectation(
                self.rng.choice([0.0, 0.5, 0.97]), self.rng.choice([0.5, 60.0])
            )
            assert self.tier.retain(request, f"talk {self.rng.randrange(6)}", expected)

    def kill(self) -> None:
        """The engine is killed with its copies under way; the next one begins."""
        self.num_kills += 1
        self.num_spoilt += self.tier.num_spoilt
        self.attach()

    def check(self) -> None:
        """The books, and what a tier is said to have."""
        self.tier.check_integrity([page for pages in self.swapped.values() for page in pages])
        blocks, states = self.tier.known()
        here = {Name(EntryKind.BLOCK, digest) for digest in blocks}
        here |= {Name(EntryKind.STATE, digest) for digest in states}
        assert here == self.known
        returns = self.tier.pool.returns
        assert set(returns._users) <= set(blocks)
        assert len(returns._names) <= len(blocks)
        for name in self.tier.pool.names:
            entry = self.tier.pool.get(name)
            assert entry is not None
            is_here = name.digest in (self.card if name.kind is EntryKind.BLOCK else self.states)
            assert entry.tier_state.is_on_card == is_here


def test_random_operations_agree_with_the_model() -> None:
    rng = random.Random(4)
    layout = TierLayout(IDENTITY, 4096, NUM_PAGES)
    world = World(rng, bytearray(layout.num_bytes))
    weights = {
        world.compute: 20, world.save: 4, world.evict: 17, world.begin: 20, world.end: 22,
        world.load: 10, world.swap: 3, world.use: 5, world.flip: 0.4, world.kill: 0.1,
    }  # fmt: skip
    plan = rng.choices(list(weights), list(weights.values()), k=NUM_OPERATIONS)
    for number, operation in enumerate(plan):
        operation()
        if number % 50 == 0:
            world.check()
        if number % 5000 == 4999:
            world.tier.clear()
            world.check()
    assert world.num_loads > 2000
    assert world.num_spoilt > 20
    assert world.num_kills > 30
    assert world.num_warm > 100


def test_a_prefix_with_the_digest_of_another_is_not_found() -> None:
    """xxh3 can be made to collide: the proofs of the tokens decide, and the newer prefix stays."""
    pool = TierPool(4)
    pool.open(range(4))
    tier = HostTier(TierRoom(4), pool)
    digest, ours, theirs = BlockDigest(b"d" * 16), b"1000", b"2000"
    tier.computed(digest, 0, ROOT, ours, is_first=True)
    _store_all(tier)
    tier.left(EntryKind.BLOCK, digest)
    assert tier.find([digest], [theirs], root_proof(ROOT)) == []
    assert tier.find([digest], [ours], root_proof(root_digest("other"))) == []
    assert [one.name.digest for one in tier.find([digest], [ours], root_proof(ROOT))] == [digest]
    tier.computed(digest, 1, ROOT, theirs, is_first=True)
    tier.check_integrity()
    _store_all(tier)
    tier.left(EntryKind.BLOCK, digest)
    assert tier.find([digest], [ours], root_proof(ROOT)) == []
    assert len(tier.find([digest], [theirs], root_proof(ROOT))) == 1


def _store_all(tier: HostTier) -> None:
    while transfers := tier.transfers(0.0):
        for one in transfers:
            sums = tuple(tuple(0 for _ in copy.pages) for copy in one.copies)
            tier.over(Transferred(one.number, sums), 0.0)


def test_what_is_cached_before_the_pages_are_open_is_stored_later() -> None:
    """A start locks pages while the first prompts are computed; nobody polls for that."""
    pool = TierPool(4)
    tier = HostTier(TierRoom(4), pool)
    digest = BlockDigest(b"d" * 16)
    tier.computed(digest, 0, ROOT, b"1000", is_first=True)
    assert tier.has_to_store
    assert tier.transfers(0.0) == []
    assert not tier.has_to_store
    pool.open([2])
    (transfer,) = tier.transfers(0.0)
    assert transfer.copies[0].pages == (2,)


def test_what_goes_before_its_page_is_open_frees_it_once() -> None:
    """The page of an entry that an earlier engine left, when it opens and not before."""
    region = bytearray(TierLayout(IDENTITY, 4096, 4).num_bytes)

    def pool_on_it() -> TierPool:
        return TierPool(4, index=Index(memoryview(region), TierLayout(IDENTITY, 4096, 4)))

    first, digest = pool_on_it(), BlockDigest(b"d" * 16)
    first.open(range(4))
    tier = HostTier(TierRoom(4), first)
    tier.computed(digest, 0, ROOT, b"1000", is_first=True)
    _store_all(tier)
    pool = pool_on_it()
    assert pool.recover(0.0) == 1
    entry = pool.get(Name(EntryKind.BLOCK, digest))
    assert entry is not None
    assert pool.evict(entry) == [entry]
    assert (pool.num_free, pool.num_used) == (0, 0)
    pool.check_integrity()
    pool.open(range(4))
    assert pool.num_free == 4
    pool.check_integrity()


def _block(number: int, parent: TierEntry | None = None) -> TierEntry:
    digest = BlockDigest(bytes([number]) * 16)
    before = ROOT if parent is None else parent.name.digest
    depth = 1 if parent is None else parent.depth + 1
    above = None if parent is None else parent.name
    return TierEntry(Name(EntryKind.BLOCK, digest), above, before, b"x" * 32, depth)


def _stored(pool: TierPool, entry: TierEntry) -> None:
    """Store the block, which then leaves the card."""
    assert pool.store(entry, 1, 0.0)
    pool.stored(entry, (0,))
    entry.follow(BlockEvent.LEFT_CARD)


def _opened(num_pages: int, region: bytearray | None = None) -> TierPool:
    layout = TierLayout(IDENTITY, 4096, num_pages)
    index = None if region is None else Index(memoryview(region), layout)
    pool = TierPool(num_pages, index=index)
    pool.open(range(num_pages))
    return pool


def test_a_block_has_its_prefix_on_the_host() -> None:
    """A block is stored only with its prefix on the host; without it nothing changes."""
    pool, parent = _opened(2), _block(1)
    child = _block(2, parent)
    assert not pool.store(child, 1, 0.0)
    assert (child.tier_state, len(pool), pool.num_free) == (TierState.CARD, 0, 2)
    _stored(pool, parent)
    assert pool.store(child, 1, 0.0)


def test_a_parent_that_stood_in_its_childs_way_may_still_go() -> None:
    """There is one page, and the parent has it: the child finds none, and a sequence does."""
    pool, parent = _opened(1), _block(1)
    _stored(pool, parent)
    assert not pool.store(_block(2, parent), 1, 0.0)
    assert pool.take(1, 7, 0.0) == (0,)
    assert (pool.take_evicted(), pool.num_evicted) == ([parent], 1)


def test_an_entrys_page_is_not_given_back_by_a_sequence() -> None:
    pool = _opened(1)
    _stored(pool, _block(1))
    with pytest.raises(IntegrityError, match="page 0 is an entry's"):
        pool.give_back((0,))


def test_what_was_loaded_last_goes_last() -> None:
    pool, first, second = _opened(2), _block(1), _block(2)
    for entry in (first, second):
        _stored(pool, entry)
    for event in (BlockEvent.LOAD, BlockEvent.COMPUTED):
        first.follow(event)
    pool.loaded(first, 0.0)
    first.follow(BlockEvent.LEFT_CARD)
    assert pool.take(1, 7, 0.0) is not None
    assert pool.take_evicted() == [second]


def test_what_was_forgotten_stays_so_behind_a_kill() -> None:
    """An operator has cleared one, and the content of the other was wrong."""
    region = bytearray(TierLayout(IDENTITY, 4096, 4).num_bytes)
    pool, cleared, spoilt = _opened(4, region), _block(1), _block(2)
    for entry in (cleared, spoilt):
        _stored(pool, entry)
    spoilt.follow(BlockEvent.LOAD)
    assert pool.clear(pool.names) == [cleared]
    assert pool.end(spoilt, BlockEvent.SPOILT) == [spoilt]
    assert TierPool(4, _index(region)).recover(0.0) == 0


def test_a_clear_gives_no_place_to_what_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host may hold hundreds of thousands of blocks, and the engine computes nothing meanwhile:
    only a parent that stays may be evicted later.
    """
    pool, chain = _opened(5), [_block(1)]
    chain += [_block(2, chain[-1])]
    chain += [_block(3, chain[-1])]
    for entry in chain:
        _stored(pool, entry)
    placed: list[Name] = []
    put = EvictionOrder.put

    def noted(order: EvictionOrder, entry: TierEntry, expected: ReturnClass) -> None:
        placed.append(entry.name)
        put(order, entry, expected)

    monkeypatch.setattr(EvictionOrder, "put", noted)
    assert pool.clear([chain[2].name, chain[1].name]) == [chain[2], chain[1]]
    assert placed == [chain[0].name]
    pool.check_integrity()
    assert pool.take(5, 7, 0.0) is not None
    assert pool.take_evicted() == [chain[0]]


def _index(region: bytearray) -> Index:
    return Index(memoryview(region), TierLayout(IDENTITY, 4096, 4))


def test_each_write_has_a_number_of_its_own_also_behind_a_kill() -> None:
    """Each write has a number of its own, also behind a kill, so that parts of two writes are never
    taken for one entry.
    """
    region = bytearray(TierLayout(IDENTITY, 4096, 4).num_bytes)
    pool = _opened(4, region)
    for number in (1, 2):
        _stored(pool, _block(number))
    again = TierPool(4, _index(region))
    assert again.recover(0.0) == 2
    again.open(range(4))
    _stored(again, _block(3))
    numbers = {record.digest[0]: record.generation for _, record in _index(region).records()}
    assert numbers[1] < numbers[2] < numbers[3]


def test_what_makes_no_entry_is_unknown_from_then_on() -> None:
    """One part of two, a part that two pages claim, a block without its prefix, another kind."""
    region = bytearray(TierLayout(IDENTITY, 4096, 6).num_bytes)
    layout = TierLayout(IDENTITY, 4096, 6)
    index = Index(memoryview(region), layout)
    one, other = b"1" * 16, b"2" * 16
    block = int(EntryKind.BLOCK)
    index.publish(0, PageRecord(1, one, ROOT, b"x" * 32, 0, 1, 0, 2, block))
    index.publish(1, PageRecord(2, other, ROOT, b"x" * 32, 0, 1, 0, 1, block))
    index.publish(2, PageRecord(2, other, ROOT, b"x" * 32, 0, 1, 0, 1, block))
    index.publish(3, PageRecord(3, b"3" * 16, one, b"x" * 32, 0, 2, 0, 1, block))
    index.publish(4, PageRecord(4, b"4" * 16, ROOT, b"x" * 32, 0, 1, 0, 1, 99))
    pool = TierPool(6, index)
    assert pool.recover(0.0) == 1
    assert [page for page, _ in index.records()] == [1]
    pool.open(range(6))
    pool.check_integrity()


def test_a_state_keeps_its_slot_while_it_is_copied() -> None:
    """Whether the copy is made or not. Blocks and states go in transfers of their own."""
    pool = _opened(6)
    tier = HostTier(TierRoom(6, state_pages=2, transfer_pages=4), pool)
    pinned: list[int] = []
    tier.pin_state, tier.unpin_state = pinned.append, pinned.remove
    digest = BlockDigest(b"d" * 16)
    tier.computed(digest, 0, ROOT, b"1000", is_first=True)
    assert tier.saved(digest, 5, is_final=True)
    blocks, states = tier.transfers(0.0)
    assert [[one.is_state for one in made.copies] for made in (blocks, states)] == [[False], [True]]
    assert pinned == [5]
    tier.over(Transferred(blocks.number, ((0,),)), 0.0)
    tier.over(Transferred(states.number, (), "the driver says no"), 0.0)
    assert not pinned


def test_a_state_of_another_prefix_with_the_digest_is_not_found() -> None:
    """A state of another prefix with the same digest is not found. It was copied to the card while
    the card computed the other prefix: its own block is gone from the host, and the state goes too
    when its copy is over.
    """
    pool = _opened(6)
    tier = HostTier(TierRoom(6, state_pages=1), pool)
    digest = BlockDigest(b"d" * 16)
    tier.computed(digest, 0, ROOT, b"1000", is_first=True)
    tier.saved(digest, 0, is_final=True)
    _store_all(tier)
    tier.left(EntryKind.STATE, digest)
    tier.left(EntryKind.BLOCK, digest)
    state = tier.state(digest)
    assert state is not None
    tier.load(TierLoad([], (state, 0), lambda _num_good, _has_state: None))
    (transfer,) = tier.transfers(0.0)
    tier.computed(digest, 1, ROOT, b"2000", is_first=True)
    tier.over(Transferred(transfer.number, (), "the driver says no"), 0.0)
    assert state.tier_state is TierState.NOWHERE
    assert tier.state(digest) is None
    pool.check_integrity()


def test_stores_wait_for_loads_that_cannot_begin_yet() -> None:
    class Waiting:
        has_more = True

        def begin_next(self) -> bool:
            return False

    pool = _opened(2)
    tier = HostTier(TierRoom(2), pool)
    tier.source = source = Waiting()
    tier.computed(BlockDigest(b"d" * 16), 0, ROOT, b"1000", is_first=True)
    assert tier.transfers(0.0) == []
    source.has_more = False
    assert len(tier.transfers(0.0)) == 1


def test_a_page_is_unknown_before_it_is_written_again() -> None:
    """A page is marked unknown before it is written again, also in a pool that has not read the
    page's index entry.
    """
    region = bytearray(TierLayout(IDENTITY, 4096, 4).num_bytes)
    _stored(_opened(4, region), _block(1))
    assert [page for page, _ in _index(region).records()] != []
    assert _opened(4, region).take(4, 7, 0.0) is not None
    assert list(_index(region).records()) == []


def test_what_has_left_the_card_is_not_to_be_stored() -> None:
    """A block that has left the card is no longer to be stored: the list does not grow, and the
    loop does not run for it.
    """
    tier = HostTier(TierRoom(4), _opened(4))
    digest = BlockDigest(b"d" * 16)
    tier.computed(digest, 0, ROOT, b"1000", is_first=True)
    assert tier.has_to_store
    assert tier.left(EntryKind.BLOCK, digest)
    assert not tier.has_to_store
