"""The holders of each block of the key-value cache, and the blocks that can be found by content.

Owns reference counts, the prefix cache and the blocks without content, which are reused first. Must
not know sequences, scheduling or tensors: a block is a number. `retention.py` ranks what is cached.

Paged blocks and an automatic prefix cache over full blocks, after vLLM (Kwon et al. 2023). Three
rules keep cached prefixes free of holes, so that a router may trust every digest that it received:
a sequence whose new block equals a cached one takes the cached one in its place (so a cached
block's parents are held by every holder of the block); a block is evicted after those behind it;
and of two chains the one of less expected value goes first, by default the least recently used one.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from itertools import repeat
from operator import ne
from typing import Final, NamedTuple, TypeAlias, final

from protocol.hashing import chained_digests, split_blocks
from protocol.ids import BlockDigest
from protocol.messages import BlockEvent, BlocksSnapshot, Tier
from protocol.tokens import pack_tokens
from workers.scheduler.block_events import BlockEvents
from workers.scheduler.block_table import BlockTable
from workers.scheduler.held import HeldCounts, HeldPlaces
from workers.scheduler.integrity import CachedBlock, Parent, check_blocks
from workers.scheduler.planned_blocks import PlannedBlocks
from workers.scheduler.retention import EvictionMeter, KeptChains, ReturnExpectation
from workers.scheduler.saving import NoPrefixStates, PrefixStates
from workers.scheduler.swapping import NoSwapSpace, SwapSpace
from workers.scheduler.tier import EntryKind, HostTier, Name, NoHostTier
from workers.scheduler.windows import NoWindowPool, WindowPool

_NOT_CACHED: Final = -1

_SHRINKS: Final = 32
"""When the cached blocks do not fit on the host, this fraction of them is forgotten at a time."""

_REMEMBERED: Final = 4
"""An evicted block is remembered until the cache was filled so often again; it takes 100 bytes."""

Digests: TypeAlias = Callable[[BlockDigest, Iterable[bytes]], list[BlockDigest]]
"""What `protocol.hashing.chained_digests` does."""


class PrefixHit(NamedTuple):
    """The cached blocks from which a sequence can begin; no sequence holds `num_free` of them.
    `num_matched` leading blocks are cached: more than `block_ids` where the model keeps recurrent
    states and none is saved behind the rest.
    """

    block_ids: tuple[int, ...]
    num_free: int
    num_matched: int


@final
class BlockManager:
    """`num_blocks` blocks of `block_size` tokens.

    `planned` are blocks that their holders will compute. `states` are given for a model with
    recurrent layers: a sequence can begin only from a saved state, so cached blocks beyond the
    deepest one are no hit. `swap` keeps in the host's memory what a preempted sequence loses, and
    `tier` what the prefix cache has. Events say which tier has what. `windows` are the
    blocks of layers that keep only their window; then snapshots are made of these blocks instead of
    states, and there is no tier.

    A long prompt has a thousand blocks, whose handling delays its first token and the next step. So
    methods take many blocks and loop over them without a call for each.

    `now` is the time of the last message, in seconds; the caller sets it. Evictions depend on it.
    `promised` free blocks are kept for loads that have begun, which take them part by part.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        digests: Digests = chained_digests,
        states: PrefixStates | None = None,
        swap: SwapSpace | None = None,
        tier: HostTier | None = None,
        windows: WindowPool | None = None,
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool of {num_blocks} blocks of {block_size} tokens holds nothing")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._chain = digests
        self._num_holders = [0] * num_blocks
        self._cached: list[CachedBlock | None] = [None] * num_blocks
        self._by_digest: dict[BlockDigest, int] = {}
        self._blank = deque(range(num_blocks))
        self._kept = KeptChains(block_size)
        self.evictions = EvictionMeter(_REMEMBERED * num_blocks)
        self.now = 0.0
        self._events = BlockEvents()
        self._growth = 0
        self._growth_each = 0
        self._num_admitted = 0
        self._num_taken = 0
        self.promised = 0
        self.planned = PlannedBlocks()
        self.states = NoPrefixStates() if states is None else states
        self.swap = NoSwapSpace() if swap is None else swap
        self.tier = NoHostTier() if tier is None else tier
        self.windows = NoWindowPool() if windows is None else windows
        slots = self.states.pool
        slots.events, slots.tier = self._events, self.tier
        if windows is not None:
            if states is None or tier is not None or swap is not None:
                raise ValueError("windows need snapshots, and no host tier")
            states.windows = windows
            slots.released = windows.drop
            windows.evict = slots.evict_least
        if tier is not None:
            tier.changed, tier.moved = self._announce, self._announce_tier
            tier.pool.returns.block_size = block_size
            tier.pin_state, tier.unpin_state = slots.pin, slots.unpin

    def __repr__(self) -> str:
        return (
            f"<BlockManager {self.num_free}/{self.num_blocks} free, {len(self._by_digest)} cached>"
        )

    @property
    def num_free(self) -> int:
        """Blocks that no sequence holds, cached ones included, and that are promised to none."""
        return len(self._blank) + len(self._kept) - self.promised

    def num_needed(self, num_tokens: int) -> int:
        """How many blocks hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def match(self, table: BlockTable, token_ids: array[int]) -> PrefixHit:
        """The longest cached prefix of `token_ids` without the last token, which must be computed
        to sample the next.

        Changes nothing except that `table` remembers the digests. Token ids are compared, so a
        hash collision ends the prefix.
        """
        num_tokens = (len(token_ids) - 1) // self.block_size * self.block_size
        blocks = split_blocks(pack_tokens(token_ids[:num_tokens]), self.block_size)
        self._add_digests(table, blocks[len(table.digests) :])
        held, block_ids = self._cached, self._found(table.digests[: len(blocks)])
        contents = [cached for id_ in block_ids if (cached := held[id_]) is not None]
        _, packed, parents = zip(*contents, strict=True) if contents else ((), (), ())
        num_equal = min(_num_equal(packed, blocks), _num_equal(parents, (table.root, *block_ids)))
        hit = tuple(block_ids[: self.states.depth(table.digests[:num_equal])])
        num_free = [self._num_holders[block_id] for block_id in hit].count(0)
        return PrefixHit(hit, num_free, num_equal)

    def can_admit(
        self, hit: PrefixHit, num_tokens: int, reserve: int, table: BlockTable | None = None
    ) -> bool:
        """Whether a table of `num_tokens` tokens fits and leaves `reserve` blocks free, or as many
        as `expect` has named if that is more. While no table holds blocks, one may take them all.
        `table` is that of the sequence, where there are windows, whose blocks are promised to it.
        """
        if not self._windows_admit(hit, num_tokens, table):
            return False
        num_free = self.num_free
        if num_free < self.num_blocks:
            reserve = max(reserve, self._growth)
        num_new = self.num_needed(num_tokens) - len(hit.block_ids)
        if num_new + hit.num_free + reserve <= num_free:
            return True
        self.windows.promised = 0
        return False

    def _windows_admit(self, hit: PrefixHit, num_tokens: int, table: BlockTable | None) -> bool:
        if not isinstance(self.windows, WindowPool):
            return True
        assert table is not None
        num_hit, pool = len(hit.block_ids), self.states.pool
        own = pool.slot_of(table.digests[num_hit - 1]) if num_hit else None
        num_new = num_tokens - num_hit * self.block_size
        return self.windows.can_admit(pool.pinned, num_new, own)

    def expect(self, growth: int, each: int) -> None:
        """Set how many blocks `can_admit` leaves free: `growth` for the tables that hold blocks and
        the next one to be admitted, and `each` more for every one after that.
        """
        self._growth, self._growth_each = growth, each

    def take_admitted(self) -> tuple[int, int]:
        """How many tables were admitted since the last call, and how many free blocks they took."""
        taken = self._num_admitted, self._num_taken
        self._num_admitted = self._num_taken = 0
        return taken

    def admit(self, table: BlockTable, hit: PrefixHit, num_tokens: int) -> None:
        """Let an empty `table` hold the blocks of `hit`, from a `match` just made, and new ones up
        to `num_tokens` tokens. Announces the new full blocks as planned. Ask `can_admit` first.
        """
        self._hold(hit.block_ids, table.digests)
        num_new = self.num_needed(num_tokens) - len(hit.block_ids)
        table.extend([*hit.block_ids, *self._allocate(num_new)])
        table.num_stored = len(hit.block_ids)
        self._growth += self._growth_each
        self._num_admitted += 1
        self._num_taken += num_new + hit.num_free
        num_full = (num_tokens - 1) // self.block_size
        if num_full > table.num_stored:
            self.planned.announce(table, num_full, self._found_at_once)

    def hold_cached(self, table: BlockTable, num_cached: int) -> None:
        """Let an empty `table` hold the cached blocks of its first `num_cached` digests."""
        found = self._found(table.digests[:num_cached])
        self._hold(found, table.digests)
        table.extend(found)
        table.num_stored = num_cached

    def take_promised(self, table: BlockTable, count: int) -> list[int]:
        """Let `table` hold `count` of the `promised` blocks, which the caller fills."""
        assert count <= self.promised
        new = self._allocate(count)
        self.promised -= count
        table.extend(new)
        return new

    def free_among(self, digests: Sequence[BlockDigest]) -> tuple[tuple[int, ...], int]:
        """The cached blocks of leading digests, and how many of them no sequence holds."""
        found = self._found(digests)
        return tuple(found), [self._num_holders[block_id] for block_id in found].count(0)

    def clear(self) -> int:
        """Forget all cached blocks that no sequence holds, on all tiers. Returns how many entries
        went.
        """
        return self.clear_card() + self.tier.clear()

    def clear_card(self) -> int:
        """Forget all cached blocks of the card that no sequence holds. Returns how many went."""
        gone = self._victims(len(self._kept))
        self._blank.extend(gone)
        return len(gone)

    def shrink(self, fits: Callable[[HeldCounts], bool]) -> int:
        """Forget cached blocks of the card that no sequence holds, those of least value first,
        until the rest `fits`. Returns how many went.
        """
        num_gone = 0
        while self._kept and not fits(self.held_counts()):
            gone = self._victims(-(-len(self._kept) // _SHRINKS))
            self._blank.extend(gone)
            num_gone += len(gone)
        return num_gone

    def held_counts(self) -> HeldCounts:
        """How many blocks and slots of the card hold prefixes."""
        used = self.states.pool.used
        return HeldCounts(len(self._by_digest), len(self.windows.kept), len(used))

    def held_places(self) -> HeldPlaces:
        """Which blocks and slots of the card hold prefixes."""
        block_ids, used = tuple(sorted(self._by_digest.values())), tuple(self.states.pool.used)
        return HeldPlaces(block_ids, self.windows.kept, used)

    def grow(self, table: BlockTable, num_tokens: int) -> bool:
        """Make `table` hold `num_tokens` tokens; False, with nothing changed, if too few blocks are
        free.
        """
        num_new = self.num_needed(num_tokens) - len(table.block_ids)
        if num_new > self.num_free:
            return False
        if not self.windows.extend(table.window, num_tokens):
            return False
        if num_new > 0:
            table.extend(self._allocate(num_new))
        return True

    def store(self, table: BlockTable, token_ids: array[int], num_computed: int) -> None:
        """Put the full blocks below position `num_computed` into the prefix cache."""
        if not table.is_cacheable:
            return
        size, first = self.block_size, table.num_stored
        packed = pack_tokens(token_ids[first * size : num_computed // size * size])
        blocks = split_blocks(packed, size)
        self._add_digests(table, blocks[len(table.digests) - first :])
        for index, block in enumerate(blocks, first):
            table.is_cacheable = self._store_block(table, index, block)
            if not table.is_cacheable:
                break
            table.num_stored = index + 1
        self.planned.computed(table.digests[first : table.num_stored])
        if not table.is_cacheable:
            self.planned.withdraw(table)

    def name(self, table: BlockTable, token_ids: array[int], num_tokens: int) -> None:
        """Add to `table` the digests of the full blocks of the first `num_tokens` of `token_ids`,
        or of all ids if there are fewer.
        """
        first, size = len(table.digests), self.block_size
        end = min(num_tokens, len(token_ids)) // size
        self._add_digests(
            table, split_blocks(pack_tokens(token_ids[first * size : end * size]), size)
        )

    def release(self, table: BlockTable, name: object = None, *, is_use: bool = True) -> None:
        """Take back all blocks of `table`. Cached ones can be found until they are reused; `name`
        is that of their chain, for `retain`. Without `is_use` the host's copies are not used by it.
        """
        self.planned.withdraw(table)
        self.windows.clear(table.window)
        chain = table.digests[: table.num_stored]
        if is_use and not table.is_private:
            self.tier.used(chain, name, self.now)
        num_stored, block_ids = table.num_stored, table.clear()
        num_holders = self._num_holders
        free: list[BlockDigest] = []
        for block_id, digest in zip(block_ids, chain, strict=False):
            num_holders[block_id] = num_left = num_holders[block_id] - 1
            if num_left == 0:
                free.append(digest)
        self._kept.keep(chain, free, name, self.now)
        self._let_go_blank(block_ids[num_stored:][::-1])

    def retain(self, name: object, conversation: object, expected: ReturnExpectation) -> bool:
        """Set on all tiers what is expected of the prefix that was released under `name`; see
        `KeptChains`.
        """
        is_known = self._kept.retain(name, conversation, expected)
        return self.tier.retain(name, conversation, expected) or is_known

    def take_events(self) -> tuple[BlockEvent, ...]:
        """What changed in the prefix cache since the last call, oldest first."""
        return self._events.take()

    def snapshot(self) -> BlocksSnapshot:
        """All digests of the prefix cache. Call `take_events` first: events from before the
        snapshot must not follow it.
        """
        saved = self.states.pool.saved
        if not isinstance(self.tier, HostTier):
            return self._events.snapshot(self._by_digest, saved)
        blocks, states = self.tier.known()
        return self._events.snapshot(
            dict.fromkeys([*self._by_digest, *blocks]),
            dict.fromkeys([*saved, *states]),
            self.tier.on_host_alone(),
        )

    def check_integrity(self, tables: Collection[BlockTable]) -> None:
        """Raise `IntegrityError` unless `tables` are exactly what is held. O(blocks)."""
        free = [*self._blank, *(self._by_digest[digest] for digest in self._kept)]
        check_blocks(self._num_holders, self._cached, self._by_digest, free, tables)
        self._kept.check_integrity(self._parents())
        self.planned.check_integrity(tables, self._found_at_once)
        slots = self.states.pool
        slots.check_integrity(self._by_digest)
        self.windows.check_integrity([table.window for table in tables], slots.used)

    def _announce(self, name: Name, is_known: bool) -> None:
        """A block or a state came into the first tier that has it, or left the last."""
        events = self._events
        if name.kind is EntryKind.STATE:
            (events.saved if is_known else events.forgotten)(name.digest)
        elif is_known:
            events.stored(name.digest)
        else:
            events.dropped(name.digest)
            self.evictions.evicted(name.digest)

    def _announce_tier(self, digest: BlockDigest, tier: Tier) -> None:
        """A block that is known left the card for the host, or came back."""
        (self._events.stored if tier == "card" else self._events.left_card)(digest)

    @property
    def _found_at_once(self) -> Container[BlockDigest]:
        """Blocks that no sequence waits for: the cached ones. In a model with recurrent states none
        are, because sequences wait for the states behind cached blocks.
        """
        return () if self.states.has_any else self._by_digest

    def _store_block(self, table: BlockTable, index: int, block: bytes) -> bool:
        """Put one block into the cache, or hold its cached twin instead. False if another content
        has the same digest.
        """
        digest = table.digests[index]
        parent = table.block_ids[index - 1] if index else table.root
        twin = self._by_digest.get(digest)
        if twin is None:
            block_id = table.block_ids[index]
            self._cached[block_id] = CachedBlock(digest, block, parent)
            self._by_digest[digest] = block_id
            self.evictions.computed(digest)
            if index:
                self._kept.stored_behind(table.digests[index - 1])
            before = table.digests[index - 1] if index else table.root
            if table.is_private or not self.tier.computed(
                digest, block_id, before, block, is_first=index == 0
            ):
                self._events.stored(digest)
        elif self._holds(twin, block, parent):
            self._hold((twin,), (digest,))
            self._let_go_blank((table.replace(index, twin),))
        else:
            return False
        return True

    def _found(self, digests: Sequence[BlockDigest]) -> list[int]:
        """The cached blocks of the leading digests, as far as there are any."""
        found = list(map(self._by_digest.get, digests, repeat(_NOT_CACHED)))
        return found[: found.index(_NOT_CACHED)] if _NOT_CACHED in found else found

    def _add_digests(self, table: BlockTable, blocks: Sequence[bytes]) -> None:
        """Append the digests of `blocks`, which follow the blocks that have theirs."""
        digests = table.digests
        parent = digests[-1] if digests else table.root
        digests += self._chain(parent, blocks)

    def _holds(self, block_id: int, block: bytes, parent: Parent) -> bool:
        cached = self._cached[block_id]
        return cached is not None and cached.packed_ids == block and cached.parent == parent

    def _hold(self, block_ids: Sequence[int], digests: Sequence[BlockDigest]) -> None:
        """Count one more holder of the cached `block_ids`, the first of which have `digests`."""
        num_holders = self._num_holders
        taken = []
        for block_id, digest in zip(block_ids, digests, strict=False):
            num_held = num_holders[block_id]
            if num_held == 0:
                taken.append(digest)
            num_holders[block_id] = num_held + 1
        self._kept.take(taken)

    def _allocate(self, count: int) -> list[int]:
        """Take `count` free blocks, each held once, and evict what they cached."""
        blank, num_holders = self._blank, self._num_holders
        block_ids = [blank.popleft() for _ in range(min(count, len(blank)))]
        if len(block_ids) < count:
            block_ids += self._victims(count - len(block_ids))
        for block_id in block_ids:
            num_holders[block_id] = 1
        return block_ids

    def _victims(self, count: int) -> list[int]:
        """Evict the cached blocks of least value; they are free for the caller."""
        kept, by_digest = self._kept, self._by_digest
        block_ids = [by_digest[kept.pop(self.now)] for _ in range(count)]
        self._evict(block_ids)
        return block_ids

    def _evict(self, block_ids: Sequence[int]) -> None:
        """Forget what these blocks cached."""
        tier, states = self.tier, self.states.pool
        for block_id in block_ids:
            evicted = self._cached[block_id]
            if evicted is not None:
                digest = evicted.digest
                del self._by_digest[digest]
                self._cached[block_id] = None
                if not tier.left(EntryKind.BLOCK, digest):
                    self._events.dropped(digest)
                    self.evictions.evicted(digest)
                states.forget(digest)

    def _let_go_blank(self, block_ids: Sequence[int]) -> None:
        """Take back blocks without content: they are reused first, the last of them before all."""
        num_holders = self._num_holders
        for block_id in block_ids:
            num_holders[block_id] = num_left = num_holders[block_id] - 1
            if num_left == 0:
                self._blank.appendleft(block_id)

    def _parents(self) -> dict[BlockDigest, BlockDigest | None]:
        """The digest of the block before each cached block, None before a first one."""
        return {
            block.digest: before.digest
            if isinstance(block.parent, int) and (before := self._cached[block.parent])
            else None
            for block in self._cached
            if block is not None
        }


def _num_equal(these: tuple[object, ...], those: tuple[object, ...]) -> int:
    """How many leading items of the two sequences are equal. All are, unless digests have collided,
    so one comparison of the whole comes first.
    """
    if these == those[: len(these)]:
        return len(these)
    return list(map(ne, these, those)).index(True)
