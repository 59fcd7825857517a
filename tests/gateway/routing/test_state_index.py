"""Workers whose models keep states: a prefix counts up to its last state, not to its last block."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.routing.prefix_index import BlockEventResult, PrefixIndex
from gateway.routing.worker import PlaceReservation, Worker
from protocol.ids import BlockDigest, WorkerId
from protocol.messages import (
    BlockEvent,
    BlocksDropped,
    BlocksSnapshot,
    BlocksStored,
    EngineFacts,
    StatesForgotten,
    StatesSaved,
)
from tests.fakes.fleet import (
    W1,
    W2,
    W3,
    chain,
    dispatch,
    facts,
    hello,
    load,
    placed,
    request,
    stored,
)

PROMPT = chain(("p", 10))
HYBRID = replace(facts(), snapshots=8)
EVENTS: dict[str, type[BlockEvent]] = {
    "store": BlocksStored,
    "drop": BlocksDropped,
    "save": StatesSaved,
    "forget": StatesForgotten,
}


def _saved(seq: int, *digests: BlockDigest) -> StatesSaved:
    return StatesSaved(seq, b"".join(digests))


def test_a_prefix_ends_at_its_deepest_state() -> None:
    """Blocks beyond it would be computed again; so would all of them without one."""
    index = PrefixIndex()
    index.add(W1, 0.0, needs_states=True)
    index.add(W2, 0.0)
    for worker_id in (W1, W2):
        index.apply(worker_id, BlocksSnapshot(0, b"".join(PROMPT)), 0.0)
    assert index.match(PROMPT) == {W2: 10}
    assert index.apply(W1, _saved(1, PROMPT[3], PROMPT[7]), 0.0) is BlockEventResult.APPLIED
    assert index.match(PROMPT) == {W1: 8, W2: 10}
    assert index.match(PROMPT[:6]) == {W1: 4, W2: 6}
    index.apply(W1, BlocksDropped(2, PROMPT[7]), 0.0)
    assert index.match(PROMPT)[W1] == 4
    index.apply(W1, StatesForgotten(3, PROMPT[3]), 0.0)
    assert W1 not in index.match(PROMPT)


def test_a_gap_and_a_death_take_the_states_too() -> None:
    """A gap and a death remove the states too, and a snapshot brings back those that exist."""
    index = PrefixIndex()
    index.add(W1, 0.0, needs_states=True)
    blocks = b"".join(PROMPT)
    index.apply(W1, BlocksSnapshot(0, blocks, PROMPT[5]), 0.0)
    assert index.match(PROMPT) == {W1: 6}
    assert index.apply(W1, _saved(2, PROMPT[8]), 0.0) is BlockEventResult.GAP
    index.apply(W1, BlocksSnapshot(2, blocks), 0.0)
    assert index.match(PROMPT) == {}
    index.apply(W1, BlocksSnapshot(3, blocks, PROMPT[2]), 0.0)
    assert index.match(PROMPT) == {W1: 3}
    assert index.apply(W1, BlocksSnapshot(4, blocks, b"torn"), 0.0) is BlockEventResult.STALE
    index.add(W1, 0.0, needs_states=True)
    index.apply(W1, BlocksSnapshot(0, blocks), 0.0)
    assert index.match(PROMPT) == {}
    index.sweep()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["store", "drop", "save", "forget", "lose", "snapshot"]),
            st.sampled_from([W1, W2, W3]),
            st.integers(0, 9),
        ),
        max_size=40,
    )
)
def test_the_index_equals_naive_sets(steps: list[tuple[str, WorkerId, int]]) -> None:
    """Two workers with states and one without, through lost events and snapshots."""
    index = PrefixIndex()
    truth: dict[WorkerId, tuple[set[BlockDigest], set[BlockDigest]]] = {}
    seqs, is_known = dict.fromkeys((W1, W2, W3), 0), dict.fromkeys((W1, W2, W3), True)
    for worker_id in (W1, W2, W3):
        truth[worker_id] = set(), set()
        index.add(worker_id, 0.0, needs_states=worker_id != W3)
        index.apply(worker_id, BlocksSnapshot(0, b""), 0.0)
    for kind, worker_id, at in steps:
        # Prefixes have no holes; states lie anywhere.
        digests = {"store": PROMPT[: at + 1], "drop": PROMPT[at:]}.get(kind, PROMPT[at : at + 1])
        blocks, states = truth[worker_id]
        if kind == "snapshot":
            packed = b"".join(blocks), b"".join(states)
            index.apply(worker_id, BlocksSnapshot(seqs[worker_id], *packed), 0.0)
            is_known[worker_id] = True
            continue
        seqs[worker_id] += 1
        changed = states if kind in ("save", "forget") else blocks
        (changed.difference_update if kind in ("drop", "forget") else changed.update)(digests)
        if kind != "lose":
            event = EVENTS[kind](seqs[worker_id], b"".join(digests))
            applied = index.apply(worker_id, event, 0.0) is BlockEventResult.APPLIED
            is_known[worker_id] = applied
            expected = {each: _depth(*truth[each], each != W3) for each in truth if is_known[each]}
            assert index.match(PROMPT) == {each: depth for each, depth in expected.items() if depth}
        else:
            is_known[worker_id] = False
            index.apply(worker_id, stored(seqs[worker_id] + 1, ()), 0.0)
            seqs[worker_id] += 1


def _depth(blocks: set[BlockDigest], states: set[BlockDigest], needs_states: bool) -> int:
    held = next((at for at, digest in enumerate(PROMPT) if digest not in blocks), len(PROMPT))
    if not needs_states:
        return held
    return max((at + 1 for at in range(held) if PROMPT[at] in states), default=0)


def test_a_prompt_goes_where_it_can_go_on() -> None:
    """A prompt goes where it can go on, and not to a worker that holds more of its blocks but no
    state behind them.
    """
    fleet = dispatch((W1, HYBRID), (W2, HYBRID))
    long = chain(("long", 300))
    for worker_id in (W1, W2):
        fleet.heard(worker_id, load(), 0.0)
    fleet.heard(W1, stored(1, long), 0.0)
    fleet.heard(W2, stored(1, long[:200]), 0.0)
    fleet.heard(W2, _saved(2, long[199]), 0.0)
    assert placed(fleet.tickets.ask(request(1, long), 0.0)) == {1: W2}


@pytest.mark.parametrize(("engine", "behind"), [(HYBRID, 0), (facts(), 300)])
def test_a_prompt_in_progress_is_worth_what_it_will_share(engine: EngineFacts, behind: int) -> None:
    """An engine with states saves one where another prompt parts from it, until it is computed;
    from then on its events say all.
    """
    worker = Worker(W1, hello("w1", engine), 0.0)
    first, second = chain(("shared", 300), ("a", 4)), chain(("shared", 300), ("b", 4))
    asked = request(1, first)
    place = PlaceReservation(asked, "s", worker, 0, asked.prompt_tokens, 100, 0, 0.0, 1.0)
    assert worker.coming_depth(second) == 0
    worker.take(place)
    assert worker.coming_depth(second) == 300
    worker.started(place, 1.0)
    assert worker.coming_depth(second) == behind
    worker.drop(place, 2.0)
    assert worker.coming_depth(second) == 0
