"""The simulated cache against the engine's block manager."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from benchmarks.routing.cache import BlockCache, EndlessCache
from protocol.hashing import block_digests, root_digest
from protocol.ids import BlockDigest
from protocol.tokens import pack_tokens
from workers.scheduler.block_manager import BlockManager
from workers.scheduler.block_table import BlockTable
from workers.scheduler.retention import ReturnExpectation

SIZE = 2
ROOT = root_digest("tiny")
NUM_BLOCKS = 9


@dataclass
class Held:
    """One sequence in both worlds."""

    ids: array[int]
    table: BlockTable
    named: list[BlockDigest] = field(default_factory=list)
    num_blocks: int = 0


class CacheAgainstManager(RuleBasedStateMachine):
    """The same sequences come, are computed, grow and go in both."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(NUM_BLOCKS, SIZE)
        self.cache = BlockCache(NUM_BLOCKS)
        self.held: list[Held] = []
        self.num_gone = 0

    @rule(ids=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def comes(self, ids: list[int]) -> None:
        """A sequence is admitted where there is room, with the same hits."""
        one = Held(array("I", ids), BlockTable(ROOT))
        digests = block_digests(ROOT, pack_tokens(ids), SIZE)[: (len(ids) - 1) // SIZE]
        hit = self.manager.match(one.table, one.ids)
        assert self.cache.match(digests) == (len(hit.block_ids), hit.num_free)
        if not self.manager.can_admit(hit, len(ids), 0):
            return
        self.manager.admit(one.table, hit, len(ids))
        one.named = digests[: len(hit.block_ids)]
        one.num_blocks = -(-len(ids) // SIZE)
        self.cache.hold(one.named)
        self.cache.allocate(one.num_blocks - len(one.named))
        self.held.append(one)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def is_computed(self, data: st.DataObject) -> None:
        """A sequence has been computed: its full blocks can be found, whichever sequence was
        first.
        """
        one = data.draw(st.sampled_from(self.held))
        num_computed = data.draw(st.integers(0, len(one.ids)))
        self.manager.store(one.table, one.ids, num_computed)
        digests = block_digests(ROOT, pack_tokens(one.ids), SIZE)
        for digest in digests[len(one.named) : num_computed // SIZE]:
            self.cache.store(digest, one.named[-1] if one.named else None)
            one.named.append(digest)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), token=st.integers(0, 1))
    def grows(self, data: st.DataObject, token: int) -> None:
        """A sequence takes a block for its next token, if there is one."""
        one = data.draw(st.sampled_from(self.held))
        has_room = len(one.ids) < one.num_blocks * SIZE or self.cache.num_free > 0
        assert self.manager.grow(one.table, len(one.ids) + 1) == has_room
        if not has_room:
            return
        one.ids.append(token)
        num_new = -(-len(one.ids) // SIZE) - one.num_blocks
        self.cache.allocate(num_new)
        one.num_blocks += num_new

    @precondition(lambda self: self.held)
    @rule(data=st.data(), seconds=st.sampled_from((0.0, 0.1, 30.0)))
    def goes(self, data: st.DataObject, seconds: float) -> None:
        """A sequence gives all its blocks back, a while later."""
        one = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.num_gone += 1
        self.manager.now = self.cache.now = self.manager.now + seconds
        self.manager.release(one.table, self.num_gone)
        self.cache.release(one.named, one.num_blocks - len(one.named), self.num_gone)

    @rule(
        back=st.integers(0, 3),
        conversation=st.sampled_from("abc"),
        expected=st.builds(ReturnExpectation, st.floats(0, 1), st.floats(0.01, 1e3)),
    )
    def is_expected(self, back: int, conversation: str, expected: ReturnExpectation) -> None:
        """Both get the same expectation for the blocks that one of the last sequences left."""
        for world in (self.manager, self.cache):
            world.retain(self.num_gone - back, conversation, expected)

    @invariant()
    def both_tell_the_same(self) -> None:
        """Both have the same free blocks, and report the same events in the same order."""
        assert self.cache.num_free == self.manager.num_free
        assert self.cache.take_events() == self.manager.take_events()
        self.manager.check_integrity([one.table for one in self.held])


TestCacheAgainstManager = CacheAgainstManager.TestCase
TestCacheAgainstManager.settings = settings(stateful_step_count=40)


def test_an_endless_cache_never_forgets_and_is_shared() -> None:
    """What one worker computed, another one finds, though nothing of it counts against its room."""
    known: set[BlockDigest] = set()
    here, there = EndlessCache(2, known), EndlessCache(2, known)
    names = block_digests(ROOT, pack_tokens(range(8)), SIZE)
    for name in names:
        here.allocate(1)
        here.store(name)
        here.release([name], 0)
    assert there.match(names) == (4, 4)
    there.hold(names[:2])
    assert (here.num_free, there.num_free) == (2, 0)
    assert there.match(names) == (4, 2)
    there.release(names[:2], 0)
    assert there.num_free == 2
    assert there.take_events() == ()
