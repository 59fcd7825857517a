"""Random walks of a tier under conversations that do not all fit on the card, beside naive books.

Most prompts find something on the host. Pages change there, the cache is cleared, clients leave in
the middle of loads, pages open late or never. The card's model (`tests/fakes/card.py`) proves what
each block holds, the ledger that the events agree with each other.
"""

import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from protocol.hashing import block_digests, root_digest
from protocol.messages import CacheUse
from protocol.tokens import pack_tokens
from tests.fakes.scheduling import MODEL, Engine, make_submit, split_digests
from workers.scheduler.tier import EntryKind, HostTier, Index, Name, TierLayout, TierPool, TierState

BLOCK = 4
TURNS = 30
"""Blocks of the longest turn of a conversation."""
NUM_TALKS = 5
SEEDS = st.integers(0, 2**32 - 1)
ROOT = root_digest(MODEL)
seen: Counter[str] = Counter()


def _talk(number: int) -> list[int]:
    """The tokens of a conversation. The first blocks are those of all."""
    common = [11 + index for index in range(2 * BLOCK)]
    rng = random.Random(number)
    return [*common, *(rng.randrange(20, 200) for _ in range((TURNS - 2) * BLOCK))]


class TierWalk(RuleBasedStateMachine):
    """48 blocks on the card, and a few more on the host. `num_states` None: keys and values."""

    num_states: int | None = None

    @initialize(num_late=st.integers(0, 20), lookahead=st.integers(0, 1))
    def begin(self, num_late: int, lookahead: int) -> None:
        """The last pages of the host open later, or not at all."""
        pages = 72
        self.engine = Engine(
            num_blocks=48,
            host_pages=pages,
            copies=True,
            num_states=self.num_states,
            context_length=4 * TURNS + 8,
            token_budget=64,
            lookahead=lookahead,
        )
        pool = self.tier.pool
        self.layout = TierLayout(bytes(32), 64, pages)
        self.region = bytearray(self.layout.num_bytes)
        pool._index = Index(memoryview(self.region), self.layout)
        self.late = list(range(pages - num_late, pages))
        for page in self.late:
            pool._is_open[page] = False
            pool._free.remove(page)
        pool._num_open = pages - num_late
        self.number = 0
        self.live: set[int] = set()
        self.parents: dict[bytes, bytes] = {}
        for talk in map(_talk, range(NUM_TALKS)):
            digests = block_digests(ROOT, pack_tokens(talk), BLOCK)
            self.parents.update((child, parent) for parent, child in pairwise([ROOT, *digests]))

    @property
    def tier(self) -> HostTier:
        tier = self.engine.scheduler.blocks.tier
        assert tier is not None
        return tier

    @rule(seed=SEEDS)
    def act(self, seed: int) -> None:
        """One of all things that happen, each as often as it should."""
        rng = random.Random(seed)
        rng.choices((self._ask, self._go_on, self._disturb), (4, 5, 2))[0](rng)
        self._settle()

    def _ask(self, rng: random.Random) -> None:
        """A turn of a conversation."""
        prompt = _talk(rng.randrange(NUM_TALKS))[: BLOCK * rng.randrange(3, TURNS + 1)]
        self.number += 1
        self.live.add(self.number)
        self.engine.submit(make_submit(self.number, prompt, max_tokens=1))

    def _go_on(self, rng: random.Random) -> None:
        """Some turns of the loop."""
        for _ in range(rng.randrange(1, 13)):
            self.engine.step()

    def _disturb(self, rng: random.Random) -> None:
        """Something that happens now and then."""
        kind = rng.choice(
            ("flip", "flip", "flip", "leave", "open", "clear", "clear the card", "end", "kill")
        )
        seen[kind] += 1
        match kind:
            case "flip" if names := self.tier.pool.names:
                for name in rng.sample(names, min(len(names), 6)):
                    self._flip(name)
            case "leave" if self.live:
                number = rng.choice(sorted(self.live))
                key = number.to_bytes(16, "little"), 0
                self.engine.ledger.hear(self.engine.scheduler.abort(1, *key))
            case "open" if self.late:
                self.engine.scheduler.blocks.tier.open(range(self.late[0], self.late.pop(0) + 1))
            case "end" if self.late and rng.random() < 0.2:
                self.engine.scheduler.blocks.tier.open(range(0))
                self.late.clear()
            case "clear" if rng.random() < 0.2:
                self.engine.scheduler.blocks.clear()
            case "kill":
                self._recover()
            case "clear the card" if rng.random() < 0.6:
                self.engine.scheduler.blocks.clear_card()

    def _recover(self) -> None:
        """An engine that begins now finds all that is not on its way to the host."""
        pool = TierPool(self.tier.pool.num_pages, Index(memoryview(self.region[:]), self.layout))
        pool.recover(0.0)
        pool.check_integrity()
        ours = {name: self.tier.pool.get(name) for name in self.tier.pool.names}
        arriving = (TierState.STORING, TierState.PARTING)
        kept = {
            name for name, one in ours.items() if one is not None and one.tier_state not in arriving
        }
        kept -= {name for name, one in ours.items() if one is not None and one.is_doomed}
        assert set(pool.names) == kept
        for name in kept:
            found, own = pool.get(name), ours[name]
            assert found is not None
            assert own is not None
            assert (found.pages, found.checksums, found.proof, found.before, found.depth) == (
                own.pages, own.checksums, own.proof, own.before, own.depth,
            )  # fmt: skip

    def _flip(self, name: Name) -> None:
        entry = self.tier.pool.get(name)
        assert entry is not None
        if entry.tier_state.may_leave_host:
            other = [-1] if name.kind is EntryKind.STATE else [(0, 0)] * BLOCK
            self.engine.runner.host[entry.pages[0]] = other

    @invariant()
    def books_agree(self) -> None:
        """Events, snapshots and figures say the same, and no prefix has a hole."""
        engine = self.engine
        engine.check()
        ledger = engine.ledger
        ledger.hear(engine.scheduler.take_events())
        snapshot = engine.scheduler.snapshot()
        assert split_digests(snapshot.digests) == ledger.cached
        assert split_digests(snapshot.states) == ledger.states <= ledger.cached
        assert split_digests(snapshot.on_host) == ledger.on_host <= ledger.cached
        known = {*ledger.cached, ROOT}
        entries = map(self.tier.pool.get, self.tier.pool.names)
        going = {one.name.digest for one in entries if one is not None and one.is_doomed}
        holes = [one for one in ledger.cached - going if self.parents.get(one, ROOT) not in known]
        assert not holes, "only what is copied now may stay without what it needs"
        use = engine.scheduler.load(1, 0.0, 0.0).cache
        assert use is not None
        self._check_figures(use)

    def _check_figures(self, use: CacheUse) -> None:
        assert 0 <= use.loaded_tokens <= use.hit_tokens <= use.prompt_tokens
        started = [one for plan in self.engine.plans for one in plan.started]
        assert use.prompt_tokens == sum(len(one.token_ids) for one in started)
        found = sum(one.cached_tokens for one in self.engine.ledger.accepted.values())
        assert found <= use.hit_tokens
        if not self.live:
            assert found <= use.hit_tokens <= found + seen["leave"] * BLOCK * TURNS
        tier, runner = self.tier, self.engine.runner
        under_way = self.tier._under_way.values()
        moving = sum(len(one.pages) for what in under_way for one, _ in what.items)
        assert tier.num_stored <= runner.num_stored <= tier.num_stored + moving
        lost = runner.num_loaded - tier.num_loaded
        assert tier.num_spoilt <= lost + moving
        assert 0 <= lost <= tier.num_spoilt + moving
        assert tier.pool.num_used == len(self.tier.pool._owners) <= tier.pool.num_usable

    def teardown(self) -> None:
        """What waits is served, whatever has changed on the host, and nothing stays held."""
        if not hasattr(self, "engine"):
            return
        self.engine.drain(limit=3000)
        for _ in range(200):
            if self.engine.scheduler.is_copying:
                self.engine.step()
        self._settle()
        assert not self.live
        assert not self.engine.scheduler.is_copying
        assert not self.tier.is_clearing
        load = self.engine.scheduler.load(1, 0.0, 0.0)
        assert load.free_blocks == load.num_blocks
        assert load.cache is not None
        seen["loaded"] += self.engine.runner.num_loaded
        seen["spoilt"] += load.cache.spoilt
        seen["from the host"] += load.cache.loaded_tokens
        seen["evicted"] += load.cache.evicted
        seen["served"] += len(self.engine.ledger.finished)
        self.engine.scheduler.blocks.clear()
        assert self.tier.pool.names == []
        assert self.tier.pool.num_used == 0

    def _settle(self) -> None:
        ledger = self.engine.ledger
        self.live -= {*ledger.finished, *ledger.rejected}


class StateWalk(TierWalk):
    """With recurrent states."""

    num_states = 12


@pytest.mark.parametrize("walk", [TierWalk, StateWalk])
def test_a_tier_survives_random_walks(walk: type[TierWalk]) -> None:
    """The bounds are a third of what one run saw."""
    seen.clear()
    num_walks = max(20, settings().max_examples // 30)
    run_state_machine_as_test(
        walk, settings=settings(max_examples=num_walks, stateful_step_count=60)
    )
    assert seen["loaded"] > 150
    assert seen["spoilt"] > 9
    assert seen["from the host"] > 800
    assert seen["evicted"] > 300
    assert seen["served"] > 150
