"""Until when a peer's next bytes are awaited."""

import math

from hypothesis import given
from hypothesis import strategies as st

from gateway.http.server.parser import ParserLimits, RequestParser
from gateway.http.server.read_deadlines import Deadlines, ReadDeadlines

DEADLINES = Deadlines()
HEAD = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n"


class Watched:
    """A parser that is fed, and looked at each second."""

    def __init__(self) -> None:
        self.parser = RequestParser(ParserLimits())
        self.now = 100.0
        self.num_answered = 0
        self.is_answering = False
        self._patience = ReadDeadlines(DEADLINES, self.now)

    def overdue_in(self, data: bytes = b"", *, drips: bytes = b"") -> float:
        """After `data` came, how long until the peer is overdue, sending from `drips` meanwhile."""
        self.parser.feed(data)
        for second in range(1_000):
            phase = self._patience.look(
                self.parser,
                self.now,
                num_answered=self.num_answered,
                is_answering=self.is_answering,
            )
            if phase is not None:
                return second
            self.parser.feed(drips[second : second + 1])
            self.now += 1
        return math.inf


def test_each_part_has_its_time() -> None:
    """Idle, head and body each count from their own beginning, whatever drips in."""
    assert Watched().overdue_in() == DEADLINES.idle_s
    assert Watched().overdue_in(drips=b"\r\n" * 500) == DEADLINES.idle_s
    assert Watched().overdue_in(HEAD[:10]) == DEADLINES.head_s
    assert Watched().overdue_in(HEAD[:24], drips=b"x" * 500) == DEADLINES.head_s
    assert Watched().overdue_in(HEAD + b"1234") == DEADLINES.body_silence_s
    slow = HEAD.replace(b" 9", b" 500")
    assert Watched().overdue_in(slow, drips=bytes(500)) == DEADLINES.body_grace_s + 1


def test_the_servers_own_time_is_not_the_peers() -> None:
    """While a whole request is answered, or a body waits to be taken, nobody is overdue."""
    watched = Watched()
    watched.is_answering = True
    assert watched.overdue_in(HEAD + bytes(9)) == math.inf
    assert watched.overdue_in(HEAD[:10]) == math.inf
    watched = Watched()
    assert watched.overdue_in(HEAD.replace(b" 9", b" 999999") + bytes(300_000)) == math.inf


def test_each_wait_is_a_new_one() -> None:
    """A connection that is idle again, or sends its next head, has its whole time again."""
    watched = Watched()
    for begin in (b"", HEAD[:10]):
        for _ in range(3):
            assert watched.overdue_in(begin) == (DEADLINES.head_s if begin else DEADLINES.idle_s)
            watched.parser = RequestParser(ParserLimits())
            watched.num_answered += 1


@given(parts=st.lists(st.tuples(st.floats(0.01, 25), st.integers(1, 100_000)), max_size=40))
def test_a_body_may_be_slow_but_not_slower_than_the_rate(parts: list[tuple[float, int]]) -> None:
    """A body is overdue when it is silent too long, or behind the least rate after its grace."""
    began_at = now = 50.0
    num_bytes = 0
    for gap_s, size in parts:
        now += gap_s
        num_bytes += size
        due_at = DEADLINES.body_by(began_at, now, num_bytes)
        passed_s = now - began_at
        is_behind = num_bytes < (passed_s - DEADLINES.body_grace_s) * DEADLINES.min_body_bytes_per_s
        assert (due_at < now) == is_behind
        assert due_at <= now + DEADLINES.body_silence_s
