"""Virtual token counters."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.fair_shares import MAX_IDLE_SESSIONS, FairShares, cost_of


def test_output_costs_four_times() -> None:
    """An output token is charged as four uncached prompt tokens."""
    assert cost_of(100, 25) == 200


def test_the_least_served_key_goes_first() -> None:
    """What a key was served counts against it, divided by its weight."""
    shares = FairShares()
    for key in ("a", "b"):
        shares.enter(key, "s")
    shares.charge("a", "s", 1.0, 1000)
    shares.charge("b", "s", 4.0, 2000)
    assert shares.served("b") < shares.served("a")


def test_sessions_share_their_key() -> None:
    """Ten sessions of one key do not earn ten shares; within the key the least served is next."""
    shares = FairShares()
    for session in ("one", "two"):
        shares.enter("many", session)
        shares.charge("many", session, 1.0, 100)
    shares.charge("many", "two", 1.0, 1)
    assert shares.served("many") == 201
    assert shares.due("many", "one", 9) < shares.due("many", "two", 9)


def test_an_idle_key_returns_at_the_minimum() -> None:
    """Idleness saves nothing up, and debts to those at work stay."""
    shares = FairShares()
    shares.enter("idle", "s")
    shares.enter("busy", "s")
    shares.leave("idle", "s")
    shares.charge("busy", "s", 1.0, 5000)
    shares.enter("idle", "s")
    assert shares.served("idle") == shares.served("busy") == 5000


def test_counters_start_again_when_no_key_is_active() -> None:
    """Use of an idle fleet is no debt later."""
    shares = FairShares()
    shares.enter("a", "s")
    shares.charge("a", "s", 1.0, 1_000_000)
    shares.leave("a", "s")
    shares.enter("b", "s")
    shares.enter("a", "s")
    assert shares.served("a") == shares.served("b") == 0.0
    assert shares.due("a", "s", 9) == shares.due("b", "s", 9) == 9


def test_a_session_that_comes_back_pays_from_where_the_others_are() -> None:
    """What the others had while it was idle is not its to have now."""
    shares = FairShares()
    for session in ("stays", "returns"):
        shares.enter("k", session)
    shares.leave("k", "returns")
    shares.charge("k", "stays", 1.0, 1000)
    shares.enter("k", "returns")
    shares.charge("k", "returns", 1.0, 600)
    assert shares.due("k", "returns", 0) == 1600


def test_idle_sessions_are_forgotten_at_last() -> None:
    """The memory of idle sessions is bounded; the longest idle go, and nobody at work."""
    shares = FairShares()
    shares.enter("k", "stays")
    for number in range(3 * MAX_IDLE_SESSIONS):
        shares.enter("k", str(number))
        shares.leave("k", str(number))
    sessions = shares._keys.members["k"].sessions
    assert len(sessions.members) == 1
    assert len(sessions.idle) == MAX_IDLE_SESSIONS
    assert str(3 * MAX_IDLE_SESSIONS - 1) in sessions.idle
    assert shares.due("k", "stays", 9) == 9
    assert shares._keys.num_active == 1


def test_short_requests_pass_long_ones_but_not_for_ever() -> None:
    """Within a key, who would be done first under equal parts goes first; the clock moves on, so
    that a long prompt is due before short ones that come much later.
    """
    shares = FairShares()
    for session in ("long", "short"):
        shares.enter("k", session)
    long_one = shares.due("k", "long", 10_000)
    assert shares.due("k", "short", 100) < long_one
    for number in range(30):
        shares.enter("k", f"s{number}")
        shares.charge("k", f"s{number}", 1.0, 1_000)
        shares.leave("k", f"s{number}")
    shares.enter("k", "new")
    assert shares.due("k", "new", 100) == 30 * 1_000 / 3 + 100 > long_one


@given(st.lists(st.integers(1, 1000), min_size=30, max_size=60))
def test_backlogged_keys_get_shares_by_weight(costs: list[int]) -> None:
    """Keys that always wait are served in proportion to their weights, within one request."""
    shares, weights = FairShares(), {"a": 1.0, "b": 3.0}
    served = dict.fromkeys(weights, 0.0)
    for key in weights:
        shares.enter(key, "s")
    for cost in costs:
        key = min(weights, key=shares.served)
        shares.charge(key, "s", weights[key], cost)
        served[key] += cost
    assert abs(served["a"] / 1.0 - served["b"] / 3.0) <= 1000


def test_a_request_is_overdue_behind_the_work_before_it() -> None:
    """1.2 times what waited, and three times its own, counted from what its key was served so far;
    neither other keys nor the weight of a key change that.
    """
    shares = FairShares()
    shares.enter("a", "s")
    shares.enter("b", "s")
    shares.charge("a", "s", 4.0, 1_000)
    shares.charge("b", "s", 1.0, 50)
    assert shares.overdue_at("a", 500.0, 10.0) == 1_000 + 600 + 30
    shares.charge("a", "s", 4.0, -1_000)
    assert shares.total("a") == 0.0
