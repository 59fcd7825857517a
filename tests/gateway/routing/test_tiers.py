"""Blocks on a card and blocks on a host: what the index knows of them, and what a hit costs."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.effects import Assign
from gateway.routing.placement_cost import Option, PlacementWork, choose
from gateway.routing.prefix_index import BlockEventResult, PrefixIndex
from gateway.routing.worker import LEAST_LOAD_BYTES_PER_S, PRIOR_LOAD_BYTES_PER_S, Worker
from protocol import wire
from protocol.ids import BlockDigest, WorkerId
from protocol.messages import BlocksDropped, BlocksSnapshot, BlocksStored, CacheUse, Load, Tier
from tests.fakes.fleet import BLOCK, W1, W2, W3, chain, dispatch, facts, hello, load, only, request

PROMPT = chain(("p", 10))
BLOCK_BYTES = 2_000_000


def packed(*digests: BlockDigest) -> bytes:
    return b"".join(digests)


def on(tier: Tier, seq: int, digests: tuple[BlockDigest, ...]) -> BlocksStored:
    return BlocksStored(seq, packed(*digests), tier)


def with_host(load_bytes_per_s: float = 0.0, *, running: int = 0) -> Load:
    use = CacheUse(10**12, 0, block_bytes=BLOCK_BYTES, load_bytes_per_s=load_bytes_per_s)
    return msgspec.structs.replace(load(running=running), cache=use)


def worker(worker_id: WorkerId, load_bytes_per_s: float = 0.0, *, running: int = 0) -> Worker:
    one = Worker(worker_id, hello(f"w{worker_id[0]}", facts()), 0.0)
    one.report(with_host(load_bytes_per_s, running=running), 0.0)
    return one


def work(blocks: int = 1000) -> PlacementWork:
    return PlacementWork("s", blocks * BLOCK + 8, BLOCK, 100)


# The protocol.


def test_what_an_older_worker_says_is_of_its_card() -> None:
    """Blocks of an older worker, whose frames lack the newer fields, count as on its card."""
    old = msgspec.msgpack.encode([39, 1, PROMPT[0]])
    event = wire.decode_from_worker(old)
    assert event == BlocksStored(1, PROMPT[0], "card")
    snapshot = wire.decode_from_worker(msgspec.msgpack.encode([41, 3, PROMPT[0], b""]))
    assert snapshot == BlocksSnapshot(3, PROMPT[0])
    cache = [4096, 1024, 512, 256, 96, 32, 3, 2, 1]
    said = wire.decode_from_worker(
        msgspec.msgpack.encode([42, 1, 0, 0, 9, 9, 5, 0, 4.0, 0.0, 0, None, cache])
    )
    assert isinstance(said, Load)
    assert said.cache is not None
    assert (said.cache.recovered, said.cache.block_bytes, said.cache.load_bytes_per_s) == (1, 0, 0)
    one = Worker(W1, hello("w1", facts()), 0.0)
    one.report(said, 0.0)
    assert one.load_s(10**6, 0.0) == 0.0


def test_an_unknown_tier_is_refused() -> None:
    with pytest.raises(wire.WireError, match="disk"):
        wire.decode_from_worker(msgspec.msgpack.encode([39, 1, PROMPT[0], "disk"]))


# The index.


def test_the_index_knows_where_the_card_s_part_ends() -> None:
    index = PrefixIndex()
    index.add(W1, 0.0)
    index.apply(W1, BlocksSnapshot(0, packed(*PROMPT[:8]), b"", packed(*PROMPT[5:8])), 0.0)
    assert index.match(PROMPT) == {W1: 8}
    assert [index.num_on_card(W1, PROMPT, depth) for depth in (0, 5, 6, 8)] == [0, 5, 5, 5]
    assert (index.num_blocks(W1), index.num_on_host(W1)) == (8, 3)
    index.apply(W1, on("card", 1, PROMPT[5:7]), 0.0)
    assert index.num_on_card(W1, PROMPT, 8) == 7
    index.apply(W1, on("host", 2, PROMPT[2:7]), 0.0)
    assert index.num_on_card(W1, PROMPT, 8) == 2
    assert index.match(PROMPT) == {W1: 8}
    index.apply(W1, BlocksDropped(3, packed(*PROMPT[4:8])), 0.0)
    assert index.match(PROMPT) == {W1: 4}
    assert (index.num_on_card(W1, PROMPT, 4), index.num_on_host(W1)) == (2, 2)
    assert index.num_on_card(W2, PROMPT, 4) == 4


class _Told:
    """One worker: the leading blocks on its card, and how far its host's part goes. It tells an
    index of both.
    """

    def __init__(self, index: PrefixIndex, worker_id: WorkerId) -> None:
        self.index = index
        self.worker_id = worker_id
        self.card = self.end = self.seq = 0
        self.is_known = False
        index.add(worker_id, 0.0)
        self.snapshot(0)

    def compute(self, at: int) -> None:
        """Compute or load blocks: the card has them from now on."""
        if at >= self.card:
            self._say(on("card", self.seq + 1, PROMPT[self.card : at + 1]))
            self.card, self.end = at + 1, max(self.end, at + 1)

    def park(self, at: int) -> None:
        if at < self.card:
            self._say(on("host", self.seq + 1, PROMPT[at : self.card]))
            self.card = at

    def drop(self, at: int) -> None:
        if self.card <= at < self.end:
            self._say(BlocksDropped(self.seq + 1, packed(*PROMPT[at : self.end])))
            self.end = at

    def lose(self, _at: int) -> None:
        """An event that does not arrive."""
        self.seq += 1

    def snapshot(self, _at: int) -> None:
        known = packed(*PROMPT[: self.end]), b"", packed(*PROMPT[self.card : self.end])
        self.index.apply(self.worker_id, BlocksSnapshot(self.seq, *known), 0.0)
        self.is_known = True

    def restart(self, _at: int) -> None:
        """The host's part stays."""
        self.index.add(self.worker_id, 0.0)
        self.card, self.seq, self.is_known = 0, 0, False

    def check(self) -> None:
        depth = self.index.match(PROMPT).get(self.worker_id, 0)
        assert depth in {0, self.end}
        if depth:
            assert self.index.num_on_card(self.worker_id, PROMPT, depth) == self.card
            assert self.index.num_on_host(self.worker_id) == depth - self.card
        else:
            assert not self.end or not self.is_known

    def _say(self, event: BlocksStored | BlocksDropped) -> None:
        self.seq += 1
        result = self.index.apply(self.worker_id, event, 0.0)
        self.is_known = self.is_known and result is BlockEventResult.APPLIED


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["compute", "park", "drop", "lose", "snapshot", "restart"]),
            st.sampled_from([0, 1]),
            st.integers(0, 9),
        ),
        max_size=40,
    )
)
def test_the_tiers_of_the_index_equal_a_naive_model(steps: list[tuple[str, int, int]]) -> None:
    """A card forgets from the end, and what is behind its part may be on the host. Through lost
    events, snapshots and restarts of two workers.
    """
    index = PrefixIndex()
    workers = [_Told(index, each) for each in (W1, W2)]
    for kind, number, at in steps:
        getattr(workers[number], kind)(at)
        for each in workers:
            each.check()
    index.sweep()


# The cost.


def test_the_card_beats_the_host_and_the_host_beats_nothing() -> None:
    """With links that are as fast as usual, and equal work elsewhere."""
    card, host, cold = worker(W1), worker(W2), worker(W3)
    options = [Option(cold, 0, 0), Option(host, 900, 0, host_blocks=900), Option(card, 900, 0)]
    decision = choose(work(), options, 0.0)
    costs = {score.option.worker.worker_id: score.cost_ms for score in decision.scores}
    assert decision.worker is card
    assert costs[W1] < costs[W2] < costs[W3]
    assert choose(work(), options[:2], 0.0).worker is host


def test_an_idle_cold_worker_beats_a_slow_load() -> None:
    """900 blocks of 2 MB at 0.1 GB/s take 18 s; computing them takes less."""
    slow, cold = worker(W1, 1e8), worker(W2)
    options = [Option(slow, 900, 0, host_blocks=900), Option(cold, 0, 0)]
    decision = choose(work(), options, 0.0)
    assert decision.worker is cold
    assert decision.why == "moved"
    fast = [Option(worker(W1, 50e9), 900, 0, host_blocks=900), options[1]]
    assert choose(work(), fast, 0.0).worker.worker_id == W1


def test_a_load_costs_its_bytes_at_the_measured_rate() -> None:
    one = worker(W1, 10e9)
    (score,) = choose(work(), [Option(one, 900, 0, host_blocks=500)], 0.0).scores
    assert (score.cached_tokens, score.host_tokens) == (900 * BLOCK, 500 * BLOCK)
    assert score.load_ms == pytest.approx(1000 * 500 * BLOCK_BYTES / 10e9)
    parts = score.wait_ms + score.load_ms + score.prefill_ms + score.interference_ms
    assert score.cost_ms == pytest.approx(parts)
    told = score.candidate(is_chosen=True)
    assert (told.host_tokens, told.load_ms) == (500 * BLOCK, round(score.load_ms, 3))


def test_before_the_first_load_a_usual_rate_counts_and_nonsense_is_bounded() -> None:
    for said, meant in ((0.0, PRIOR_LOAD_BYTES_PER_S), (5e-324, LEAST_LOAD_BYTES_PER_S)):
        one = worker(W1, said)
        assert one.load_s(BLOCK, 0.0) == pytest.approx(BLOCK_BYTES / meant)


def test_loads_share_one_link_and_hide_behind_prefills() -> None:
    """A second load waits for the first one; what is computed meanwhile costs no time."""
    one = worker(W1, 10e9)
    option = Option(one, 900, 0, host_blocks=500)
    alone = choose(work(), [option], 0.0).best.load_ms
    assert one.load_s(500 * BLOCK, 0.0) == pytest.approx(alone / 1000)
    fleet = dispatch((W1, facts()))
    fleet.heard(W1, with_host(10e9), 0.0)
    fleet.heard(W1, on("host", 1, chain(("q", 500))), 0.0)
    only(fleet.tickets.ask(request(1, chain(("q", 500))), 0.0), Assign)
    (view,) = list(fleet.fleet)
    assert view.load_s(500 * BLOCK, 0.0) == pytest.approx(2 * alone / 1000)
    assert view.load_s(500 * BLOCK, 1.0) == pytest.approx(alone / 1000)
    busy = [option]
    wait_s = view.step_s
    one._free_at = one._open_at = wait_s
    hidden = choose(work(), busy, 0.0).best
    assert hidden.wait_ms == pytest.approx(1000 * wait_s)
    assert hidden.load_ms == pytest.approx(max(0.0, alone - hidden.wait_ms))


def test_a_load_does_not_make_a_worker_seem_slow() -> None:
    """A load does not make a worker seem slow: the prefill took a tenth of the time, and the load
    the rest.
    """
    fleet = dispatch((W1, facts()))
    digests = chain(("q", 500))
    fleet.heard(W1, with_host(1e9), 0.0)
    (view,) = list(fleet.fleet)
    before = view.prefill_rate.tokens_per_s
    fleet.heard(W1, on("host", 1, digests), 0.0)
    fleet.tickets.ask(request(1, digests), 0.0)
    assert view.reservations[1].host_tokens == 500 * BLOCK
    fleet.tickets.started(1, 1.1)
    assert view.prefill_rate.tokens_per_s == before


def test_a_request_goes_to_the_card_that_has_its_prefix() -> None:
    """The whole way: events of two workers, and an operator's view of the decision."""
    fleet = dispatch((W1, facts()), (W2, facts()))
    digests = chain(("q", 500))
    for worker_id in (W1, W2):
        fleet.heard(worker_id, with_host(), 0.0)
    fleet.heard(W1, on("card", 1, digests), 0.0)
    fleet.heard(W1, on("host", 2, digests[100:]), 0.0)
    fleet.heard(W2, on("card", 1, digests), 0.0)
    views = {view.worker_id: view for view in fleet.workers()}
    assert (views[W1].cached_blocks, views[W1].host_blocks) == (500, 400)
    assert (views[W2].cached_blocks, views[W2].host_blocks) == (500, 0)
    asked = only(fleet.tickets.ask(request(1, digests), 0.0), Assign)
    assert asked.worker_id == W2
    fleet.heard(W2, BlocksDropped(2, packed(*digests)), 0.0)
    fleet.tickets.release(1, 0.0, 1)
    again = only(fleet.tickets.ask(request(2, digests), 0.0), Assign)
    assert again.worker_id == W1
    assert f"{400 * BLOCK} on its host; wait 0 + load " in again.reason
