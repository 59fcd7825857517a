"""The books: windows, refusals and what the client is told."""

import re
from datetime import UTC, datetime

import pytest

from gateway.core.entries import DayTotal, Reservation
from gateway.core.errors import output_cap_required, spending_limit_reached
from gateway.core.refusals import easiest, refusal_error
from gateway.core.spending import (
    MAX_RETRY_AFTER_S,
    OPEN_RETRY_AFTER_S,
    Account,
    Books,
    LimitReached,
    Limits,
    Order,
    Unbounded,
)

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()
DAY_S = 86_400.0
CLOUD = Account("provider", "cloud")
ALICE = Account("key", "alice")


def order(cost: int | None = 4, *, provider: str = "cloud", bounded: bool = True) -> Order:
    return Order(
        key="alice",
        model="m",
        provider=provider,
        prompt_tokens=1,
        completion_tokens=1,
        is_bounded=bounded,
        worst_cost=cost,
    )


def reserved(books: Books, cost: int, now: float = NOON) -> Reservation:
    answer = books.reserve(order(cost), now)
    assert isinstance(answer, Reservation)
    return answer


def refused(books: Books, cost: int = 4, now: float = NOON) -> LimitReached:
    answer = books.reserve(order(cost), now)
    assert isinstance(answer, LimitReached)
    return answer


def test_only_what_fits_is_reserved() -> None:
    """Two of 4 fit into 10, a third does not, and 2 more do."""
    books = Books({CLOUD: Limits(daily=10)})
    reserved(books, 4)
    reserved(books, 4)
    refused(books)
    reserved(books, 2)
    refused(books, 1)
    reserved(books, 0)


def test_what_was_not_spent_is_free_again() -> None:
    """Settling for less than was reserved makes room; what was spent stays spent."""
    books = Books({CLOUD: Limits(daily=10)})
    first = reserved(books, 10)
    books.settle(first, 3)
    reserved(books, 7)
    refused(books, 1)


@pytest.mark.parametrize("account", [CLOUD, ALICE])
def test_a_limit_of_either_account_holds(account: Account) -> None:
    """The provider's and the key's limits are kept apart, and the refusal says which it is."""
    books = Books({account: Limits(monthly=5)})
    reserved(books, 5)
    refusal = refused(books)
    assert (refusal.account, refusal.period) == (account, "monthly")


def test_another_provider_may_have_room() -> None:
    """The provider's limit does not bind others; the key's does."""
    books = Books({CLOUD: Limits(daily=5), ALICE: Limits(daily=8)})
    reserved(books, 5)
    assert isinstance(books.reserve(order(4, provider="other"), NOON), LimitReached)
    assert isinstance(books.reserve(order(3, provider="other"), NOON), Reservation)


def test_a_day_ends_at_midnight_and_a_month_with_its_last_day() -> None:
    """In UTC; a request counts on the day on which it was reserved."""
    books = Books({CLOUD: Limits(daily=5, monthly=9)})
    late = reserved(books, 5)
    tomorrow = NOON + DAY_S
    reserved(books, 4, tomorrow)
    assert refused(books, 1, tomorrow).period == "monthly"
    books.settle(late, 0)
    assert refused(books, 2, tomorrow).period == "daily"
    reserved(books, 5, NOON + 10 * DAY_S)


def test_the_retry_waits_for_the_window_but_not_for_ever() -> None:
    """Open reservations may come free at once; a window is waited for an hour at the most."""
    books = Books({CLOUD: Limits(daily=5)})
    open_one = reserved(books, 5)
    assert refused(books).retry_after_s == OPEN_RETRY_AFTER_S
    books.settle(open_one, 5)
    assert refused(books).retry_after_s == MAX_RETRY_AFTER_S
    just_before = datetime(2026, 11, 21, 23, 59, 30, tzinfo=UTC).timestamp()
    refusal = refused(books, now=just_before)
    assert refusal.retry_after_s == 30
    assert refusal.resets_at == datetime(2026, 11, 22, tzinfo=UTC)


def test_a_limit_is_news_once_per_window() -> None:
    """The operator is told again the next day."""
    books = Books({CLOUD: Limits(daily=3)})
    days = [NOON, NOON, NOON + DAY_S, NOON + DAY_S]
    assert [refused(books, now=now).is_news for now in days] == [True, False, True, False]


def test_without_price_or_bound_a_limit_refuses() -> None:
    """What cannot be counted is not sent; without a limit it is, and what is free always is."""
    limited = Books({ALICE: Limits(monthly=5)})
    assert limited.reserve(order(None), NOON) == Unbounded(ALICE, "price")
    assert limited.reserve(order(1, bounded=False), NOON) == Unbounded(ALICE, "output")
    assert isinstance(limited.reserve(order(0, bounded=False), NOON), Reservation)
    assert isinstance(Books({}).reserve(order(None, bounded=False), NOON), Reservation)


def test_what_an_earlier_run_spent_counts() -> None:
    """Of this day and this month, by key and by provider."""
    books = Books({CLOUD: Limits(daily=10, monthly=12), ALICE: Limits(daily=100)})
    books.load(DayTotal("2026-11-20", "bob", "cloud", 5))
    books.load(DayTotal("2026-11-21", "alice", "cloud", 4))
    assert refused(books, 4).period == "monthly"
    assert reserved(books, 3)
    figures = books.figures("EUR", NOON)
    assert [(w.account, w.period, w.spent, w.reserved) for w in figures.windows] == [
        (CLOUD, "daily", 4, 3),
        (CLOUD, "monthly", 9, 3),
        (ALICE, "daily", 4, 3),
    ]


def test_old_windows_are_forgotten_but_not_those_of_open_requests() -> None:
    """The books do not grow with time; a settlement over the month's end still counts right."""
    books = Books({CLOUD: Limits(monthly=10)})
    over = reserved(books, 6, datetime(2026, 11, 30, 23, 59, tzinfo=UTC).timestamp())
    december = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
    reserved(books, 10, december)
    books.settle(over, 6)
    refused(books, 1, december)
    for month in range(40):
        books.settle(reserved(books, 1, december + (month + 1) * 31 * DAY_S), 1)
    assert len(books._spent) <= 12


_TRIGGERS = (
    *("context length", "token limit", "exceeds the limit", "max_tokens", "maximum", "quota"),
    *("usage limit", "limit exceeded", "billing", "payment", "credit", "plan", "overloaded"),
    *("timed out", "at capacity", "invalid_request", "does not exist", "key limit", "insufficient"),
)


def test_no_text_has_a_word_that_agents_take_for_something_else() -> None:
    """Hermes Agent compresses its history at some words and gives its key up at others."""
    reached = LimitReached(CLOUD, "daily", datetime(2026, 11, 22, tzinfo=UTC), 60, is_news=True)
    errors = [
        refusal_error(reached, "cloud"),
        refusal_error(Unbounded(ALICE, "price"), "cloud"),
        refusal_error(Unbounded(ALICE, "output"), "cloud"),
    ]
    for error in errors:
        assert not [word for word in _TRIGGERS if word in error.message.lower()]
    assert (errors[0].status, errors[0].code) == (429, "spending_limit_reached")
    assert errors[0].type == "rate_limit_error"
    assert "2026-11-22 00:00 UTC" in errors[0].message
    assert errors[2].status == 400


@pytest.mark.parametrize(
    ("waits_s", "status", "wait_s"),
    [((3_600, 900), 429, 900), ((3_600, None), 400, None), ((3_600, 5, None), 429, 5)],
)
def test_of_several_refusals_the_soonest_over_counts(
    waits_s: tuple[int | None, ...], status: int, wait_s: int | None
) -> None:
    """All reasons are told, its own first. What the client can mend goes before a long wait, since
    it would be refused again after it; a wait of seconds goes before that.
    """
    refusals = [
        output_cap_required(f"p{at}")
        if wait is None
        else spending_limit_reached(f"`p{at}` is spent.", wait)
        for at, wait in enumerate(waits_s)
    ]
    told = easiest(refusals)
    assert (told.status, told.retry_after_s) == (status, wait_s)
    named = re.findall(r"`(p\d)`", told.message)
    assert named[0] == f"p{waits_s.index(wait_s)}"
    assert sorted(named) == [f"p{at}" for at in range(len(waits_s))]


def test_the_reason_of_several_is_told_once() -> None:
    """A key's limit stands before every provider alike."""
    spent = spending_limit_reached("The limit of `alice` is spent.", 60)
    assert easiest([spent, spent]).message == spent.message
