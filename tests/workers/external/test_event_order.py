"""Batches come once and in order, or everything before them is forgotten."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from workers.external.event_order import (
    HELD_BACK,
    REMEMBERED,
    Apply,
    AskReplay,
    EventOrder,
    Forget,
    Step,
)


def _batch(seq: int, life: int = 0) -> bytes:
    return f"{life}:{seq}".encode()


def _numbers(steps: Iterable[Step]) -> list[int | str]:
    """Applied batches by number, and `forget`."""
    told: list[int | str] = []
    for step in steps:
        if isinstance(step, Apply):
            told.append(int(step.payload.partition(b":")[2]))
        elif isinstance(step, Forget):
            told.append("forget")
    return told


def test_batches_in_order_are_applied_at_once() -> None:
    """Batches in order are applied at once, from the first of an engine's life."""
    order = EventOrder(can_replay=True)
    assert [order.live(seq, _batch(seq)) for seq in range(3)] == [
        (Apply(_batch(seq)),) for seq in range(3)
    ]


def test_a_late_subscriber_asks_for_all_that_it_missed() -> None:
    """The first number seen is not 0: the replay begins at 0, and live batches wait for it."""
    order = EventOrder(can_replay=True)
    assert order.live(2, _batch(2)) == (AskReplay(0),)
    assert order.live(3, _batch(3)) == ()
    assert _numbers(order.replayed(0, _batch(0))) == [0]
    assert _numbers(order.replayed(1, _batch(1))) == [1, 2, 3]
    assert not order._waiting
    assert order.replayed(2, _batch(2)) == order.replayed(3, _batch(3)) == ()
    assert order.replay_ended() == ()
    assert _numbers(order.live(4, _batch(4))) == [4]


def test_without_a_replay_everything_is_forgotten_at_a_hole() -> None:
    """What follows the hole is believed again."""
    order = EventOrder(can_replay=False)
    assert _numbers(order.live(0, _batch(0)) + order.live(2, _batch(2))) == [0, "forget", 2]
    assert _numbers(order.live(3, _batch(3))) == [3]


def test_a_replay_that_begins_too_late_is_as_none() -> None:
    """The publisher remembers only so much: what lies before its first batch is lost."""
    order = EventOrder(can_replay=True)
    order.live(0, _batch(0))
    assert order.live(9, _batch(9)) == (AskReplay(1),)
    assert order.replayed(7, _batch(7)) == order.replayed(8, _batch(8)) == ()
    assert _numbers(order.replay_ended()) == ["forget", 7, 8, 9]


def test_only_what_follows_the_last_hole_survives_giving_up() -> None:
    """Batches before a later hole would be forgotten there again."""
    order = EventOrder(can_replay=True)
    for seq in (2, 3, 6, 7):
        order.live(seq, _batch(seq))
    assert _numbers(order.replay_ended()) == ["forget", 6, 7]


def test_a_repeated_batch_is_applied_once() -> None:
    """A repeated batch is applied once, while it waits as well as after."""
    order = EventOrder(can_replay=True)
    order.live(0, _batch(0))
    assert order.live(0, _batch(0)) == ()
    order.live(2, _batch(2))
    assert order.live(2, _batch(2)) == ()
    assert _numbers(order.live(1, _batch(1))) == [1, 2]


def test_an_old_number_with_new_bytes_is_a_new_engine() -> None:
    """An old number with new bytes is a new engine: nothing of the old one holds, nor does what
    waited for its replay.
    """
    order = EventOrder(can_replay=True)
    for seq in (0, 1, 5):
        order.live(seq, _batch(seq))
    assert _numbers(order.live(0, _batch(0, life=1))) == ["forget", 0]
    assert _numbers(order.live(1, _batch(1, life=1))) == [1]
    order.live(5, _batch(5, life=1))
    assert _numbers(order.live(5, _batch(5, life=2))) == ["forget"]


def test_a_number_from_long_ago_is_a_new_engine_too() -> None:
    """Fingerprints are few: beyond them the safe answer is to forget."""
    order = EventOrder(can_replay=True)
    for seq in range(REMEMBERED + 2):
        order.live(seq, _batch(seq))
    assert order.live(2, _batch(2)) == ()
    assert _numbers(order.live(1, _batch(1))) == ["forget"]


def test_a_replay_for_nobody_is_old_news() -> None:
    """What an engine answers after it was replaced must not be taken for the new one's."""
    order = EventOrder(can_replay=True)
    order.live(3, _batch(3))
    assert _numbers(order.restarted()) == ["forget"]
    assert order.replayed(0, _batch(0)) == ()
    assert _numbers(order.live(0, _batch(0, life=1))) == [0]


def test_fingerprints_from_before_a_hole_prove_nothing_behind_it() -> None:
    """Batches with the same bytes at other numbers are not the same batch."""
    order = EventOrder(can_replay=False)
    for seq, payload in ((0, b"a"), (1, b"b"), (5, b"c")):
        order.live(seq, payload)
    assert order.live(4, b"b")[0] == Forget()


def test_what_no_longer_waits_makes_room() -> None:
    """The bound is on what is held back now."""
    order = EventOrder(can_replay=True)
    large = bytes(2**25)
    for seq in range(0, 8, 2):
        assert order.live(seq + 1, large) == (AskReplay(seq),)
        assert len(order.replayed(seq, _batch(seq))) == 2


def test_what_waits_is_bounded() -> None:
    """A replay that never comes does not fill the memory, by count and by bytes."""
    order = EventOrder(can_replay=True)
    steps = [order.live(seq, _batch(seq)) for seq in range(1, HELD_BACK + 2)]
    assert steps[0] == (AskReplay(0),)
    assert all(not step for step in steps[1:-1])
    assert _numbers(steps[-1]) == ["forget", *range(1, HELD_BACK + 2)]
    order = EventOrder(can_replay=True)
    large = bytes(2**25)
    assert order.live(1, large) == (AskReplay(0),)
    assert order.live(2, large) == ()
    assert order.live(3, large)[0] == Forget()


_wire = st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=40)


@given(_wire, st.integers(0, 10), st.booleans())
def test_whatever_the_wire_does_batches_follow_each_other(
    wire: list[tuple[int, bool]], kept: int, can_replay: bool
) -> None:
    """RetryPolicy, repeats and any order, live and replayed: each applied batch is the one after
    the last, or comes first after a `Forget`; and the end of a replay leaves nothing waiting.
    """
    order = EventOrder(can_replay=can_replay)
    told: list[int | str] = []
    for seq, is_live in wire:
        deliver = order.live if is_live else order.replayed
        told += _numbers(deliver(seq, _batch(seq)))
    told += _numbers(order.replay_ended())
    assert not order._waiting
    last: int | str = -1
    for number in told:
        assert number in {"forget", last + 1 if isinstance(last, int) else number}
        last = number


@given(st.permutations(range(10)), st.integers(0, 9))
def test_nothing_is_lost_if_all_arrives_by_either_way(arrivals: list[int], num_live: int) -> None:
    """Any order, any part of it by replay: every batch once, in order, nothing forgotten."""
    order = EventOrder(can_replay=True)
    told: list[int | str] = []
    for seq in arrivals[:num_live]:
        told += _numbers(order.live(seq, _batch(seq)))
    for seq in range(10):
        told += _numbers(order.replayed(seq, _batch(seq)))
    for seq in arrivals[num_live:]:
        told += _numbers(order.live(seq, _batch(seq)))
    assert told == list(range(10))
