"""Until when a peer's next bytes are awaited."""

import math

from hypothesis import given
from hypothesis import strategies as st

from gateway.http.server.limits import Deadlines, Limits
from gateway.http.server.parser import RequestParser
from gateway.http.server.patience import Patience

DEADLINES = Deadlines()
HEAD = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n"


def test_each_part_has_its_time() -> None:
    """Idle, head and body each count from their own beginning; while the server acts, nothing."""
    parser, patience = RequestParser(Limits()), Patience(DEADLINES, 100.0)
    assert patience.due_at == 100.0 + DEADLINES.idle_s

    def at(now: float, data: bytes, *, is_answering: bool = False) -> float:
        parser.feed(data)
        patience.observe(parser, now, is_answering=is_answering)
        return patience.due_at

    assert at(110.0, b"\r\n") == 100.0 + DEADLINES.idle_s
    assert at(120.0, HEAD[:5]) == 120.0 + DEADLINES.head_s
    assert at(130.0, HEAD[5:10]) == 120.0 + DEADLINES.head_s
    assert at(131.0, HEAD[10:], is_answering=True) == 131.0 + DEADLINES.body_silence_s
    assert at(132.0, b"1234", is_answering=True) < 131.0 + DEADLINES.body_grace_s + 1
    assert at(133.0, b"56789", is_answering=True) == math.inf
    assert at(134.0, HEAD[:5], is_answering=True) == math.inf
    assert at(200.0, b"") == 200.0 + DEADLINES.head_s


@given(parts=st.lists(st.tuples(st.floats(0.01, 25), st.integers(1, 100_000)), max_size=40))
def test_a_body_may_be_slow_but_not_slower_than_the_rate(parts: list[tuple[float, int]]) -> None:
    """It is overdue when it is silent too long, or behind the least rate after its grace."""
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
