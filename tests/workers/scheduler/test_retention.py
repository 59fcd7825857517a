"""Which cached prefix is evicted first."""

from array import array

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from protocol.ids import BlockDigest
from protocol.messages import Finished, Retain, Submit
from protocol.sampling import SamplingParams
from protocol.tokens import pack_tokens
from workers.scheduler.block_manager import BlockManager
from workers.scheduler.plan import Sampled, StepResult
from workers.scheduler.retention import (
    NEVER,
    UNKNOWN,
    EvictionMeter,
    KeptChains,
    ReturnExpectation,
    value,
)
from workers.scheduler.scheduler import Scheduler, SchedulerLimits

SOON = ReturnExpectation(0.97, 0.5)
LATE = ReturnExpectation(0.97, 120.0)


def digests(name: str, count: int) -> list[BlockDigest]:
    return [BlockDigest(f"{name}-{index}".encode().ljust(16, b"\0")) for index in range(count)]


def cache(*chains: tuple[str, int], block_size: int = 1) -> KeptChains:
    """Chains of these names and lengths, released one second after the other."""
    kept = KeptChains(block_size)
    for second, (name, count) in enumerate(chains):
        chain = digests(name, count)
        for parent in chain[:-1]:
            kept.stored_behind(parent)
        kept.keep(chain, chain, name, float(second))
    return kept


def names(kept: KeptChains, count: int, now: float) -> str:
    """The first letters of the next victims."""
    return "".join(chr(kept.pop(now)[0]) for _ in range(count))


def test_without_expectations_the_least_recently_released_goes_tail_first() -> None:
    kept = cache(("a", 2), ("b", 2))
    expected = [*digests("a", 2)[::-1], *digests("b", 2)[::-1]]
    assert [kept.pop(9.0) for _ in range(4)] == expected
    with pytest.raises(KeyError):
        kept.pop(9.0)


def test_a_conversation_that_is_over_goes_first() -> None:
    kept = cache(("a", 2), ("b", 2))
    assert kept.retain("b", "of b", NEVER)
    assert names(kept, 4, 9.0) == "bbaa"


def test_one_that_comes_back_later_goes_before_one_that_comes_soon() -> None:
    """A conversation that comes back later goes before one that comes soon, until the second has
    been away for so long that it hardly comes back.
    """
    for now, first in ((3.0, "b"), (4000.0, "a")):
        kept = cache(("a", 1), ("b", 1))
        kept.retain("a", "of a", SOON)
        kept.retain("b", "of b", LATE)
        assert names(kept, 1, now) == first


def test_deep_blocks_are_dearer_than_shallow_ones() -> None:
    """A token behind 64k others takes three times the prefill of a first one."""
    kept = cache(("a", 2), ("b", 1), block_size=32_768)
    for name in "ab":
        kept.retain(name, name + "!", SOON)
    assert names(kept, 3, 11.0) == "baa"


def test_what_an_earlier_turn_left_behind_its_successor_goes_first() -> None:
    """The answer's own blocks are not in the next prompt."""
    kept = KeptChains()
    first = digests("a", 4)
    second = [*first[:2], *digests("b", 2)]
    for chain in (first, second):
        for parent in chain[:-1]:
            if chain is first or parent != first[0]:
                kept.stored_behind(parent)
    kept.keep(first, first, 1, 0.0)
    kept.retain(1, "talk", SOON)
    kept.take(first[:2])
    kept.keep(second, second, 2, 1.0)
    other = digests("c", 1)
    kept.keep(other, other, 3, 2.0)
    kept.retain(2, "talk", SOON)
    assert names(kept, 2, 3.0) == "aa"
    assert names(kept, 1, 3.0) == "c"
    assert [kept.pop(3.0) for _ in range(4)] == second[::-1]


def test_a_shared_beginning_outlives_every_chain_behind_it() -> None:
    """A shared beginning outlives every chain behind it, also where the first chain to be evicted
    was released with it.
    """
    kept = KeptChains()
    shared = digests("s", 2)
    one, other = [*shared, *digests("a", 1)], [*shared, *digests("b", 1)]
    for parent in (shared[0], shared[1], shared[1]):
        kept.stored_behind(parent)
    kept.keep(one, one, "one", 0.0)
    kept.take(shared)
    kept.keep(other, other, "other", 1.0)
    kept.retain("other", "o", NEVER)
    assert names(kept, 4, 2.0) == "bass"


def test_an_unknown_name_changes_nothing() -> None:
    kept = cache(("a", 1), ("b", 1))
    assert not kept.retain("c", "talk", NEVER)
    assert names(kept, 2, 9.0) == "ab"


def test_values_fall_with_time_and_rise_with_chance() -> None:
    ages = [value((*UNKNOWN, 1.0), age) for age in (0.0, 1.0, 10.0, 100.0)]
    assert ages == sorted(ages, reverse=True)
    chances = [value((chance, 1.0, 1.0), 5.0) for chance in (0.0, 0.3, 0.9, 1.0)]
    assert chances == sorted(chances)
    assert chances[0] == 0.0


def answered(scheduler: Scheduler, number: int, prompt: list[int]) -> tuple[bytes, int]:
    """Let a sequence of one output run to its end. Returns its name."""
    request_id = number.to_bytes(16, "big")
    packed = pack_tokens(array("I", prompt))
    scheduler.submit(
        1, Submit(request_id, 0, "m", packed, b"", SamplingParams(max_tokens=1), 0), number
    )
    ended = False
    while not ended:
        plan = scheduler.plan()
        assert plan is not None
        sampled = tuple(Sampled(chunk.seq, (9,)) for chunk in plan.chunks if chunk.samples)
        messages = scheduler.commit(plan, StepResult(plan.step, sampled))
        ended = any(isinstance(one.message, Finished) for one in messages)
    return request_id, 0


def test_the_gateway_says_which_prefix_the_engine_keeps() -> None:
    """The gateway says which prefix the engine keeps, by a message about a request that has ended;
    an unknown request is ignored.
    """
    limits = SchedulerLimits(
        max_seqs=4, token_budget=64, context_length=64, max_waiting=4, vocab_size=100
    )
    scheduler = Scheduler(limits, BlockManager(8, 2), ("m",), frozenset({0}))
    over = [*range(10, 18)]
    first = answered(scheduler, 1, [*range(1, 9)])
    last = answered(scheduler, 2, over)
    scheduler.retain(1, Retain(*first, b"agent", 0.97, 0.5), 3.0)
    scheduler.retain(1, Retain(*last, b"done", 0.0, 1.0), 3.0)
    scheduler.retain(1, Retain(bytes(16), 0, b"nobody", 0.5, 1.0), 3.0)
    answered(scheduler, 4, [*range(20, 25)])
    kept = answered(scheduler, 5, [*range(1, 9)])
    assert kept
    finished = _cached(scheduler, 6, [*range(1, 9)]), _cached(scheduler, 7, over)
    assert finished[0] > finished[1]


def _cached(scheduler: Scheduler, number: int, prompt: list[int]) -> int:
    """How many tokens of the prompt are found."""
    request_id = number.to_bytes(16, "big")
    submit = Submit(
        request_id, 0, "m", pack_tokens(array("I", prompt)), b"", SamplingParams(max_tokens=1), 0
    )
    scheduler.submit(1, submit, number)
    plan = scheduler.plan()
    assert plan is not None
    sampled = tuple(Sampled(chunk.seq, (9,)) for chunk in plan.chunks if chunk.samples)
    messages = scheduler.commit(plan, StepResult(plan.step, sampled))
    return next(one.message.cached_tokens for one in messages if isinstance(one.message, Finished))


def test_what_evictions_cost_later_is_counted() -> None:
    """A block that was evicted and computed again counts once for each time."""
    limits = SchedulerLimits(
        max_seqs=4, token_budget=64, context_length=64, max_waiting=4, vocab_size=100
    )
    scheduler = Scheduler(limits, BlockManager(5, 2), ("m",), frozenset({0}))
    answered(scheduler, 1, [*range(1, 9)])
    assert scheduler.load(1, 0.0, 0.0).evicted_blocks == 0
    answered(scheduler, 2, [*range(10, 18)])
    load = scheduler.load(1, 0.0, 0.0)
    assert load.evicted_blocks > 0
    assert load.recomputed_tokens == 0
    answered(scheduler, 3, [*range(1, 9)])
    assert scheduler.load(1, 0.0, 0.0).recomputed_tokens == 2 * load.evicted_blocks


def test_only_so_many_evicted_blocks_are_remembered() -> None:
    meter = EvictionMeter(2)
    gone = digests("a", 3)
    for digest in gone:
        meter.evicted(digest)
    for digest in [*gone, gone[2]]:
        meter.computed(digest)
    assert (meter.num_evicted, meter.num_again) == (3, 2)


def block(*path: int) -> BlockDigest:
    """The block at the end of this way from the first one."""
    return BlockDigest(bytes([len(path), *path]).ljust(16, b"."))


class KeptLives(RuleBasedStateMachine):
    """Sequences that share prefixes come, go, are expected and evicted, against a naive cache: a
    parent and the number of holders for each block.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kept = KeptChains(32)
        self.parents: dict[BlockDigest, BlockDigest | None] = {}
        self.holders: dict[BlockDigest, int] = {}
        self.running: list[list[BlockDigest]] = []
        self.names: list[int] = []
        self.now = 0.0

    @rule(path=st.lists(st.integers(0, 1), min_size=1, max_size=6))
    def begins(self, path: list[int]) -> None:
        """A sequence holds what is cached of its blocks, and computes the others."""
        chain = [block(*path[: end + 1]) for end in range(len(path))]
        idle = [one for one in chain if one in self.parents and not self.holders[one]]
        self.kept.take(idle)
        before: BlockDigest | None = None
        for digest in chain:
            if digest not in self.parents:
                self.parents[digest], self.holders[digest] = before, 0
                if before is not None:
                    self.kept.stored_behind(before)
            self.holders[digest] += 1
            before = digest
        self.running.append(chain)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), is_named=st.booleans())
    def ends(self, data: st.DataObject, is_named: bool) -> None:
        chain = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        for digest in chain:
            self.holders[digest] -= 1
        free = [digest for digest in chain if not self.holders[digest]]
        name = len(self.names) if is_named else None
        self.kept.keep(chain, free, name, self.now)
        if name is not None:
            self.names.append(name)

    @precondition(lambda self: self.names)
    @rule(
        data=st.data(),
        conversation=st.sampled_from("xyz"),
        chance=st.sampled_from((0.0, 0.01, 0.5, 1.0)),
        within_s=st.sampled_from((0.0, 0.1, 30.0, 1e12)),
    )
    def is_expected(
        self, data: st.DataObject, conversation: str, chance: float, within_s: float
    ) -> None:
        name = data.draw(st.sampled_from(self.names))
        self.kept.retain(name, conversation, ReturnExpectation(chance, within_s))

    @rule(seconds=st.sampled_from((0.1, 20.0, 1e7)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(num_blocks=st.integers(1, 4))
    def is_evicted(self, num_blocks: int) -> None:
        """Only what none holds goes, and nothing goes before a block behind it."""
        for _ in range(num_blocks):
            if not any(not count for count in self.holders.values()):
                with pytest.raises(KeyError, match="every cached block is held"):
                    self.kept.pop(self.now)
                return
            gone = self.kept.pop(self.now)
            assert self.holders.pop(gone) == 0
            del self.parents[gone]
            assert gone not in self.parents.values()

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        idle = {digest for digest, count in self.holders.items() if not count}
        assert set(self.kept) == idle
        assert len(self.kept) == len(idle)
        self.kept.check_integrity(self.parents)


TestKeptLives = KeptLives.TestCase
TestKeptLives.settings = settings(
    max_examples=max(60, settings().max_examples // 10), stateful_step_count=50
)
