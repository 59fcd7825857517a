"""What requests cost, from the question whether they may to the last line in the ledger.

Owns the books and the order of their steps: reserve in memory, reserve on the disk, send, settle.
`Spending` is all that turns know of money. Must not know HTTP or SQL.
"""

import logging
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final

import trio

from config import Config, FallbackConfig, LimitsConfig, ledger_path
from gateway.api import ApiError, ChatRequest, Usage, unavailable
from gateway.spending.books import (
    Account,
    Books,
    Limits,
    Order,
    OverLimit,
    SpendingFigures,
    Unbounded,
)
from gateway.spending.ledger_writer import LedgerFull, LedgerWriter
from gateway.spending.prices import Price, Tariffs, show_amount, to_micro
from gateway.spending.refusals import refusal_error
from gateway.spending.windows import day_of, month_before, month_of
from gateway.spending.worst_case import CAP_TOKENS, output_bound, prompt_bound
from gateway.store import Entry, LedgerError, LedgerStore, Reservation, Settlement, spent_beside
from gateway.telemetry import FleetEvent, LimitReached
from protocol.errors import ConfigError

UNBOUNDED_OUTPUT_TOKENS: Final = 131_072
"""What an answer without any bound may hold at most, for the record only: under a limit it is
refused. It is the largest output that providers offer.
"""

_RETRY_AFTER_S: Final = 5

_log = logging.getLogger(__name__)


class Bill:
    """One cloud request that is reserved. Leaving the block settles it: by the provider's usage if
    it came and the answer is complete, else by the most that it can have cost.
    """

    def __init__(self, spending: "Spending", reservation: Reservation, price: Price | None) -> None:
        self._spending = spending
        self._reservation = reservation
        self._price = price
        self._usage: Usage | None = None
        self._is_complete = False
        self._is_waived = False

    def note_usage(self, usage: Usage) -> None:
        """The provider has told what it counts so far."""
        self._usage = usage

    def complete(self) -> None:
        """The whole answer is here: the last usage is the final one."""
        self._is_complete = True

    def waive(self) -> None:
        """The provider certainly charges nothing."""
        self._is_waived = True

    def __enter__(self) -> "Bill":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._spending.settle(self._reservation, self._entry())

    def _entry(self) -> Entry | None:
        if self._is_waived:
            return None
        usage, held = self._usage, self._reservation
        if usage is not None and self._is_complete:
            return _entry(held, usage, self._cost(usage), is_settled=True)
        observed = usage if usage is not None else Usage(0, 0, 0)
        worst = Usage(
            prompt_tokens=max(held.prompt_tokens, observed.prompt_tokens),
            cached_tokens=0,
            completion_tokens=max(held.completion_tokens, observed.completion_tokens),
        )
        return _entry(held, worst, max(held.cost, self._cost(observed)), is_settled=False)

    def _cost(self, usage: Usage) -> int:
        return 0 if self._price is None else self._price.cost(usage)


class Spending:
    """The books of one gateway and the ledger under them; `run` keeps them.

    `tell` takes what operators should know; `unix_time` gives seconds since 1970; `environ` says
    where the ledger lies by default. `is_alone`: no other process shares the port, so what others
    spent here before, when there were some, is this one's to count.
    """

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str],
        tell: Callable[[FleetEvent], None],
        unix_time: Callable[[], float] = time.time,
        *,
        is_alone: bool = True,
    ) -> None:
        self._config = config
        self._environ = environ
        self._tell = tell
        self._now = unix_time
        self._tariffs = Tariffs(config.providers)
        self._books = Books(_limits_of(config))
        self._writer = LedgerWriter()
        self._is_alone = is_alone
        self._is_kept = False

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
                _log.warning("usage is not recorded: %s", error)
            task_status.started()

    async def open_bill(
        self, key: str, model: str, target: FallbackConfig, request: ChatRequest
    ) -> Bill | ApiError:
        """Hold what `request` can cost at `target`, durably; or why it may not be sent there."""
        tariff = self._tariffs.of(target.provider, target.model)
        prompt_tokens = prompt_bound(request)
        bound = output_bound(request, tariff.max_output_tokens)
        output_tokens = UNBOUNDED_OUTPUT_TOKENS * request.n if bound is None else bound
        price = tariff.price
        capped_prompt = prompt_tokens + CAP_TOKENS
        answer = self._books.reserve(
            Order(
                key=key,
                model=model,
                provider=target.provider,
                prompt_tokens=prompt_tokens,
                completion_tokens=output_tokens,
                is_bounded=bound is not None or (price is not None and price.output == 0),
                worst_cost=None if price is None else price.worst(prompt_tokens, output_tokens),
                least_cost=None if price is None else price.worst(capped_prompt, request.n),
            ),
            self._now(),
        )
        if isinstance(answer, OverLimit | Unbounded):
            self._tell_operator(answer)
            output = 0 if price is None else price.affordable_output(answer.left, capped_prompt)
            return refusal_error(answer, target.provider, output // request.n)
        return await self._make_durable(answer, price)

    def settle(self, reservation: Reservation, entry: Entry | None) -> None:
        """The request is over; None: it certainly cost nothing. Never waits."""
        cost = 0 if entry is None else entry.cost
        if cost > reservation.cost and reservation.is_priced:
            _log.warning(
                "provider %s charged for more than a request could use: prices or bounds in the "
                "configuration are too low",
                reservation.provider,
            )
        self._books.settle(reservation, cost)
        self._writer.settle(Settlement(reservation.id, entry))

    def record_local(self, key: str, model: str, usage: Usage) -> None:
        """Count what our own workers did. Never waits; written within half a second."""
        if self._is_kept:
            self._writer.record(day_of(self._now()), key, model, usage)

    def figures(self) -> SpendingFigures:
        """The books now, for metrics."""
        return self._books.figures(self._config.ledger.currency, self._now())

    def _tell_operator(self, refusal: OverLimit | Unbounded) -> None:
        if isinstance(refusal, Unbounded):
            (kind, name), missing = refusal.account, refusal.missing
            _log.warning("a limit of %s %s refuses: no bound on the %s", kind, name, missing)
            return
        window = refusal.window
        (kind, name), period = window.account, window.period
        if refusal.is_news:
            self._tell(LimitReached(kind, name, period, refusal.resets_at.isoformat()))
        elif window.obstacle(refusal.cost) == "size":
            cost, left = show_amount(refusal.cost), show_amount(max(0, window.left))
            text = "the %s limit of %s %s refuses a request that could cost %s: %s is left"
            _log.warning(text, period, kind, name, cost, left)

    async def _open(self, nursery: trio.Nursery) -> None:
        path = ledger_path(self._config.ledger, self._environ)
        today = day_of(self._now())
        first_day = f"{month_before(month_of(today))}-01"
        totals = await nursery.start(
            self._writer.run,
            lambda: LedgerStore(path, self._config.ledger.currency),
            first_day,
        )
        if self._is_alone:
            totals += await trio.to_thread.run_sync(spent_beside, path, first_day)
        for total in totals:
            self._books.load(total)
        self._is_kept = True

    async def _make_durable(self, reservation: Reservation, price: Price | None) -> Bill | ApiError:
        try:
            await self._writer.reserve(reservation)
        except (LedgerError, LedgerFull):
            self._books.settle(reservation, 0)
            return unavailable("Spending cannot be recorded now; the log says why.", _RETRY_AFTER_S)
        except trio.Cancelled:
            self.settle(reservation, None)
            raise
        return Bill(self, reservation, price)


def _entry(held: Reservation, usage: Usage, cost: int, *, is_settled: bool) -> Entry:
    return Entry(
        day=held.day,
        key=held.key,
        model=held.model,
        provider=held.provider,
        is_settled=is_settled,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        cost=cost,
        is_priced=held.is_priced,
    )


def _limits_of(config: Config) -> dict[Account, Limits]:
    limits = {Account("provider", name): table.limits for name, table in config.providers.items()}
    limits |= {Account("key", key.name): key.limits for key in config.keys}
    return {account: _limits(table) for account, table in limits.items()}


def _limits(table: LimitsConfig) -> Limits:
    daily, monthly = (
        None if amount is None else to_micro(amount) for amount in (table.daily, table.monthly)
    )
    return Limits(daily=daily, monthly=monthly)
