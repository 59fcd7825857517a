"""The spending actor: what requests may cost and what they did cost.

Owns the totals and the order of the steps: reserve in memory, reserve on the disk, send, settle.
`Spending` is all that turns know of money. Must not know HTTP or SQL.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Final

import msgspec
import trio

from config import Config, FallbackConfig, ledger_path, list_prices, secret_of
from gateway.api import ApiError, ChargedBy, ChatRequest, Usage, spending_limit_reached, unavailable
from gateway.spending.conversation_limits import ledger_limits, limit_error, word_of
from gateway.spending.ledger_writer import LedgerFull, LedgerWriter
from gateway.spending.limits import (
    Account,
    MoneyReservation,
    Refusal,
    SpendingFigures,
    SpendingLimits,
    SpendingTotals,
    Unbounded,
    WorstCase,
    day_of,
    month_before,
)
from gateway.spending.priced_fields import beyond_price
from gateway.spending.prices import (
    CAP_TOKENS,
    FixedPrice,
    Price,
    Tariff,
    output_bound,
    prompt_bound,
    show_amount,
    tariff_of,
    to_micro,
)
from gateway.spending.refusals import refusal_error
from gateway.spending.savings import LocalUse, cloud_prices
from gateway.store import (
    Column,
    CommonLimits,
    DiskFull,
    HoldEnd,
    LedgerEntry,
    LedgerError,
    LedgerStore,
    ReservationClaim,
    Settlement,
    SumHold,
    UseName,
    UseSums,
    read_report,
    spent_beside,
)
from gateway.telemetry import (
    ConversationRefused,
    FleetEvent,
    Limited,
    LimitReached,
    StoreTrouble,
    TurnTrace,
)
from protocol.errors import ConfigError

UNBOUNDED_OUTPUT_TOKENS: Final = 131_072
"""Recorded for an answer without a bound, which only passes if no limit applies. It is the largest
output that providers offer.
"""

_RETRY_AFTER_S: Final = 5
_BUSY: Final = 429
_MOST_TRIES: Final = 3
"""How often a reservation is tried. A try fails because another process reserved first, so
after this many nearly nothing is left.
"""

_CUT_OFF: Final = (trio.Cancelled, ApiError)
"""How a wait for the ledger is cut off: the client has left, or a shutdown ends the turn
(`break_off`). What was asked for may be on the disk all the same.
"""

_LOCAL_BY: Final[tuple[Column, ...]] = ("day", "model", "provider")

_log = logging.getLogger(__name__)


class Bill:
    """The reservation of one cloud request, as a block. Leaving the block settles it: by the
    provider's usage if it came and the answer is complete, else by the most it can have cost.
    """

    def __init__(
        self,
        spending: "Spending",
        reservation: MoneyReservation,
        price: Price | FixedPrice | None,
    ) -> None:
        self._spending = spending
        self._trace: TurnTrace | None = None
        self.held: int | None = None
        """The number of what is held for its conversation."""
        self._reservation = reservation
        self._price = price
        self._usage: Usage | None = None
        self._is_complete = False
        self._is_waived = False

    @property
    def most(self) -> int | None:
        """The most that the request can cost, in micro-units; None if the price is unknown."""
        return self._reservation.worst.cost

    @property
    def is_bounded(self) -> bool:
        """Whether `most` is a bound."""
        worst = self._reservation.worst
        return worst.is_bounded and not worst.unpriced

    def counted_in(self, trace: TurnTrace) -> "Bill":
        """This bill; its amount is also added to the `trace` of its turn."""
        self._trace = trace
        return self

    def note_usage(self, usage: Usage) -> None:
        """Keep what the provider has counted so far. An estimate of the provider does not settle
        the bill.
        """
        if not usage.is_estimate:
            self._usage = usage

    def complete(self) -> None:
        """Take the last usage as final: the whole answer is here."""
        self._is_complete = True

    def waive(self) -> None:
        """Settle for nothing: the provider certainly charges nothing."""
        self._is_waived = True

    def drop(self) -> None:
        """Settle for nothing: the request is not sent."""
        self.waive()
        with self:
            pass

    def __enter__(self) -> "Bill":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        entry = self._entry()
        if entry is not None and self._trace is not None:
            self._trace.cost += entry.cost
            self._trace.spent_tokens += entry.prompt_tokens + entry.completion_tokens
        self._spending.settle(self._reservation, entry)
        if self.held is not None:
            self._spending.release(self.held, cost=0 if entry is None else entry.cost)

    def _entry(self) -> LedgerEntry | None:
        if self._is_waived:
            return None
        usage, held = self._usage or Usage(0, 0, 0), self._reservation
        price = self._price
        cost = 0 if price is None else price.cost(usage)
        is_known = self._usage is not None or isinstance(price, FixedPrice)
        if is_known and self._is_complete:
            return _entry(held, usage, cost, is_settled=True, is_priced=price is not None)
        worst = held.worst
        bound = Usage(
            prompt_tokens=max(worst.prompt_tokens, usage.prompt_tokens),
            cached_tokens=0,
            completion_tokens=max(worst.completion_tokens, usage.completion_tokens),
        )
        at_most = held.cost
        if worst.cost is None and isinstance(price, Price):
            at_most = price.worst(bound.prompt_tokens, bound.completion_tokens)
        most = max(at_most, cost)
        return _entry(held, bound, most, is_settled=False, is_priced=price is not None)


class Spending:
    """The totals of one gateway, with the ledger that `run` writes.

    `publish` takes events for operators, `unix_time` returns seconds since 1970, `environ` gives
    the ledger's default path. Other processes may share the ledger.
    """

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str],
        publish: Callable[[FleetEvent], None],
    ) -> None:
        self._config = config
        self._environ = environ
        self._publish = publish
        self._tables = dict(config.providers)
        self._totals = SpendingTotals(_limits_of(config))
        self._listed = list_prices(config.ledger)
        self._local = LocalUse(cloud_prices(config, self._listed))
        self._trouble = StoreTrouble("ledger", publish)
        self._writer = LedgerWriter(
            lambda: self._totals.watched(time.time()), self._totals.see, self._trouble
        )
        self._tariffs: dict[tuple[str, str], Tariff] = {}
        self._is_kept = False
        self.ledger = ""
        """The path of the ledger that is kept; empty if none is."""
        self._next_hold = 1

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the ledger until cancelled.

        Raises `ConfigError` if it cannot be opened and something can cost money; a gateway without
        providers runs without a ledger then.
        """
        async with trio.open_nursery() as nursery:
            try:
                await self._open(nursery)
            except ConfigError as error:
                if self._config.providers:
                    raise
                words = f"usage is not recorded: {error}"
                self._trouble.begin("open", words, "usage is not recorded; the log says why")
                _log.warning("%s", words)
            task_status.started()

    def refusal_of(self, config: Config) -> str | None:
        """Why the totals cannot take `config`; None if they can."""
        if self._is_kept or not config.providers:
            return None
        return "providers need a ledger, which could not be opened at the start: see the log"

    @property
    def stuck_for(self) -> str:
        """Why the ledger cannot be used now, in words for operators; empty if it can."""
        return self._trouble.words

    def reconfigure(self, config: Config) -> None:
        """Apply the prices and limits of `config`. Tables of removed providers stay for requests
        that run.
        """
        self._config = config
        self._tables.update(config.providers)
        self._tariffs.clear()
        self._totals.set_limits(_limits_of(config))
        self._writer.look_soon()
        try:
            self._listed = list_prices(config.ledger)
        except ConfigError as error:  # the list was readable when the file was checked
            _log.warning("the list of prices stays as it was: %s", error)
        self._local.prices = cloud_prices(config, self._listed)

    async def open_bill(
        self,
        key: str,
        model: str,
        target: FallbackConfig,
        request: ChatRequest,
        charged_by: ChargedBy = "answer",
    ) -> Bill | ApiError:
        """Reserve durably what `request` can cost at `target`, or return why it may not be sent.
        Raises the `ApiError` of `break_off`.
        """
        tariff = self._tariff(target)
        worst = _worst_case(key, model, target, request, tariff, charged_by)
        price: Price | FixedPrice | None = tariff.price
        if charged_by == "request":
            price = None if worst.cost is None else FixedPrice(worst.cost)
        for _ in range(_MOST_TRIES):
            answer = self._totals.reserve(worst, time.time())
            if not isinstance(answer, MoneyReservation):
                self._report(answer)
                output = 0
                if charged_by == "answer" and tariff.price is not None:
                    capped_prompt = worst.prompt_tokens + CAP_TOKENS
                    output = tariff.price.affordable_output(answer.left, capped_prompt)
                cap = output // request.n
                return refusal_error(answer, target.provider, cap, charged_by)
            if price is None:
                # No limit applies. The cost is recorded if the list of prices has it.
                listed = tariff.listed if charged_by == "answer" else None
                return Bill(self, answer, listed)
            if (bill := await self._make_durable(answer, price)) is not None:
                return bill
        return _unrecorded(self._writer.unshared_for)

    async def hold(
        self, limited: Limited, *, tokens: int = 0, cost: int = 0, turns: int = 0
    ) -> int | ApiError:
        """Hold durably what a request of a conversation with limits can use, and return the number
        for `release`; or return why it may not begin. Raises the `ApiError` of `break_off`.
        """
        if not self._is_kept:
            return _unrecorded()
        number = self._next_hold
        self._next_hold += 1
        limits = ledger_limits(limited.limits)
        given = limited.key, limited.name, time.time(), limits, tokens, cost, turns
        try:
            reached = await self._writer.hold(SumHold(number, *given))
        except (LedgerError, LedgerFull) as failure:
            return _unrecorded(failure.cause)
        except _CUT_OFF:
            self.release(number)
            raise
        if reached is None:
            return number
        error = limit_error(reached, self._config.ledger.currency)
        if error.status != _BUSY:
            self._publish(ConversationRefused(limited.name[:80], limited.key, word_of(reached)))
        return error

    def release(self, number: int, *, tokens: int = 0, cost: int = 0) -> None:
        """Replace what was held by what was used. Never waits."""
        self._writer.end_hold(HoldEnd(number, tokens, cost))

    async def open_bill_of(
        self,
        limited: Limited | None,
        key: str,
        model: str,
        target: FallbackConfig,
        request: ChatRequest,
        charged_by: ChargedBy = "answer",
    ) -> Bill | ApiError:
        """Like `open_bill`, for a request of a conversation that has a limit of money of its
        own.
        """
        bill = await self.open_bill(key, model, target, request, charged_by)
        if limited is None or limited.limits.money is None or isinstance(bill, ApiError):
            return bill
        cost = bill.most
        if cost is None or not bill.is_bounded:
            bill.drop()
            text = "A limit of money applies to this conversation, and the most that an answer of "
            return spending_limit_reached(f"{text}`{target.provider}` can cost is unknown.", 60)
        if cost == 0:
            return bill
        try:
            held = await self.hold(limited, cost=cost)
        except _CUT_OFF:
            bill.drop()
            raise
        if isinstance(held, ApiError):
            bill.drop()
            return held
        bill.held = held
        return bill

    def record_use(self, name: UseName, sums: UseSums) -> None:
        """Count a request that has ended in its conversation. Never waits."""
        if self._is_kept:
            self._writer.record_use(name, sums)

    def _tariff(self, target: FallbackConfig) -> Tariff:
        named = target.provider, target.model
        if (tariff := self._tariffs.get(named)) is None:
            tariff = tariff_of(self._tables[target.provider], target.model, self._listed)
            self._tariffs[named] = tariff
        return tariff

    def settle(self, reservation: MoneyReservation, entry: LedgerEntry | None) -> None:
        """Replace the reservation by `entry` (None: the request cost nothing). Never waits."""
        cost, worst = 0 if entry is None else entry.cost, reservation.worst
        if worst.cost is not None and cost > worst.cost:
            _log.warning(
                "provider %s charged more than a request's upper bound: prices or bounds in the "
                "configuration are too low",
                worst.provider,
            )
        self._totals.settle(reservation, cost)
        if entry is not None and not entry.is_priced:
            self._totals.count_unpriced(worst.provider)
        if worst.cost is not None:
            self._writer.settle(Settlement(reservation.id, entry))
        elif entry is not None:
            self._writer.record(entry)

    def record_local(
        self, key: str, model: str, usage: Usage, trace: TurnTrace | None = None
    ) -> None:
        """Count a request that our own workers served, also in its `trace`. Never waits; written
        within 0.5 s.
        """
        if trace is not None:
            trace.spent_tokens += usage.prompt_tokens + usage.completion_tokens
        day = day_of(time.time())
        self._local.add(day, model, usage)
        if self._is_kept:
            counts = usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens
            self._writer.record(LedgerEntry(day, key, model, "", True, True, 1, *counts, 0))

    def figures(self) -> SpendingFigures:
        now = time.time()
        figures = self._totals.figures(self._config.ledger.currency, now)
        return msgspec.structs.replace(figures, savings=self._local.savings(day_of(now)))

    def refuses_all(self, chain: Iterable[FallbackConfig]) -> bool:
        """Whether a limit that is reached keeps each of these providers from what costs money."""
        spent = self._totals.exhausted(time.time())
        return all(
            target.provider in spent and not self._tariff(target).is_free for target in chain
        )

    def _report(self, refusal: Refusal) -> None:
        if isinstance(refusal, Unbounded):
            (kind, name), missing = refusal.account, refusal.missing
            _log.warning("a limit of %s %s refuses: no bound on the %s", kind, name, missing)
            return
        window = refusal.window
        (kind, name), period = window.account, window.period
        if refusal.is_news:
            self._publish(LimitReached(kind, name, period, refusal.resets_at.isoformat()))
        elif window.obstacle(refusal.cost) == "size":
            cost, left = show_amount(refusal.cost), show_amount(max(0, window.left))
            text = "the %s limit of %s %s refuses a request that could cost %s: %s is left"
            _log.warning(text, period, kind, name, cost, left)

    async def _open(self, nursery: trio.Nursery) -> None:
        path = ledger_path(self._config.ledger, self._environ)
        today = day_of(time.time())
        first_day = f"{month_before(today)}-01"
        ledger = self._config.ledger

        def open_common(name: str, others: list[str]) -> CommonLimits:
            place, variable = "[ledger] shared", ledger.shared_password_env
            password = secret_of(place, variable, None, self._environ)
            return CommonLimits(ledger.shared or "", password, ledger.currency, name, others)

        def open_store() -> LedgerStore:
            common = None if ledger.shared is None else open_common
            beside = spent_beside(path, first_day)
            return LedgerStore(path, ledger.currency, first_day, beside, common)

        await nursery.start(self._writer.run, open_store)
        try:
            report = await trio.to_thread.run_sync(read_report, path, _LOCAL_BY, f"{today[:7]}-01")
        except DiskFull:
            report = None  # this month's local tokens are counted from now on
        for row in () if report is None else report.rows:
            day, model, provider = row.group
            if not provider:
                counts = row.prompt_tokens, row.cached_tokens, row.completion_tokens
                self._local.add(day, model, Usage(*counts))
        self._is_kept = True
        self.ledger = str(path.absolute())

    async def _make_durable(
        self, reservation: MoneyReservation, price: Price | FixedPrice
    ) -> Bill | ApiError | None:
        """The bill of a reservation that is on the disk. None if another process has taken what
        was left, which the totals then include.
        """
        try:
            worst = reservation.worst
            bound = Usage(worst.prompt_tokens, 0, worst.completion_tokens)
            entry = _entry(reservation, bound, worst.cost or 0, is_settled=False, is_priced=True)
            claim = ReservationClaim(reservation.id, entry, self._totals.caps_of(reservation))
            is_reserved = await self._writer.reserve(claim)
        except (LedgerError, LedgerFull) as failure:
            self._totals.settle(reservation, 0)
            return _unrecorded(failure.cause)
        except _CUT_OFF:
            self.settle(reservation, None)
            raise
        if is_reserved:
            return Bill(self, reservation, price)
        self._totals.settle(reservation, 0)
        return None


def _worst_case(
    key: str,
    model: str,
    target: FallbackConfig,
    request: ChatRequest,
    tariff: Tariff,
    charged_by: ChargedBy,
) -> WorstCase:
    """The most that `request` can cost; its costs are None where no price says it."""
    price, bound = tariff.price, output_bound(request, tariff.max_output_tokens)
    prompt_tokens = prompt_bound(request)
    output_tokens = UNBOUNDED_OUTPUT_TOKENS * request.n if bound is None else bound
    is_bounded = bound is not None or (price is not None and price.output == 0)
    cost = least_cost = None
    unpriced = ""
    if charged_by != "answer":
        output_tokens, is_bounded = 0, True
    if charged_by == "request":
        prompt_tokens = 0
        if price is not None and price.request is not None:
            cost = least_cost = price.request * request.n
    elif price is not None:
        cost = price.worst(prompt_tokens, output_tokens)
        least_output = request.n if charged_by == "answer" else 0
        least_cost = price.worst(prompt_tokens + CAP_TOKENS, least_output)
        if cost:
            own = {*target.params.set, *target.params.default}
            unpriced = beyond_price(request.raw, request.n, own)
    return WorstCase(
        key=key,
        model=model,
        provider=target.provider,
        prompt_tokens=prompt_tokens,
        completion_tokens=output_tokens,
        is_bounded=is_bounded,
        cost=cost,
        least_cost=least_cost,
        unpriced=unpriced,
    )


def _unrecorded(why: str = "") -> ApiError:
    """The error while the ledger cannot be used: no request may be sent that a limit or the
    ledger has to count.
    """
    text = f"Spending cannot be recorded now, so nothing is sent: {why or 'the log says why'}."
    return unavailable(text, _RETRY_AFTER_S)


def _entry(
    held: MoneyReservation, usage: Usage, cost: int, *, is_settled: bool, is_priced: bool
) -> LedgerEntry:
    worst = held.worst
    return LedgerEntry(
        day=held.day,
        key=worst.key,
        model=worst.model,
        provider=worst.provider,
        is_settled=is_settled,
        is_priced=is_priced,
        requests=1,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        cost=cost,
    )


def _limits_of(config: Config) -> dict[Account, SpendingLimits]:
    tables = {Account("provider", name): table.limits for name, table in config.providers.items()}
    tables |= {Account("key", key.name): key.limits for key in config.keys}
    return {
        account: SpendingLimits(daily=_micro(table.daily), monthly=_micro(table.monthly))
        for account, table in tables.items()
    }


def _micro(amount: float | None) -> int | None:
    return None if amount is None else to_micro(amount)
