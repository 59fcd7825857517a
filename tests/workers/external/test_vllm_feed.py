"""From an engine's frames to the gateway's prefix index, over a wire that loses and swaps."""

from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.routing.prefix_index import BlockEventResult, PrefixIndex
from protocol.hashing import block_digests, root_digest
from protocol.ids import BlockDigest
from protocol.tokens import pack_tokens
from tests.fakes.fleet import W1
from tests.fakes.prefix_holders import holds
from tests.fakes.vllm_engine import MODEL, VllmEngine, frames, pack, replay_frames, split
from workers.external.held_blocks import CopyReports, HeldBlocks, model_roots
from workers.external.vllm_feed import REPLAY_END, Heard, VllmFeed

OURS = 32
PROMPT = list(range(2000, 2128))


def _feed(*, can_replay: bool = True, rank: int = 0) -> VllmFeed:
    held = HeldBlocks(
        model_roots(MODEL), block_size=OURS, max_blocks=100_000, copies=CopyReports.COUNTED
    )
    return VllmFeed(held, can_replay=can_replay, rank=rank)


def _digests(prompt: Sequence[int], adapter: str = "") -> list[BlockDigest]:
    return block_digests(root_digest(MODEL, adapter), pack_tokens(prompt), OURS)


class _Gateway:
    """The index of a gateway that one worker feeds."""

    def __init__(self, feed: VllmFeed) -> None:
        self.index = PrefixIndex()
        self.index.add(W1, 0.0)
        self.index.apply(W1, feed.snapshot(), 0.0)

    def hear(self, heard: Heard) -> bytes | None:
        """Every event of ours follows the last: our own wire has no gaps."""
        for message in heard.messages:
            assert self.index.apply(W1, message, 0.0) is BlockEventResult.APPLIED
        return heard.replay_request

    def depth(self, prompt: Sequence[int], adapter: str = "") -> int:
        """How many leading blocks of the prompt the index promises."""
        return self.index.match(_digests(prompt, adapter)).get(W1, 0)


def test_an_engine_with_blocks_of_16_is_matched_in_blocks_of_32() -> None:
    """The way through, without any trouble."""
    feed, engine = _feed(), VllmEngine()
    gateway = _Gateway(feed)
    engine.compute(PROMPT)
    gateway.hear(feed.published(frames(0, engine.batch())))
    assert gateway.depth(PROMPT) == 4
    assert gateway.depth([*PROMPT[:80], *PROMPT[:48]]) == 2
    engine.evict(5)
    gateway.hear(feed.published(frames(1, engine.batch())))
    assert gateway.depth(PROMPT) == 2
    assert not feed.oddities.total()


def test_a_gateway_that_comes_later_gets_all_of_it() -> None:
    """The snapshot stands where the events stand."""
    feed, engine = _feed(), VllmEngine()
    engine.compute(PROMPT[:64])
    feed.published(frames(0, engine.batch()))
    gateway = _Gateway(feed)
    engine.compute(PROMPT)
    gateway.hear(feed.published(frames(1, engine.batch())))
    assert gateway.depth(PROMPT) == 4


def test_missed_batches_are_replayed() -> None:
    """A late subscriber asks for batches from 0 on; a REQ and a DEALER socket show the answer
    differently, and vLLM 0.26 sends the topic too.
    """
    feed, engine = _feed(), VllmEngine()
    gateway = _Gateway(feed)
    payloads = []
    for end in (32, 64, 128):
        engine.compute(PROMPT[:end])
        payloads.append(engine.batch())
    assert gateway.hear(feed.published(frames(2, payloads[2]))) == bytes(8)
    gateway.hear(feed.replayed(replay_frames(0, payloads[0])))
    assert gateway.depth(PROMPT) == 1
    gateway.hear(feed.replayed([b"", *replay_frames(1, payloads[1])]))
    gateway.hear(feed.replayed([b"", b"kv", *replay_frames(2, payloads[2])]))
    gateway.hear(feed.replayed([b"", b"", REPLAY_END, b""]))
    assert gateway.depth(PROMPT) == 4
    assert not feed.oddities.total()


def test_an_unreadable_batch_forgets_everything() -> None:
    """An unreadable batch may have removed anything, so all is forgotten. What follows is used
    again, and the fault is named.
    """
    feed, engine = _feed(), VllmEngine()
    gateway = _Gateway(feed)
    engine.compute(PROMPT)
    gateway.hear(feed.published(frames(0, engine.batch())))
    gateway.hear(feed.published(frames(1, pack([1.5, [["BlockRemoved", "all"]]]))))
    assert gateway.depth(PROMPT) == 0
    assert feed.oddities["bad_batch"] == 1
    assert "event 0 (BlockRemoved)" in feed.last_fault
    engine.clear()
    engine.compute(PROMPT)
    gateway.hear(feed.published(frames(2, engine.batch())))
    assert gateway.depth(PROMPT) == 4


@pytest.mark.parametrize(
    "torn", [[], [b"topic"], [b"topic", bytes(7), b""], [b"topic", bytes(8), b"", b""]]
)
def test_frames_that_are_none_are_counted(torn: list[bytes]) -> None:
    """A batch that was lost with them shows itself by the next number."""
    feed = _feed()
    assert feed.published(torn) == Heard()
    assert feed.replayed(torn) == Heard()
    assert feed.oddities == {"bad_frames": 2}
    assert "KV events: frames of" in feed.last_fault


def test_blocks_of_another_rank_are_not_ours() -> None:
    """Each data-parallel rank has a cache, and a publisher, of its own."""
    feed, engine = _feed(rank=1), VllmEngine()
    gateway = _Gateway(feed)
    engine.compute(PROMPT)
    gateway.hear(feed.published(frames(0, engine.batch(rank=0))))
    assert (gateway.depth(PROMPT), feed.oddities["other_rank"]) == (0, 1)
    engine.compute(PROMPT, beside_another=True)
    gateway.hear(feed.published(frames(1, engine.batch(rank=1))))
    assert gateway.depth(PROMPT) == 4


def test_what_newer_engines_add_is_counted() -> None:
    """What newer engines add is counted, and does no harm."""
    feed = _feed()
    payload = pack([1.5, [["BlockMoved"], ["AllBlocksCleared", 1]], 0, "x"])
    feed.published(frames(0, payload))
    assert feed.oddities == {"unknown_kinds": 1, "unknown_fields": 2}


def test_a_restarted_engine_begins_anew() -> None:
    """Told by its supervisor, or by its numbers."""
    for is_told in (True, False):
        feed, engine = _feed(), VllmEngine()
        gateway = _Gateway(feed)
        engine.compute(PROMPT)
        gateway.hear(feed.published(frames(0, engine.batch())))
        engine = VllmEngine()
        engine.compute(PROMPT[:64])
        if is_told:
            gateway.hear(feed.restarted())
            assert gateway.depth(PROMPT) == 0
        gateway.hear(feed.published(frames(0, engine.batch())))
        assert gateway.depth(PROMPT) == 2
        assert feed.oddities["forgotten"] == 1


_prompts = st.lists(st.integers(0, 2), min_size=1, max_size=5).map(
    lambda parts: [part for part in parts for _ in range(24)]
)


class NoWrongHitSurvives(RuleBasedStateMachine):
    """An engine, a wire that does anything, a replay that remembers little: as long as nothing was
    lost for good the index is exact; and it never promises what is gone.
    """

    @initialize(
        theirs=st.sampled_from([8, 16, 48]), kept=st.integers(0, 6), can_replay=st.booleans()
    )
    def begin(self, theirs: int, kept: int, can_replay: bool) -> None:
        """An engine starts."""
        self.theirs = theirs
        self.engine = VllmEngine(theirs)
        self.seq = 0
        self.life = 0
        self.kept: deque[tuple[int, bytes]] = deque(maxlen=kept)
        self.flying: list[tuple[int, bytes]] = []
        self.feed = _feed(can_replay=can_replay)
        self.gateway = _Gateway(self.feed)
        self.request: bytes | None = None
        self.prompts: set[tuple[int, ...]] = set()

    @rule(prompt=_prompts, twice=st.booleans())
    def compute(self, prompt: list[int], twice: bool) -> None:
        """Prompts come into the cache."""
        self.engine.compute(prompt)
        if twice:
            self.engine.compute(prompt, beside_another=True)
        self.prompts.add(tuple(prompt))
        self._publish()

    @precondition(lambda self: self.engine.copies)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        """A block leaves it."""
        self.engine.evict(data.draw(st.integers(0, len(self.engine.copies) - 1)))
        self._publish()

    @rule()
    def clear(self) -> None:
        """All leave it."""
        self.engine.clear()
        self._publish()

    @rule()
    def restart(self) -> None:
        """A new engine; what the old one published and did not deliver is lost with it. The gap is
        invisible by numbers alone, so whoever holds the connection says so.
        """
        self.engine = VllmEngine(self.theirs)
        self.seq = 0
        self.life += 1
        self.kept.clear()
        self.flying.clear()
        self.request = None
        self._hear(self.feed.restarted())

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), what=st.sampled_from(["deliver", "deliver", "lose", "repeat"]))
    def wire(self, data: st.DataObject, what: str) -> None:
        """Any batch on its way arrives, is lost, or arrives and will again."""
        index = data.draw(st.integers(0, len(self.flying) - 1))
        seq, payload = self.flying[index]
        if what != "repeat":
            del self.flying[index]
        if what != "lose":
            self._hear(self.feed.published(frames(seq, payload)))

    @precondition(lambda self: self.request is not None)
    @rule(works=st.booleans())
    def replay(self, works: bool) -> None:
        """The publisher answers with what it still has, or not at all."""
        assert self.request is not None
        start, self.request = int.from_bytes(self.request, "big"), None
        for seq, payload in self.kept if works else ():
            if seq >= start:
                self._hear(self.feed.replayed(replay_frames(seq, payload)))
        self._hear(self.feed.replayed([REPLAY_END, b""]) if works else self.feed.replay_ended())

    @rule()
    def settle(self) -> None:
        """All that is on its way arrives, a last batch shows what is missing, the replay ends: now
        nothing that is promised is gone; and all is known if nothing was ever forgotten.
        """
        self._publish()
        while self.flying:
            self._hear(self.feed.published(frames(*self.flying.pop(0))))
        if self.request is not None:
            self.replay(works=True)
        truth = self.engine.truth(OURS)
        for prompt in self.prompts:
            digests = _digests(prompt)
            depth = self.gateway.depth(prompt)
            assert truth.issuperset(digests[:depth])
            if self.feed.oddities["forgotten"] == self.life:
                assert depth == sum(digest in truth for digest in digests)

    @invariant()
    def one_history(self) -> None:
        """What the gateway was told is what the feed holds."""
        if hasattr(self, "feed"):
            held = split(self.feed.snapshot().digests)
            assert self.gateway.index.num_blocks(W1) == len(held)
            assert all(holds(self.gateway.index, W1, digest) for digest in held)

    def _publish(self) -> None:
        payload = self.engine.batch()
        self.kept.append((self.seq, payload))
        self.flying.append((self.seq, payload))
        self.seq += 1

    def _hear(self, heard: Heard) -> None:
        self.request = self.gateway.hear(heard) or self.request


NoWrongHitSurvives.TestCase.settings = settings(stateful_step_count=25)
TestNoWrongHitSurvives = NoWrongHitSurvives.TestCase
