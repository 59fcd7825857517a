"""The totals: windows, refusals and the errors for clients."""

import re
from datetime import UTC, datetime

import pytest

from gateway.api.errors import (
    ApiError,
    output_cap_required,
    request_too_costly,
    spending_limit_reached,
)
from gateway.spending.limits import (
    MAX_RETRY_AFTER_S,
    OPEN_RETRY_AFTER_S,
    Account,
    LimitWindow,
    MoneyReservation,
    OverLimit,
    SpendingLimits,
    SpendingTotals,
    Unbounded,
    WorstCase,
)
from gateway.spending.refusals import refusal_error, soonest_refusal
from tests.gateway.spending.test_limits_machine import balances

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()
DAY_S = 86_400.0
LEAST = 2
"""What a request costs at least, if it costs so much at all."""
CLOUD = Account("provider", "cloud")
ALICE = Account("key", "alice")


def worst(cost: int | None = 4, *, provider: str = "cloud", bounded: bool = True) -> WorstCase:
    return WorstCase(
        key="alice",
        model="m",
        provider=provider,
        prompt_tokens=1,
        completion_tokens=1,
        is_bounded=bounded,
        cost=cost,
        least_cost=None if cost is None else min(cost, LEAST),
    )


def reserved(totals: SpendingTotals, cost: int, now: float = NOON) -> MoneyReservation:
    answer = totals.reserve(worst(cost), now)
    assert isinstance(answer, MoneyReservation)
    return answer


def refused(totals: SpendingTotals, cost: int = 4, now: float = NOON) -> OverLimit:
    answer = totals.reserve(worst(cost), now)
    assert isinstance(answer, OverLimit)
    return answer


def test_only_what_fits_is_reserved() -> None:
    """Two of 4 fit into 10, a third does not, and 2 more do."""
    totals = SpendingTotals({CLOUD: SpendingLimits(daily=10)})
    reserved(totals, 4)
    reserved(totals, 4)
    refused(totals)
    reserved(totals, 2)
    refused(totals, 1)
    reserved(totals, 0)


def test_what_was_not_spent_is_free_again() -> None:
    """Settling for less than was reserved makes room; what was spent stays spent."""
    totals = SpendingTotals({CLOUD: SpendingLimits(daily=10)})
    first = reserved(totals, 10)
    totals.settle(first, 3)
    reserved(totals, 7)
    refused(totals, 1)


@pytest.mark.parametrize("account", [CLOUD, ALICE])
def test_a_limit_of_either_account_holds(account: Account) -> None:
    """The provider's and the key's limits are kept apart, and the refusal says which it is."""
    totals = SpendingTotals({account: SpendingLimits(monthly=5)})
    reserved(totals, 5)
    refusal = refused(totals)
    assert (refusal.window.account, refusal.window.period) == (account, "monthly")


def test_another_provider_may_have_room() -> None:
    """The provider's limit does not bind others; the key's does."""
    totals = SpendingTotals({CLOUD: SpendingLimits(daily=5), ALICE: SpendingLimits(daily=8)})
    reserved(totals, 5)
    assert isinstance(totals.reserve(worst(4, provider="other"), NOON), OverLimit)
    assert isinstance(totals.reserve(worst(3, provider="other"), NOON), MoneyReservation)


def test_a_day_ends_at_midnight_and_a_month_with_its_last_day() -> None:
    """A day ends at midnight and a month with its last day, in UTC; a request counts on the day on
    which it was reserved.
    """
    totals = SpendingTotals({CLOUD: SpendingLimits(daily=5, monthly=9)})
    late = reserved(totals, 5)
    tomorrow = NOON + DAY_S
    reserved(totals, 4, tomorrow)
    assert refused(totals, 1, tomorrow).window.period == "monthly"
    totals.settle(late, 0)
    assert refused(totals, 2, tomorrow).window.period == "daily"
    reserved(totals, 5, NOON + 10 * DAY_S)


def test_the_retry_waits_for_the_window_but_not_for_ever() -> None:
    """Open reservations may come free at once; a window is waited for an hour at the most."""
    totals = SpendingTotals({CLOUD: SpendingLimits(daily=5)})
    open_one = reserved(totals, 5)
    assert refused(totals).retry_after_s == OPEN_RETRY_AFTER_S
    totals.settle(open_one, 5)
    assert refused(totals).retry_after_s == MAX_RETRY_AFTER_S
    just_before = datetime(2026, 11, 21, 23, 59, 30, tzinfo=UTC).timestamp()
    refusal = refused(totals, now=just_before)
    assert refusal.retry_after_s == 30
    assert refusal.resets_at == datetime(2026, 11, 22, tzinfo=UTC)


def test_a_limit_is_news_once_per_window() -> None:
    """The event comes again the next day."""
    totals = SpendingTotals({CLOUD: SpendingLimits(daily=0)})
    days = [NOON, NOON, NOON + DAY_S, NOON + DAY_S]
    assert [refused(totals, now=now).is_news for now in days] == [True, False, True, False]


@pytest.mark.parametrize(
    ("limit", "spent", "cost", "is_news"),
    [
        (10, 0, 11, False), (10, 1, 10, False), (10, 4, 7, False),
        (10, 5, 6, False), (10, 6, 6, True), (10, 9, 2, True), (10, 10, 1, True),
        (10, 10, 11, True), (0, 0, 1, True),
    ],
)  # fmt: skip
def test_a_limit_is_reached_by_what_is_spent_not_by_a_large_request(
    limit: int, spent: int, cost: int, is_news: bool
) -> None:
    """What could cost more than was spent says nothing of the limit, and leaves the alarm to what
    comes after it.
    """
    totals = SpendingTotals({CLOUD: SpendingLimits(daily=limit)})
    totals.settle(reserved(totals, 0), spent)
    assert refused(totals, cost).is_news == is_news
    totals.settle(reserved(totals, 0), limit - spent)
    assert refused(totals, 1).is_news == (not is_news)


def test_requests_under_way_do_not_reach_a_limit() -> None:
    """Requests under way do not reach a limit, because they may end without cost."""
    totals = SpendingTotals({CLOUD: SpendingLimits(daily=10)})
    totals.settle(reserved(totals, 5), 5)
    open_one = reserved(totals, 5)
    assert not refused(totals, 4).is_news
    totals.settle(open_one, 5)
    assert refused(totals, 4).is_news


def test_of_several_limits_the_one_that_leaves_least_is_told() -> None:
    """What fits into it fits into all; of equals the one that lasts longer."""
    totals = SpendingTotals(
        {CLOUD: SpendingLimits(daily=5, monthly=5), ALICE: SpendingLimits(daily=3)}
    )
    told = refused(totals, 6)
    assert (told.window.account, told.window.period, told.left) == (ALICE, "daily", 3)
    totals.see(balances([("2026-11-21", "bob", "cloud", 4)]))
    told = refused(totals, 2)
    assert (told.window.account, told.window.period, told.left) == (CLOUD, "monthly", 1)


def test_what_is_waited_for_in_vain_is_told_first() -> None:
    """The month has less left, but no day would ever hold it."""
    totals = SpendingTotals({CLOUD: SpendingLimits(daily=5, monthly=50)})
    totals.see(balances([("2026-11-20", "bob", "cloud", 48)]))
    assert refused(totals, 5).window.period == "monthly"
    told = refused(totals, 6)
    assert (told.window.period, told.left) == ("daily", 2)


def test_without_price_or_bound_a_limit_refuses() -> None:
    """What cannot be counted is not sent; without a limit it is, and what is free always is."""
    limited = SpendingTotals({ALICE: SpendingLimits(monthly=5)})
    assert limited.reserve(worst(None), NOON) == Unbounded(ALICE, "price", 5)
    assert limited.reserve(worst(9, bounded=False), NOON) == Unbounded(ALICE, "output", 5)
    assert isinstance(limited.reserve(worst(0, bounded=False), NOON), MoneyReservation)
    assert isinstance(
        SpendingTotals({}).reserve(worst(None, bounded=False), NOON), MoneyReservation
    )


def test_what_an_earlier_run_spent_counts() -> None:
    """What an earlier run spent on this day and in this month counts, by key and by provider."""
    totals = SpendingTotals(
        {CLOUD: SpendingLimits(daily=10, monthly=12), ALICE: SpendingLimits(daily=100)}
    )
    earlier = ("2026-11-20", "bob", "cloud", 5), ("2026-11-21", "alice", "cloud", 4)
    totals.see(balances(earlier))
    assert refused(totals, 4).window.period == "monthly"
    assert reserved(totals, 3)
    figures = totals.figures("EUR", NOON)
    assert [(w.account, w.period, w.spent, w.reserved) for w in figures.windows] == [
        (CLOUD, "daily", 4, 3),
        (CLOUD, "monthly", 9, 3),
        (ALICE, "daily", 4, 3),
    ]


def test_old_windows_are_forgotten_but_not_those_of_open_requests() -> None:
    """The totals do not grow with time; a settlement over the month's end still counts right."""
    totals = SpendingTotals({CLOUD: SpendingLimits(monthly=10)})
    over = reserved(totals, 6, datetime(2026, 11, 30, 23, 59, tzinfo=UTC).timestamp())
    december = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
    reserved(totals, 10, december)
    totals.settle(over, 6)
    refused(totals, 1, december)
    for month in range(40):
        totals.settle(reserved(totals, 1, december + (month + 1) * 31 * DAY_S), 1)
    assert len(totals._sums) <= 12


def test_no_bound_is_asked_for_where_none_would_help() -> None:
    """A limit that leaves less than the smallest answer refuses the request."""
    spent = SpendingTotals({ALICE: SpendingLimits(monthly=LEAST - 1)})
    answer = spent.reserve(worst(9, bounded=False), NOON)
    assert isinstance(answer, OverLimit)
    assert answer.cost == LEAST


def over(limit: int, spent: int, reserved: int, cost: int, *, cap: int) -> ApiError:
    window = LimitWindow(CLOUD, "daily", limit, spent, reserved)
    resets_at = datetime(2026, 11, 22, tzinfo=UTC)
    refusal = OverLimit(window, cost, window.left, resets_at, 60, is_news=True)
    return refusal_error(refusal, "cloud", cap)


_TRIGGERS = (
    "context length", "token limit", "exceeds the limit", "max_tokens", "maximum", "quota",
    "usage limit", "limit exceeded", "billing", "payment", "credit", "plan", "overloaded",
    "timed out", "at capacity", "invalid_request", "does not exist", "key limit", "insufficient",
)  # fmt: skip


def test_no_text_has_a_word_that_agents_take_for_something_else() -> None:
    """Hermes Agent compresses its history at some words and gives its key up at others."""
    errors = [
        over(10, 10, 0, 4, cap=0),
        refusal_error(Unbounded(ALICE, "price", 10), "cloud", 0),
        refusal_error(Unbounded(ALICE, "output", 10), "cloud", 100),
        *(over(10, 0, 0, 11, cap=cap) for cap in (0, 100)),
        *(over(10, 6, 0, 5, cap=cap) for cap in (0, 100)),
        *(over(10, 4, 2, 5, cap=cap) for cap in (0, 100)),
    ]
    for error in errors:
        assert not [word for word in _TRIGGERS if word in error.message.lower()]
    assert (errors[0].status, errors[0].code) == (429, "spending_limit_reached")
    assert errors[0].type == "rate_limit_error"
    assert "2026-11-22 00:00 UTC" in errors[0].message
    assert errors[2].status == 400


@pytest.mark.parametrize(
    ("limit", "spent", "reserved", "cost", "status", "word"),
    [
        (0, 0, 0, 5, 429, "is reached"),
        (10, 10, 0, 5, 429, "is reached"),
        (10, 6, 0, 5, 429, "leaves less than this request could cost; it resets"),
        (10, 4, 2, 5, 429, "Requests under way hold"),
        (10, 0, 0, 11, 400, "more than the whole"),
        (10, 10, 0, 11, 400, "more than the whole"),
    ],
)
def test_the_client_is_told_what_it_can_do(
    *, limit: int, spent: int, reserved: int, cost: int, status: int, word: str
) -> None:
    """The client is told to wait, or to send less: waiting is of no use to a request that no window
    holds, so that is no 429.
    """
    plain, helped = (over(limit, spent, reserved, cost, cap=cap) for cap in (0, 57))
    for error in (plain, helped):
        assert error.status == status
        assert (error.retry_after_s is None) == (status == 400)
        assert word in error.message
        assert "daily spending limit of provider `cloud`" in error.message
    assert "a cap of at most 57 tokens" in helped.message
    if status == 400:
        assert (plain.code, helped.code) == ("request_too_costly", "output_cap_required")


@pytest.mark.parametrize(
    ("waits_s", "status", "wait_s"),
    [((3_600, 900), 429, 900), ((3_600, None), 400, None), ((3_600, 5, None), 429, 5)],
)
def test_of_several_refusals_the_soonest_over_counts(
    waits_s: tuple[int | None, ...], status: int, wait_s: int | None
) -> None:
    """The text has all reasons, its own first. What the client can fix goes before a long wait,
    since it would be refused again after it; a wait of seconds goes before that.
    """
    refusals = [
        output_cap_required(f"`p{at}` wants a cap.")
        if wait is None
        else spending_limit_reached(f"`p{at}` is spent.", wait)
        for at, wait in enumerate(waits_s)
    ]
    told = soonest_refusal(refusals)
    assert (told.status, told.retry_after_s) == (status, wait_s)
    named = re.findall(r"`(p\d)`", told.message)
    assert named[0] == f"p{waits_s.index(wait_s)}"
    assert sorted(named) == [f"p{at}" for at in range(len(waits_s))]


def test_what_nothing_mends_goes_after_every_wait() -> None:
    """Another provider will have room."""
    never, spent = request_too_costly("It never fits."), spending_limit_reached("Spent.", 3_600)
    assert soonest_refusal([never, spent]).status == 429
    assert soonest_refusal([never]).code == "request_too_costly"


def test_the_reason_of_several_is_told_once() -> None:
    """A key's limit holds for every provider."""
    spent = spending_limit_reached("The limit of `alice` is spent.", 60)
    assert soonest_refusal([spent, spent]).message == spent.message
