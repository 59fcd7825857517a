"""The prefix index: exact after events, honest after gaps."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.prefix_index import GUESS_S, SNAPSHOT_PATIENCE_S, Heard, PrefixIndex
from protocol.ids import BlockDigest
from protocol.messages import BlocksDropped, BlocksSnapshot, BlocksStored
from tests.fakes.fleet import W1, W2, chain, stored

PROMPT = chain(("p", 10))


def _index(*digests: BlockDigest, seq: int = 0) -> PrefixIndex:
    index = PrefixIndex()
    index.add(W1, 0.0)
    index.apply(W1, BlocksSnapshot(seq=seq, digests=b"".join(digests)), 0.0)
    return index


def test_match_counts_leading_blocks_only() -> None:
    """Blocks without the first one are no prefix, and other workers' blocks do not count."""
    index = _index(*PROMPT[:4])
    assert index.match(W1, PROMPT) == 4
    assert index.match(W2, PROMPT) == 0
    assert _index(*PROMPT[1:]).match(W1, PROMPT) == 0
    assert index.match(W1, ()) == 0


def test_events_are_applied_in_order() -> None:
    """Stored blocks are matched, dropped ones no more."""
    index = _index()
    assert index.apply(W1, stored(1, PROMPT), 0.0) is Heard.APPLIED
    assert index.match(W1, PROMPT) == 10
    assert index.apply(W1, BlocksDropped(seq=2, digests=PROMPT[9]), 0.0) is Heard.APPLIED
    assert index.match(W1, PROMPT) == 9


def test_a_gap_forgets_that_worker_until_a_snapshot() -> None:
    """After a missed event nothing is promised; the snapshot restores the truth."""
    index = _index(*PROMPT)
    assert index.apply(W1, stored(2, PROMPT), 0.0) is Heard.GAP
    assert index.match(W1, PROMPT) == 0
    assert index.apply(W1, stored(3, PROMPT), 0.0) is Heard.STALE
    assert index.apply(W1, BlocksSnapshot(3, b"".join(PROMPT[:7])), 0.0) is Heard.APPLIED
    assert index.match(W1, PROMPT) == 7
    assert index.apply(W1, stored(4, PROMPT[7:]), 0.0) is Heard.APPLIED
    assert index.match(W1, PROMPT) == 10


def test_repeated_and_foreign_events_change_nothing() -> None:
    """An event with an old number, or of a worker without an engine, is stale."""
    index = _index(*PROMPT, seq=5)
    assert index.apply(W1, BlocksDropped(seq=5, digests=PROMPT[0]), 0.0) is Heard.STALE
    assert index.apply(W1, BlocksSnapshot(seq=4, digests=b""), 0.0) is Heard.STALE
    assert index.apply(W2, stored(1, PROMPT), 0.0) is Heard.STALE
    assert index.match(W1, PROMPT) == 10


def test_torn_digests_are_never_applied() -> None:
    """Digests that are no multiple of 16 bytes are a gap; such a snapshot is none."""
    index = _index(*PROMPT)
    assert index.apply(W1, BlocksStored(seq=1, digests=b"short"), 0.0) is Heard.GAP
    assert index.apply(W1, BlocksSnapshot(seq=1, digests=b"short"), 0.0) is Heard.STALE
    assert index.overdue_snapshots(SNAPSHOT_PATIENCE_S) == (W1,)


def test_a_snapshot_that_does_not_come_is_asked_again() -> None:
    """Once per patience, and no more when it has come."""
    index = PrefixIndex()
    index.add(W1, 0.0)
    assert index.overdue_snapshots(SNAPSHOT_PATIENCE_S - 0.1) == ()
    assert index.overdue_snapshots(SNAPSHOT_PATIENCE_S) == (W1,)
    assert index.overdue_snapshots(SNAPSHOT_PATIENCE_S + 0.1) == ()
    index.apply(W1, BlocksSnapshot(seq=9, digests=b""), 0.0)
    assert index.overdue_snapshots(9 * SNAPSHOT_PATIENCE_S) == ()


def test_a_guess_extends_the_match_for_two_seconds() -> None:
    """A routed prompt counts as held until events had time to confirm it."""
    index = _index(*PROMPT[:3])
    index.guess(W1, PROMPT, 3, now=10.0)
    assert index.match(W1, PROMPT) == 10
    index.forget_guesses(10.0 + GUESS_S - 0.1)
    assert index.match(W1, PROMPT) == 10
    index.forget_guesses(10.0 + GUESS_S)
    assert index.match(W1, PROMPT) == 3


def test_a_renewed_guess_lives_on() -> None:
    """The expiry of the first guess does not take the second one with it."""
    index = _index()
    index.guess(W1, PROMPT, 0, now=0.0)
    index.guess(W1, PROMPT, 0, now=1.0)
    index.forget_guesses(GUESS_S)
    assert index.match(W1, PROMPT) == 10
    index.forget_guesses(1.0 + GUESS_S)
    assert index.match(W1, PROMPT) == 0


def test_events_confirm_a_guess_part_by_part() -> None:
    """Reported blocks between guessed ones are matched through."""
    index = _index()
    index.guess(W1, PROMPT[:2], 0, now=0.0)
    index.apply(W1, stored(1, PROMPT[2:5]), 0.0)
    index.guess(W1, PROMPT[:8], 5, now=0.0)
    assert index.match(W1, PROMPT) == 8


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
            known = heard is Heard.APPLIED
        if kind != "skip":
            assert index.held(W1) == (truth if known else set())


@given(held=st.integers(0, 70), guessed=st.integers(0, 70), confirmed=st.integers(0, 70))
def test_match_is_the_longest_held_or_guessed_prefix(
    held: int, guessed: int, confirmed: int
) -> None:
    """Bisection finds what a walk along the chain finds."""
    prompt = chain(("p", 64))
    index = _index(*prompt[:held])
    index.guess(W1, prompt[:guessed], held, now=0.0)
    index.apply(W1, stored(1, prompt[held:confirmed]), 0.0)
    assert index.match(W1, prompt) == min(64, max(held, guessed, confirmed))
