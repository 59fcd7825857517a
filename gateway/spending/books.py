"""Who may still spend.

Owns the books in memory: what every provider and every key has spent in the day and the month, and
what is reserved by requests that are out. A request is admitted only if its worst case fits every
limit that applies, so no order of events can exceed one. Must not know disks, clocks or prices of
tokens; time is an argument.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final, Literal, NamedTuple

import msgspec

from gateway.spending.windows import (
    Period,
    day_of,
    end_of,
    month_before,
    month_of,
    seconds_until,
    window_of,
)
from gateway.store import DayTotal, Reservation

MAX_RETRY_AFTER_S: Final = 3600
"""Clients that sleep for as long as they are told must not sleep through a raised limit."""

OPEN_RETRY_AFTER_S: Final = 5
"""When only reservations are in the way: most requests cost far less than they reserve."""

_PERIODS: Final[tuple[Period, ...]] = ("daily", "monthly")


Obstacle = Literal["others", "spending", "size"]
"""What keeps a request from fitting into a limit: only requests under way, which may cost less; or
what is spent, if that is at least what the request could cost; else its own size. So one request
that is too large does not pass for a limit that is reached.
"""


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
    """A cloud request that wants to be sent. `worst_cost`, and `least_cost` with the smallest cap
    on its output, are None if the price is unknown. `is_bounded` False: neither client nor
    configuration bounds what the output costs; `completion_tokens` is a guess.
    """

    key: str
    model: str
    provider: str
    prompt_tokens: int
    completion_tokens: int
    is_bounded: bool
    worst_cost: int | None
    least_cost: int | None


class Window(msgspec.Struct, frozen=True):
    """A limit and what stands against it now, in micro-units."""

    account: Account
    period: Period
    limit: int
    spent: int
    reserved: int

    @property
    def left(self) -> int:
        """What may still be reserved; less than nothing if more was charged than could be."""
        return self.limit - self.spent - self.reserved

    @property
    def is_spent(self) -> bool:
        """Nothing is left, whatever the requests under way will cost."""
        return self.spent >= self.limit

    def obstacle(self, cost: int) -> Obstacle:
        """What keeps `cost`, which is more than is left, from fitting."""
        if self.spent + cost <= self.limit:
            return "others"
        return "spending" if self.is_spent or self.spent >= cost else "size"

    def never_holds(self, cost: int) -> bool:
        """Whether `cost` is too much however little is spent. A limit of 0 counts as one that is
        spent: it is the operator who wants nothing that costs.
        """
        return cost > self.limit > 0


class OverLimit(msgspec.Struct, frozen=True):
    """`cost`, the most that a request can cost, is more than `window` leaves; all limits together
    leave `left`. `is_news`: for spending, and for the first time in its window.
    """

    window: Window
    cost: int
    left: int
    resets_at: datetime
    retry_after_s: int
    is_news: bool


class Unbounded(msgspec.Struct, frozen=True):
    """A limit applies, but `missing` keeps the worst case from being known. `left`: by all limits
    together.
    """

    account: Account
    missing: Literal["price", "output"]
    left: int


Refusal = OverLimit | Unbounded


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
        refusal = self._refusal(order, day, now)
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
            windows=tuple(self._windows(self._limits, day_of(now))),
        )

    def _windows(self, accounts: Iterable[Account], day: str) -> Iterator[Window]:
        for account in accounts:
            limits = self._limits.get(account, Limits())
            for period in _PERIODS:
                if (limit := limits.of(period)) is not None:
                    place = account, window_of(period, day)
                    spent, reserved = self._spent[place], self._reserved[place]
                    yield Window(account, period, limit, spent, reserved)

    def _refusal(self, order: Order, day: str, now: float) -> Refusal | None:
        windows = list(self._windows(_accounts(order.provider, order.key), day))
        if not windows or order.worst_cost == 0:
            return None
        tightest = min(windows, key=lambda window: window.left)
        cost = order.worst_cost if order.is_bounded else order.least_cost
        if cost is None:
            return Unbounded(tightest.account, "price", tightest.left)
        if cost > tightest.left:
            named = min(windows, key=lambda window: _rank(window, cost))
            return self._over_limit(named, cost, tightest.left, now)
        return None if order.is_bounded else Unbounded(tightest.account, "output", tightest.left)

    def _over_limit(self, window: Window, cost: int, left: int, now: float) -> OverLimit:
        account, period = window.account, window.period
        self._refusals[account, period] += 1
        place = account, window_of(period, day_of(now))
        obstacle = window.obstacle(cost)
        is_news = obstacle == "spending" and place not in self._told
        if is_news:
            self._told.add(place)
        resets_at = end_of(period, now)
        most = OPEN_RETRY_AFTER_S if obstacle == "others" else MAX_RETRY_AFTER_S
        retry_after_s = min(most, seconds_until(resets_at, now))
        return OverLimit(window, cost, left, resets_at, retry_after_s, is_news)

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


def _rank(window: Window, cost: int) -> tuple[bool, int, bool]:
    """Of the limit that ranks lowest the client hears: of one that it would wait for in vain, then
    of the one that leaves least, of equals of the longer.
    """
    return not window.never_holds(cost), window.left, window.period == "daily"


def _accounts(provider: str, key: str) -> tuple[Account, Account]:
    return Account("provider", provider), Account("key", key)


def _places(provider: str, key: str, day: str) -> Iterator[tuple[Account, str]]:
    for account in _accounts(provider, key):
        for period in _PERIODS:
            yield account, window_of(period, day)
