"""Spending limits: what may still be spent.

Owns the totals in memory: what every provider and every key has spent in the UTC day and month, and
what running requests have reserved. A request is admitted only if its worst case fits every limit
that applies, so that no order of events can exceed a limit. Amounts of other processes count as
they were last read; the ledger checks again, by the same limits. Must not know disks, clocks or
prices of tokens; time is an argument, in seconds since 1970.
"""

import functools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple

import msgspec

from gateway.store import NOTHING, Balance, BalanceKey, Balances, Cap, places_of

MAX_RETRY_AFTER_S: Final = 3600
"""The bound on Retry-After, so that a client that sleeps for all of it notices a raised limit."""

OPEN_RETRY_AFTER_S: Final = 5
"""Retry-After if only reservations fill the limit: most requests cost less than they reserve."""

Period = Literal["daily", "monthly"]
_PERIODS: Final[tuple[Period, ...]] = ("daily", "monthly")
_DAY_FORM: Final = "%Y-%m-%d"
_DAY_CHARS: Final = len("2026-11-21")
_DAY_S: Final = 86_400

Obstacle = Literal["others", "spending", "size"]
"""Why a request does not fit into a limit. `others`: because of running requests, which may cost
less than they reserve. `spending`: because of what is spent, if that is at least what the request
could cost. `size`: because of its own cost; one large request must not make a limit look reached.
"""


class Account(NamedTuple):
    """A provider or an API key, by its configured name."""

    kind: Literal["provider", "key"]
    name: str


class SpendingLimits(msgspec.Struct, frozen=True):
    """Micro-units per UTC day and month; None: no limit."""

    daily: int | None = None
    monthly: int | None = None

    def of(self, period: Period) -> int | None:
        return self.daily if period == "daily" else self.monthly


class WorstCase(msgspec.Struct, frozen=True):
    """A request to a provider, with upper bounds of its tokens and its cost. `least_cost` is the
    bound with the smallest possible output; costs are None if the price is unknown. `is_bounded`
    False: neither client nor configuration bounds the output, and `completion_tokens` is a guess.
    `unpriced` is a field by which it may cost more than the price of its tokens; empty for none.
    """

    key: str
    model: str
    provider: str
    prompt_tokens: int
    completion_tokens: int
    is_bounded: bool
    cost: int | None
    least_cost: int | None
    unpriced: str = ""


class MoneyReservation(msgspec.Struct, frozen=True):
    """Money held for a request until it is over."""

    id: int
    day: str
    worst: WorstCase

    @property
    def cost(self) -> int:
        """The cost in micro-units; 0 if the price is unknown."""
        return self.worst.cost or 0


class LimitWindow(msgspec.Struct, frozen=True):
    """A limit and what is spent and reserved of it now, in micro-units."""

    account: Account
    period: Period
    limit: int
    spent: int
    reserved: int

    @property
    def left(self) -> int:
        """The amount that may still be reserved; negative if a provider charged more than was
        reserved.
        """
        return self.limit - self.spent - self.reserved

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left even if the requests under way cost nothing."""
        return self.spent >= self.limit

    def obstacle(self, cost: int) -> Obstacle:
        """Why `cost`, which is more than is left, does not fit."""
        if self.spent + cost <= self.limit:
            return "others"
        return "spending" if self.is_spent or self.spent >= cost else "size"

    def never_holds(self, cost: int) -> bool:
        """Whether `cost` exceeds even the untouched limit. A limit of 0 counts as spent: with it
        the operator forbids all that costs.
        """
        return cost > self.limit > 0


class OverLimit(msgspec.Struct, frozen=True):
    """A refusal: `cost`, the most that a request can cost, is more than `window` leaves. `left` is
    what all limits together leave. `is_news`: it is the first refusal for spending in this window.
    """

    window: LimitWindow
    cost: int
    left: int
    resets_at: datetime
    retry_after_s: int
    is_news: bool


class Unbounded(msgspec.Struct, frozen=True):
    """A refusal: a limit applies, but without `missing` the worst case is unknown. `left` is what
    all limits together leave. With `missing` "field" the price of the field `name` is.
    """

    account: Account
    missing: Literal["price", "output", "field"]
    left: int
    name: str = ""


Refusal = OverLimit | Unbounded


class Saving(msgspec.Struct, frozen=True):
    """The saving by our workers for one model, in micro-units, None if no price is known."""

    model: str
    provider: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    month: int | None
    day: int | None


class SpendingFigures(msgspec.Struct, frozen=True):
    """The totals at one moment, in micro-units. `spent` (by provider) and `refusals` (by account
    and period) count from the start of the process, and so does `unpriced`, the requests by
    provider whose cost no price says.
    """

    currency: str = ""
    spent: Mapping[str, int] = {}
    reserved: Mapping[str, int] = {}
    refusals: Mapping[tuple[Account, Period], int] = {}
    windows: tuple[LimitWindow, ...] = ()
    savings: tuple[Saving, ...] = ()
    unpriced: Mapping[str, int] = {}


class _Sums:
    """What this process has spent and reserved in one window."""

    __slots__ = ("reserved", "spent")

    def __init__(self) -> None:
        self.spent = 0
        self.reserved = 0


class SpendingTotals:
    """What this process has spent and reserved, in memory, and what others had when the ledger was
    last read. It has one owner. `limits` come from the configuration.
    """

    def __init__(self, limits: Mapping[Account, SpendingLimits]) -> None:
        self._limits: dict[Account, SpendingLimits] = {}
        self._caps_by: dict[tuple[str, str, str], tuple[Cap, ...]] = {}
        self._reported: set[tuple[Account, str]] = set()
        self.set_limits(limits)
        self._next_id = 1
        self._sums: dict[BalanceKey, _Sums] = {}
        self._sums_by: dict[tuple[str, str, str], tuple[_Sums, ...]] = {}
        self._elsewhere: dict[BalanceKey, Balance] = {}
        self._day = ""
        self._spent_by_provider: Counter[str] = Counter()
        self._reserved_by_provider: Counter[str] = Counter()
        self._refusals: Counter[tuple[Account, Period]] = Counter()
        self._unpriced: Counter[str] = Counter()

    def set_limits(self, limits: Mapping[Account, SpendingLimits]) -> None:
        """Apply these limits from now on. Limits of removed accounts stay, because a request that
        began before may still run there.
        """
        merged = {**self._limits, **limits}
        changed = {one for one, held in merged.items() if held != self._limits.get(one)}
        self._reported = {one for one in self._reported if one[0] not in changed}
        self._limits = {one: held for one, held in merged.items() if held != SpendingLimits()}
        self._caps_by.clear()

    def see(self, elsewhere: Balances) -> None:
        """Replace what all other processes have spent and reserved."""
        self._elsewhere.update(elsewhere)

    def watched(self, now: float) -> Iterator[BalanceKey]:
        """The windows with a limit, for which the amounts of other processes are needed."""
        return (cap.place for cap in self._caps(self._limits, day_of(now)))

    def caps_of(self, reservation: MoneyReservation) -> tuple[Cap, ...]:
        """The limits that all processes together must keep."""
        return self._caps_at(reservation.worst, reservation.day)

    def reserve(self, worst: WorstCase, now: float) -> MoneyReservation | Refusal:
        """Hold the worst case, or say which limit forbids it."""
        day = day_of(now)
        self._forget_before(day)
        refusal = self._refusal(worst, day, now)
        if refusal is not None:
            return refusal
        reservation = MoneyReservation(self._next_id, day, worst)
        self._next_id += 1
        if cost := worst.cost:
            self._count(reservation, 0, cost)
        return reservation

    def settle(self, reservation: MoneyReservation, cost: int) -> None:
        """Replace the reservation by `cost`, which counts on the day of the reservation."""
        reserved = reservation.worst.cost or 0
        if cost or reserved:
            self._count(reservation, cost, -reserved)

    def count_unpriced(self, provider: str) -> None:
        """A request ended whose cost is unknown."""
        self._unpriced[provider] += 1

    def figures(self, currency: str, now: float) -> SpendingFigures:
        return SpendingFigures(
            currency=currency,
            spent=dict(self._spent_by_provider),
            reserved=dict(self._reserved_by_provider),
            refusals=dict(self._refusals),
            windows=tuple(self._windows(self._limits, day_of(now))),
            unpriced=dict(self._unpriced),
        )

    def exhausted(self, now: float) -> frozenset[str]:
        """The providers with a limit that is reached: the limit is spent, or a request was refused
        because of it.
        """
        day = day_of(now)
        return frozenset(
            window.account.name
            for window in self._windows(self._limits, day)
            if window.account.kind == "provider"
            and (
                window.is_spent or (window.account, window_of(window.period, day)) in self._reported
            )
        )

    def _windows(self, accounts: Iterable[Account], day: str) -> list[LimitWindow]:
        return [self._window(place, limit) for place, limit in self._caps(accounts, day)]

    def _window(self, place: BalanceKey, limit: int) -> LimitWindow:
        period: Period = "daily" if len(place.window) == _DAY_CHARS else "monthly"
        spent, reserved = self._elsewhere.get(place, NOTHING)
        if (own := self._sums.get(place)) is not None:
            spent, reserved = spent + own.spent, reserved + own.reserved
        return LimitWindow(Account(place.kind, place.name), period, limit, spent, reserved)

    def _caps_at(self, worst: WorstCase, day: str) -> tuple[Cap, ...]:
        named = worst.provider, worst.key, day
        if (caps := self._caps_by.get(named)) is None:
            accounts = Account("provider", worst.provider), Account("key", worst.key)
            caps = self._caps_by[named] = tuple(self._caps(accounts, day))
        return caps

    def _caps(self, accounts: Iterable[Account], day: str) -> Iterator[Cap]:
        for account in accounts:
            if (limits := self._limits.get(account)) is None:
                continue
            for period in _PERIODS:
                if (limit := limits.of(period)) is not None:
                    yield Cap(BalanceKey(*account, window_of(period, day)), limit)

    def _refusal(self, worst: WorstCase, day: str, now: float) -> Refusal | None:
        caps = self._caps_at(worst, day)
        if not caps or worst.cost == 0:
            return None
        windows = [self._window(place, limit) for place, limit in caps]
        tightest = min(windows, key=lambda window: window.left)
        cost = worst.cost if worst.is_bounded else worst.least_cost
        if cost is None:
            return Unbounded(tightest.account, "price", tightest.left)
        if worst.unpriced:
            return Unbounded(tightest.account, "field", tightest.left, worst.unpriced)
        if cost > tightest.left:
            named = min(windows, key=lambda window: _rank(window, cost))
            return self._over_limit(named, cost, tightest.left, now)
        return None if worst.is_bounded else Unbounded(tightest.account, "output", tightest.left)

    def _over_limit(self, window: LimitWindow, cost: int, left: int, now: float) -> OverLimit:
        account, period = window.account, window.period
        self._refusals[account, period] += 1
        place = account, window_of(period, day_of(now))
        obstacle = window.obstacle(cost)
        is_news = obstacle == "spending" and place not in self._reported
        if is_news:
            self._reported.add(place)
        resets_at = end_of(period, now)
        most = OPEN_RETRY_AFTER_S if obstacle == "others" else MAX_RETRY_AFTER_S
        retry_after_s = min(most, max(1, math.ceil(resets_at.timestamp() - now)))
        return OverLimit(window, cost, left, resets_at, retry_after_s, is_news)

    def _count(self, reservation: MoneyReservation, spent: int, reserved: int) -> None:
        worst = reservation.worst
        provider = worst.provider
        named = provider, worst.key, reservation.day
        if (windows := self._sums_by.get(named)) is None:
            places = places_of(*named)
            windows = tuple([self._sums.setdefault(place, _Sums()) for place in places])
            self._sums_by[named] = windows
        for one in windows:
            one.spent += spent
            one.reserved += reserved
        if reserved:
            self._reserved_by_provider[provider] += reserved
        if spent:
            self._spent_by_provider[provider] += spent

    def _forget_before(self, day: str) -> None:
        """Keep this month and the one before, for requests (and clocks) that cross midnight."""
        if day == self._day:
            return
        self._day = day
        kept = month_before(day)
        self._caps_by.clear()
        self._sums_by.clear()  # the sums of these windows stay in `_sums`
        totals: tuple[dict[BalanceKey, Any], ...] = self._sums, self._elsewhere
        for one in totals:
            for place in [place for place in one if window_of("monthly", place.window) < kept]:
                del one[place]
        self._reported = {one for one in self._reported if window_of("monthly", one[1]) >= kept}


def _rank(window: LimitWindow, cost: int) -> tuple[bool, int, bool]:
    """The rank of a limit; the client is told of the lowest: first a limit against which waiting
    does not help, then the one that leaves least, then the longer period.
    """
    return not window.never_holds(cost), window.left, window.period == "daily"


def day_of(now: float) -> str:
    """The UTC day of `now`, as 2026-11-21."""
    return _nth_day(int(now // _DAY_S))


def window_of(period: Period, day: str) -> str:
    """The window that `day` lies in: the day itself, or its month as 2026-11."""
    return day if period == "daily" else day[:7]


def month_before(day: str) -> str:
    """The month before that of `day`, as 2026-10."""
    first = datetime.strptime(f"{day[:7]}-01", _DAY_FORM).replace(tzinfo=UTC)
    return (first - timedelta(days=1)).strftime(_DAY_FORM)[:7]


def end_of(period: Period, now: float) -> datetime:
    """When the window that `now` lies in ends."""
    midnight = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "daily":
        return midnight + timedelta(days=1)
    return (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)


@functools.lru_cache(maxsize=8)
def _nth_day(number: int) -> str:
    """The date of a day, by the number of days since 1970. Cached because every request asks
    for the same one or two days.
    """
    return datetime.fromtimestamp(number * _DAY_S, UTC).strftime(_DAY_FORM)
