"""Who may still spend.

Owns the books in memory: what every provider and every key has spent in the day and the month, and
what is reserved by requests that are out. A request is admitted only if its worst case fits every
limit that applies, so no order of events can exceed one. Must not know disks, clocks or prices of
tokens; time is an argument.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final, Literal, NamedTuple

import msgspec

from gateway.core.entries import DayTotal, Reservation
from gateway.core.windows import (
    Period,
    day_of,
    end_of,
    month_before,
    month_of,
    seconds_until,
    window_of,
)

MAX_RETRY_AFTER_S: Final = 3600
"""Clients that sleep for as long as they are told must not sleep through a raised limit."""

OPEN_RETRY_AFTER_S: Final = 5
"""When only reservations are in the way: most requests cost far less than they reserve."""

_PERIODS: Final[tuple[Period, ...]] = ("daily", "monthly")


class Account(NamedTuple):
    """Whose money: a provider's or a key's, by its configured name."""

    kind: Literal["provider", "key"]
    name: str


class Limits(msgspec.Struct, frozen=True):
    """Micro-units per UTC day and month; None: no limit."""

    daily: int | None = None
    monthly: int | None = None

    def of(self, period: Period) -> int | None:
        """The limit of that period."""
        return self.daily if period == "daily" else self.monthly


class Order(msgspec.Struct, frozen=True):
    """A cloud request that wants to be sent. `worst_cost` None: the price is unknown. `is_bounded`
    False: `completion_tokens` is a guess, since neither client nor configuration bounds them.
    """

    key: str
    model: str
    provider: str
    prompt_tokens: int
    completion_tokens: int
    is_bounded: bool
    worst_cost: int | None


class LimitReached(msgspec.Struct, frozen=True):
    """The worst case does not fit. `is_news`: the first refusal by this limit in its window."""

    account: Account
    period: Period
    resets_at: datetime
    retry_after_s: int
    is_news: bool


class Unbounded(msgspec.Struct, frozen=True):
    """A limit applies, but `missing` keeps the worst case from being known."""

    account: Account
    missing: Literal["price", "output"]


Refusal = LimitReached | Unbounded


class Window(msgspec.Struct, frozen=True):
    """A limit and what stands against it now, in micro-units."""

    account: Account
    period: Period
    limit: int
    spent: int
    reserved: int


class SpendingFigures(msgspec.Struct, frozen=True):
    """The books at one moment, in micro-units. `spent` (by provider) and `refusals` (by account
    and period) count since the start, `reserved` is now.
    """

    currency: str = ""
    spent: Mapping[str, int] = {}
    reserved: Mapping[str, int] = {}
    refusals: Mapping[tuple[Account, Period], int] = {}
    windows: tuple[Window, ...] = ()


class Books:
    """Mutable; one owner. `limits` are those of the configuration."""

    def __init__(self, limits: Mapping[Account, Limits]) -> None:
        self._limits = limits
        self._next_id = 1
        self._spent: Counter[tuple[Account, str]] = Counter()
        self._reserved: Counter[tuple[Account, str]] = Counter()
        self._told: set[tuple[Account, str]] = set()
        self._day = ""
        self._spent_by_provider: Counter[str] = Counter()
        self._reserved_by_provider: Counter[str] = Counter()
        self._refusals: Counter[tuple[Account, Period]] = Counter()

    def load(self, total: DayTotal) -> None:
        """Take over what the ledger knows of an earlier run."""
        for place in _places(total.provider, total.key, total.day):
            self._spent[place] += total.cost

    def reserve(self, order: Order, now: float) -> Reservation | Refusal:
        """Hold the worst case of `order`, or say what stands against it."""
        day = day_of(now)
        self._forget_before(day)
        for account in _accounts(order.provider, order.key):
            refusal = self._refusal(account, order, day, now)
            if refusal is not None:
                return refusal
        reservation = Reservation(
            id=self._next_id,
            day=day,
            key=order.key,
            model=order.model,
            provider=order.provider,
            prompt_tokens=order.prompt_tokens,
            completion_tokens=order.completion_tokens,
            cost=order.worst_cost or 0,
            is_priced=order.worst_cost is not None,
        )
        self._next_id += 1
        self._hold(reservation, reservation.cost)
        return reservation

    def settle(self, reservation: Reservation, cost: int) -> None:
        """The request is over and has cost `cost`. It counts on the day of its reservation."""
        self._hold(reservation, -reservation.cost)
        for place in _places(reservation.provider, reservation.key, reservation.day):
            self._spent[place] += cost
        self._spent_by_provider[reservation.provider] += cost

    def figures(self, currency: str, now: float) -> SpendingFigures:
        """The books as of `now`."""
        return SpendingFigures(
            currency=currency,
            spent=dict(self._spent_by_provider),
            reserved=dict(self._reserved_by_provider),
            refusals=dict(self._refusals),
            windows=tuple(self._windows(day_of(now))),
        )

    def _windows(self, day: str) -> Iterator[Window]:
        for account, limits in self._limits.items():
            for period in _PERIODS:
                if (limit := limits.of(period)) is not None:
                    place = account, window_of(period, day)
                    spent, reserved = self._spent[place], self._reserved[place]
                    yield Window(account, period, limit, spent, reserved)

    def _refusal(self, account: Account, order: Order, day: str, now: float) -> Refusal | None:
        limits = self._limits.get(account, Limits())
        for period in _PERIODS:
            limit = limits.of(period)
            if limit is None:
                continue
            if order.worst_cost is None:
                return Unbounded(account, "price")
            if order.worst_cost and not order.is_bounded:
                return Unbounded(account, "output")
            place = account, window_of(period, day)
            spent = self._spent[place] + order.worst_cost
            if order.worst_cost and spent + self._reserved[place] > limit:
                return self._reached(account, period, now, only_open=spent <= limit)
        return None

    def _reached(
        self, account: Account, period: Period, now: float, *, only_open: bool
    ) -> LimitReached:
        self._refusals[account, period] += 1
        place = account, window_of(period, day_of(now))
        is_news = place not in self._told
        self._told.add(place)
        resets_at = end_of(period, now)
        most = OPEN_RETRY_AFTER_S if only_open else MAX_RETRY_AFTER_S
        retry_after_s = min(most, seconds_until(resets_at, now))
        return LimitReached(account, period, resets_at, retry_after_s, is_news)

    def _hold(self, reservation: Reservation, cost: int) -> None:
        for place in _places(reservation.provider, reservation.key, reservation.day):
            self._reserved[place] += cost
        self._reserved_by_provider[reservation.provider] += cost

    def _forget_before(self, day: str) -> None:
        """Keep this month and the one before, for requests (and clocks) that cross midnight."""
        if day == self._day:
            return
        self._day = day
        kept = month_before(month_of(day))
        for books in (self._spent, self._reserved):
            for place in [place for place in books if month_of(place[1]) < kept]:
                del books[place]
        self._told = {place for place in self._told if month_of(place[1]) >= kept}


def _accounts(provider: str, key: str) -> tuple[Account, Account]:
    return Account("provider", provider), Account("key", key)


def _places(provider: str, key: str, day: str) -> Iterator[tuple[Account, str]]:
    for account in _accounts(provider, key):
        for period in _PERIODS:
            yield account, window_of(period, day)
