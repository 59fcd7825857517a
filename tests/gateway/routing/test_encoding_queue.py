"""Whose text is encoded next."""

from gateway.routing.encoding_queue import (
    MAX_WAITING_BYTES,
    SHORT_BYTES,
    EncodingQueue,
    EncodingVisit,
)

LONG = 7_000_000
STEP = SHORT_BYTES


def started(queue: EncodingQueue) -> list[EncodingVisit]:
    found = []
    while (visit := queue.next()) is not None:
        found.append(visit)
    return found


def test_one_thread_is_kept_for_short_texts() -> None:
    """Long ones of any number of keys never hold both."""
    queue = EncodingQueue(2)
    longs = [queue.enter(key, "", 1, LONG) for key in "abc"]
    for visit in longs:
        queue.ask(visit, STEP)
    assert started(queue) == longs[:1]
    short = queue.enter("z", "", 1, 1000)
    queue.ask(short, 1000)
    assert started(queue) == [short]


def test_keys_take_turns_whatever_one_of_them_sends() -> None:
    """Six texts of one key and one of another: every second step is the other's."""
    queue = EncodingQueue(1)
    longs = [queue.enter("much", str(i), 1, LONG) for i in range(6)]
    for visit in longs:
        queue.ask(visit, STEP)
    served = []
    (working,) = started(queue)
    other = queue.enter("other", "", 1, LONG)
    queue.ask(other, STEP)
    for _ in range(20):
        queue.end(working)
        queue.ask(working, STEP)
        (working,) = started(queue)
        served.append(working.key)
    assert served.count("other") in (10, 11)


def test_a_shorter_text_of_the_same_key_goes_first() -> None:
    queue = EncodingQueue(1)
    long = queue.enter("", "", 1, LONG)
    queue.ask(long, STEP)
    assert started(queue) == [long]
    queue.end(long)
    queue.ask(long, STEP)
    middle = queue.enter("", "", 1, SHORT_BYTES + 1)
    queue.ask(middle, SHORT_BYTES + 1)
    assert started(queue) == [middle]


def test_a_request_that_leaves_while_it_waits_is_forgotten() -> None:
    queue = EncodingQueue(1)
    first, second = queue.enter("a", "", 1, LONG), queue.enter("b", "", 1, LONG)
    for visit in (first, second):
        queue.ask(visit, STEP)
    assert started(queue) == [first]
    queue.cancel(second)
    queue.leave(second)
    queue.end(first)
    queue.leave(first)
    assert started(queue) == []
    assert queue.num_bytes == 0


def test_long_texts_are_bounded_and_short_ones_are_not() -> None:
    queue = EncodingQueue()
    while queue.has_room(LONG):
        queue.enter("a", "", 1, LONG)
    assert MAX_WAITING_BYTES <= queue.num_bytes < MAX_WAITING_BYTES + LONG
    assert queue.has_room(SHORT_BYTES)
