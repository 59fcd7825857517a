"""The totals under any order of reservations, settlements, losses and crashes.

The model is the content of a ledger: settled amounts by day, and open reservations. A crash takes
the totals away; what was open then counts as spent.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.spending.limits import (
    Account,
    MoneyReservation,
    OverLimit,
    SpendingLimits,
    SpendingTotals,
    WorstCase,
    day_of,
)
from gateway.store import Balance, BalanceKey, Balances, add_cost, places_of

WORTH = 10
LIMITS = {
    Account("provider", "p0"): SpendingLimits(daily=WORTH),
    Account("provider", "p1"): SpendingLimits(monthly=3 * WORTH),
    Account("key", "k0"): SpendingLimits(daily=WORTH, monthly=2 * WORTH),
}
START = datetime(2026, 11, 29, 22, tzinfo=UTC).timestamp()
HOUR_S = 3600.0
REQUESTS = 40


def balances(lines: Iterable[tuple[str, str, str, int]]) -> Balances:
    """What a ledger with these costs (day, key, provider, cost) tells its readers."""
    totals: dict[BalanceKey, Balance] = {}
    for day, key, provider, cost in lines:
        add_cost(totals, places_of(provider, key, day), Balance(cost))
    return totals


class BooksMachine(RuleBasedStateMachine):
    """40 requests at a time, each with a worst case of 1, against limits worth 10."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.totals = SpendingTotals(LIMITS)
        self.open: list[MoneyReservation] = []
        self.billed: list[tuple[str, str, str, int]] = []

    @rule(
        provider=st.sampled_from(["p0", "p1", "free"]),
        key=st.sampled_from(["k0", "k1", ""]),
        worst=st.integers(1, 4),
        count=st.sampled_from([1, REQUESTS]),
    )
    def reserve(self, provider: str, key: str, worst: int, count: int) -> None:
        """Many at once, with no settlement between: all must see each other."""
        for _ in range(count):
            case = WorstCase(key, "m", provider, 10, 10, is_bounded=True, cost=worst, least_cost=1)
            answer = self.totals.reserve(case, self.now)
            if isinstance(answer, MoneyReservation):
                self.open.append(answer)
            else:
                assert isinstance(answer, OverLimit)
                assert self._stands_against(answer, worst)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), share=st.integers(0, 4))
    def settle(self, data: st.DataObject, share: int) -> None:
        """Settle a reservation at all of it, at a part, or, for a failed request, at nothing."""
        at = data.draw(st.integers(0, len(self.open) - 1))
        one = self.open.pop(at)
        self._end(one, one.cost * share // 4)

    @rule()
    def crash(self) -> None:
        """kill -9 and start again on the same ledger."""
        for one in self.open:
            self._bill(one, one.cost)
        self.open.clear()
        self.totals = SpendingTotals(LIMITS)
        self.totals.see(balances(self.billed))

    @rule(hours=st.integers(1, 30))
    def wait(self, hours: int) -> None:
        """Over midnights and the month's end."""
        self.now += hours * HOUR_S

    @invariant()
    def no_limit_is_exceeded(self) -> None:
        """No limit is exceeded, even if every open request costs its worst case."""
        for account, limits in LIMITS.items():
            for window, limit in self._windows(limits):
                assert self._at_most(account, window) <= limit

    @invariant()
    def the_figures_agree(self) -> None:
        """What metrics show is what the ledger would."""
        for window in self.totals.figures("USD", self.now).windows:
            day = day_of(self.now)
            span = day if window.period == "daily" else day[:7]
            assert window.spent + window.reserved == self._at_most(window.account, span)

    def _end(self, one: MoneyReservation, cost: int) -> None:
        self.totals.settle(one, cost)
        self._bill(one, cost)

    def _bill(self, one: MoneyReservation, cost: int) -> None:
        self.billed.append(_line(one, cost))

    def _windows(self, limits: SpendingLimits) -> list[tuple[str, int]]:
        days = {day for day, *_ in self.billed} | {one.day for one in self.open}
        daily = [] if limits.daily is None else [(day, limits.daily) for day in days]
        months = {day[:7] for day in days}
        monthly = [] if limits.monthly is None else [(month, limits.monthly) for month in months]
        return daily + monthly

    def _at_most(self, account: Account, window: str) -> int:
        lines = [*self.billed, *(_line(one, one.cost) for one in self.open)]
        return sum(
            cost
            for day, key, provider, cost in lines
            if day.startswith(window)
            and account.name == (provider if account.kind == "provider" else key)
        )

    def _stands_against(self, refusal: OverLimit, worst: int) -> bool:
        """A refusal is never wrong: one more would have been too much."""
        window = refusal.window
        limit = LIMITS[window.account].of(window.period)
        assert limit is not None
        day = day_of(self.now)
        span = day if window.period == "daily" else day[:7]
        return self._at_most(window.account, span) + worst > limit


def _line(one: MoneyReservation, cost: int) -> tuple[str, str, str, int]:
    return one.day, one.worst.key, one.worst.provider, cost


TestBooks = BooksMachine.TestCase
TestBooks.settings = settings(stateful_step_count=40)
