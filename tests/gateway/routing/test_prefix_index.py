"""The prefix index: exact after events, honest after gaps."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.prefix_index import SNAPSHOT_PATIENCE_S, BlockEventResult, PrefixIndex
from protocol.ids import BlockDigest, WorkerId
from protocol.messages import BlocksDropped, BlocksSnapshot, BlocksStored
from tests.fakes.fleet import W1, W2, chain, stored
from tests.fakes.prefix_holders import holds

PROMPT = chain(("p", 10))


def _index(*digests: BlockDigest, seq: int = 0) -> PrefixIndex:
    index = PrefixIndex()
    index.add(W1, 0.0)
    index.apply(W1, BlocksSnapshot(seq=seq, digests=b"".join(digests)), 0.0)
    return index


def test_match_counts_leading_blocks_only() -> None:
    """Blocks without the first one are no prefix, and other workers' blocks do not count."""
    index = _index(*PROMPT[:4])
    assert index.match(PROMPT).get(W1, 0) == 4
    assert index.match(PROMPT).get(W2, 0) == 0
    assert _index(*PROMPT[1:]).match(PROMPT).get(W1, 0) == 0
    assert index.match(()) == {}


def test_events_are_applied_in_order() -> None:
    """Stored blocks are matched, dropped ones no more."""
    index = _index()
    assert index.apply(W1, stored(1, PROMPT), 0.0) is BlockEventResult.APPLIED
    assert index.match(PROMPT).get(W1, 0) == 10
    assert index.apply(W1, BlocksDropped(seq=2, digests=PROMPT[9]), 0.0) is BlockEventResult.APPLIED
    assert index.match(PROMPT).get(W1, 0) == 9


def test_a_gap_forgets_that_worker_until_a_snapshot() -> None:
    """After a missed event nothing is promised; the snapshot restores the truth."""
    index = _index(*PROMPT)
    assert index.apply(W1, stored(2, PROMPT), 0.0) is BlockEventResult.GAP
    assert index.match(PROMPT).get(W1, 0) == 0
    assert index.apply(W1, stored(3, PROMPT), 0.0) is BlockEventResult.STALE
    assert index.apply(W1, BlocksSnapshot(3, b"".join(PROMPT[:7])), 0.0) is BlockEventResult.APPLIED
    assert index.match(PROMPT).get(W1, 0) == 7
    assert index.apply(W1, stored(4, PROMPT[7:]), 0.0) is BlockEventResult.APPLIED
    assert index.match(PROMPT).get(W1, 0) == 10


def test_repeated_and_foreign_events_change_nothing() -> None:
    """An event with an old number, or of a worker without an engine, is stale."""
    index = _index(*PROMPT, seq=5)
    assert index.apply(W1, BlocksDropped(seq=5, digests=PROMPT[0]), 0.0) is BlockEventResult.STALE
    assert index.apply(W1, BlocksSnapshot(seq=4, digests=b""), 0.0) is BlockEventResult.STALE
    assert index.apply(W2, stored(1, PROMPT), 0.0) is BlockEventResult.STALE
    assert index.match(PROMPT).get(W1, 0) == 10


def test_torn_digests_are_never_applied() -> None:
    """Digests that are no multiple of 16 bytes are a gap; such a snapshot is none."""
    index = _index(*PROMPT)
    assert index.apply(W1, BlocksStored(seq=1, digests=b"short"), 0.0) is BlockEventResult.GAP
    assert index.apply(W1, BlocksSnapshot(seq=1, digests=b"short"), 0.0) is BlockEventResult.STALE
    assert index.overdue_snapshots(SNAPSHOT_PATIENCE_S) == (W1,)


def test_a_snapshot_that_does_not_come_is_asked_again() -> None:
    """A snapshot that does not come is asked again once per patience, and no more when it has
    come.
    """
    index = PrefixIndex()
    index.add(W1, 0.0)
    assert index.overdue_snapshots(SNAPSHOT_PATIENCE_S - 0.1) == ()
    assert index.overdue_snapshots(SNAPSHOT_PATIENCE_S) == (W1,)
    assert index.overdue_snapshots(SNAPSHOT_PATIENCE_S + 0.1) == ()
    index.apply(W1, BlocksSnapshot(seq=9, digests=b""), 0.0)
    assert index.overdue_snapshots(9 * SNAPSHOT_PATIENCE_S) == ()


_events = st.lists(
    st.tuples(
        st.sampled_from(["store", "drop", "skip", "snapshot"]),
        st.sets(st.integers(0, 9)),
    ),
    max_size=40,
)


@given(_events)
def test_the_index_equals_a_naive_set(events: list[tuple[str, set[int]]]) -> None:
    """Through gaps and snapshots the part is empty or exactly what the engine holds."""
    index, truth, seq, known = _index(), set[BlockDigest](), 0, True
    for kind, picks in events:
        digests = [PROMPT[pick] for pick in picks]
        if kind == "snapshot":
            index.apply(W1, BlocksSnapshot(seq, b"".join(truth)), 0.0)
            known = True
        elif kind == "skip":
            truth.update(digests)
            seq += 1
        else:
            seq += 1
            event_type = BlocksStored if kind == "store" else BlocksDropped
            (truth.update if kind == "store" else truth.difference_update)(digests)
            heard = index.apply(W1, event_type(seq, b"".join(digests)), 0.0)
            known = heard is BlockEventResult.APPLIED
        if kind != "skip":
            held = {digest for digest in PROMPT if holds(index, W1, digest)}
            assert held == (truth if known else set())
            assert index.num_blocks(W1) == len(held)


_wire = st.lists(
    st.tuples(
        st.sampled_from(["store", "drop", "lose", "repeat", "swap", "die", "snapshot"]),
        st.sampled_from([W1, W2]),
        st.sets(st.integers(0, 9), max_size=4),
    ),
    max_size=50,
)


@given(_wire)
def test_no_wrong_hit_survives_whatever_the_wire_does(
    steps: list[tuple[str, WorkerId, set[int]]],
) -> None:
    """Events lost, repeated, out of order, for unknown workers or after a death: at every moment
    a worker's part is exactly what it held after the last event that came in order, or empty; and
    a snapshot heals it.
    """
    index = PrefixIndex()
    engines: dict[WorkerId, _Engine] = {}
    for kind, worker_id, picks in steps:
        if kind == "die":
            index.remove(worker_id)
            if engines.pop(worker_id, None) is None:
                engines[worker_id] = _Engine()
                index.add(worker_id, 0.0)
            index.sweep()
            continue
        _one_step(index, engines.get(worker_id), kind, worker_id, picks)
        for known_id, engine in engines.items():
            held = {digest for digest in PROMPT if holds(index, known_id, digest)}
            assert held == engine.told
    for worker_id, engine in engines.items():
        index.apply(worker_id, BlocksSnapshot(engine.seq, b"".join(engine.held)), 0.0)
        assert {digest for digest in PROMPT if holds(index, worker_id, digest)} == engine.held


class _Engine:
    """What an engine holds, and what it held after the last event that came in order."""

    def __init__(self) -> None:
        self.seq = 0
        self.held: set[BlockDigest] = set()
        self.told: set[BlockDigest] = set()
        self.last: BlocksStored | BlocksDropped | None = None


def _one_step(
    index: PrefixIndex, engine: _Engine | None, kind: str, worker_id: WorkerId, picks: set[int]
) -> None:
    digests = [PROMPT[pick] for pick in sorted(picks)]
    if engine is None:
        assert index.apply(worker_id, stored(1, digests), 0.0) is BlockEventResult.STALE
        return
    if kind == "snapshot":
        index.apply(worker_id, BlocksSnapshot(engine.seq, b"".join(engine.held)), 0.0)
        engine.told = set(engine.held)
        return
    if kind == "repeat":
        if engine.last is not None:
            assert index.apply(worker_id, engine.last, 0.0) is not BlockEventResult.APPLIED
        return
    engine.seq += 1
    change = BlocksDropped if kind == "drop" else BlocksStored
    (engine.held.difference_update if kind == "drop" else engine.held.update)(digests)
    if kind == "lose":
        return
    engine.last = change(engine.seq, b"".join(digests))
    if kind == "swap":
        engine.seq += 1
        assert index.apply(worker_id, stored(engine.seq, ()), 0.0) is not BlockEventResult.APPLIED
    heard = index.apply(worker_id, engine.last, 0.0)
    engine.told = set(engine.held) if heard is BlockEventResult.APPLIED else set()
