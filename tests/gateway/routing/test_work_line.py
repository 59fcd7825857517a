"""Whose text is encoded next."""

from gateway.routing.work_line import MAX_WAITING_BYTES, SHORT_BYTES, LineVisit, WorkLine

LONG = 7_000_000
STEP = SHORT_BYTES


def started(line: WorkLine) -> list[LineVisit]:
    found = []
    while (visit := line.next()) is not None:
        found.append(visit)
    return found


def test_one_thread_is_kept_for_short_texts() -> None:
    """Long ones of any number of keys never hold both."""
    line = WorkLine(2)
    longs = [line.enter(key, "", 1, LONG) for key in "abc"]
    for visit in longs:
        line.ask(visit, STEP)
    assert started(line) == longs[:1]
    short = line.enter("z", "", 1, 1000)
    line.ask(short, 1000)
    assert started(line) == [short]


def test_keys_take_turns_whatever_one_of_them_sends() -> None:
    """Six texts of one key and one of another: every second step is the other's."""
    line = WorkLine(1)
    longs = [line.enter("much", str(i), 1, LONG) for i in range(6)]
    for visit in longs:
        line.ask(visit, STEP)
    served = []
    (working,) = started(line)
    other = line.enter("other", "", 1, LONG)
    line.ask(other, STEP)
    for _ in range(20):
        line.end(working)
        line.ask(working, STEP)
        (working,) = started(line)
        served.append(working.key)
    assert served.count("other") in (10, 11)


def test_a_shorter_text_of_the_same_key_goes_first() -> None:
    line = WorkLine(1)
    long = line.enter("", "", 1, LONG)
    line.ask(long, STEP)
    assert started(line) == [long]
    line.end(long)
    line.ask(long, STEP)
    middle = line.enter("", "", 1, SHORT_BYTES + 1)
    line.ask(middle, SHORT_BYTES + 1)
    assert started(line) == [middle]


def test_a_request_that_leaves_while_it_waits_is_forgotten() -> None:
    line = WorkLine(1)
    first, second = line.enter("a", "", 1, LONG), line.enter("b", "", 1, LONG)
    for visit in (first, second):
        line.ask(visit, STEP)
    assert started(line) == [first]
    line.cancel(second)
    line.leave(second)
    line.end(first)
    line.leave(first)
    assert started(line) == []
    assert line.num_bytes == 0


def test_long_texts_are_bounded_and_short_ones_are_not() -> None:
    line = WorkLine()
    while line.has_room(LONG):
        line.enter("a", "", 1, LONG)
    assert MAX_WAITING_BYTES <= line.num_bytes < MAX_WAITING_BYTES + LONG
    assert line.has_room(SHORT_BYTES)
