"""What a gateway has not read yet, by its pongs."""

from hypothesis import given
from hypothesis import strategies as st

from workers.supervisor.gateway_link import MAX_PONGS, MAX_UNREAD_BYTES, Credit


def test_an_idle_gateway_has_credit() -> None:
    """An idle gateway has credit: nothing is sent and nothing owed; nor does an answer to a ping of
    another life count.
    """
    credit = Credit()
    assert not credit.is_spent
    assert not credit.taken(7)


def test_credit_is_spent_by_what_is_unread() -> None:
    """Credit is spent by what is unread, until the gateway has taken a pong behind it; what came
    after that pong is still unread.
    """
    credit = Credit()
    credit.sent(MAX_UNREAD_BYTES)
    assert not credit.is_spent
    credit.sent(1)
    assert credit.is_spent
    credit.ponged(1)
    credit.sent(MAX_UNREAD_BYTES)
    assert credit.is_spent
    assert credit.taken(1)
    assert not credit.is_spent
    credit.sent(1)
    assert credit.is_spent
    assert not credit.taken(1)


@given(st.lists(st.tuples(st.integers(0, MAX_UNREAD_BYTES // 4), st.integers(0, 8)), max_size=60))
def test_the_account_is_right_at_every_pong(steps: list[tuple[int, int]]) -> None:
    """However far behind the gateway is: unread is what was said after the pong that it took."""
    credit, said, marks = Credit(), 0, [0]
    newest_taken = 0
    for num_bytes, behind in steps:
        credit.sent(num_bytes)
        said += num_bytes
        marks.append(said)
        credit.ponged(len(marks) - 1)
        newest_taken = max(newest_taken, len(marks) - 1 - behind)
        credit.taken(newest_taken)
        assert credit.is_spent == (said - marks[newest_taken] > MAX_UNREAD_BYTES)


def test_a_gateway_that_never_says_what_it_has_read_costs_no_memory() -> None:
    """What it says late counts all the same."""
    credit = Credit()
    for nonce in range(10 * MAX_PONGS):
        credit.sent(1000)
        credit.ponged(nonce)
    assert len(credit._pongs) == MAX_PONGS
    assert credit.is_spent
    assert credit.taken(10 * MAX_PONGS - 1)
    assert not credit.is_spent
