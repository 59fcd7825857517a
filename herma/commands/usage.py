"""`herma usage`: requests, tokens and costs from the ledger.

Owns the table for people and the JSON for programs. Only reads the ledger, so it works while a
gateway writes it, and before the file exists.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from config import Config, LimitsConfig, builtin_config, found_config, ledger_path, load_config
from gateway.spending import Period, day_of, show_amount, to_micro, window_of
from gateway.store import Column, LedgerReport, LedgerRow, read_report
from herma.processes import gateways, reachable
from herma.terminal import table_lines
from protocol.errors import ConfigError

_DEFAULT_BY: tuple[Column, ...] = ("provider", "model")
_NUMBERS = ("requests", "prompt", "cached", "output", "cost", "unsettled")
_DECIMALS = 4
_NONE = "-"


def run(arguments: argparse.Namespace) -> int:
    """Print the usage since a day. Raises `ConfigError` if the ledger cannot be read, or for
    several ledgers.
    """
    ledger = _ledger(arguments)
    if ledger.file is None:
        _tell("no file is read, so limits are not shown; name one with --config")
    config = builtin_config() if ledger.file is None else load_config(ledger.file)
    path = ledger_path(config.ledger, os.environ) if ledger.path is None else ledger.path
    now = datetime.now(UTC).timestamp()
    since = _since(arguments.since, now)
    by: Sequence[Column] = tuple(dict.fromkeys(arguments.by or _DEFAULT_BY))
    report = read_report(path, by, since)
    limits = [] if report is None else list(_limits(config, path, day_of(now)))
    if arguments.json:
        print(json.dumps(_as_json(report, by, since, limits, path), indent=2))
    else:
        print("\n".join(_as_text(report, by, since, limits, path)))
    return 0


class _Source(NamedTuple):
    """A ledger to read. `file` is the configuration with its limits, None for none; `path` is the
    ledger's, None for that of the file; `urls` are of the running gateways that write it.
    """

    file: Path | None
    path: Path | None
    urls: tuple[str, ...] = ()

    def is_of(self, file: Path) -> bool:
        return self.file is not None and self.file.resolve() == file.resolve()

    def __str__(self) -> str:
        names = [f"of {' and '.join(map(reachable, self.urls))}"] if self.urls else []
        names += [] if self.file is None else [f"with the limits of {self.file}"]
        what = f"the ledger {self.path}" if self.path is not None else "the ledger"
        return " ".join([what, *names])


def _ledger(arguments: argparse.Namespace) -> _Source:
    """The ledger that the options name, else that of the gateway that runs on this host, else of
    the file that is found here. Says which, and which others there are. Raises `ConfigError` if
    several gateways run with ledgers of their own, none of them with the found file.
    """
    if arguments.config is not None or arguments.ledger is not None:
        return _Source(arguments.config, arguments.ledger)
    running = _running()
    if (url := arguments.url) is not None:
        named = [one for one in running if _plain(url) in map(_plain, one.urls)]
        if not named:
            known = "; ".join(map(str, running)) or "none"
            raise ConfigError(f"no gateway of this host that says so is at {url}; known: {known}")
        _tell(f"reading {named[0]}")
        return named[0]
    found = found_config(Path.cwd(), os.environ)
    chosen = _Source(found, None)
    own = running if len(running) == 1 else [one for one in running if found and one.is_of(found)]
    if own:
        chosen = own[0]
    elif running:
        raise ConfigError(
            "several gateways run here, name one with --url, --ledger or --config: "
            + "; ".join(map(str, running))
        )
    if chosen != _Source(None, None):
        _tell(f"reading {chosen}")
    for other in running:
        if other is not chosen:
            _tell(f"not reading {other}; name it with --url, --ledger or --config")
    return chosen


def _running() -> list[_Source]:
    """The ledgers of the gateways that run on this host, each once."""
    urls: dict[tuple[Path | None, Path | None], list[str]] = {}
    for status in [one.status for one in gateways()]:
        if status is None or not (status.config or status.ledger):
            continue
        file = Path(status.config) if status.config else None
        place = file, Path(status.ledger) if status.ledger else None
        urls.setdefault(place, []).append(status.url)
    return [_Source(*place, tuple(dict.fromkeys(of))) for place, of in urls.items()]


def _tell(line: str) -> None:
    print(f"herma: {line}", file=sys.stderr)


def _plain(url: str) -> str:
    """The address of a gateway without what people may leave out."""
    return reachable(url.rstrip("/").removesuffix("/v1"))


class LimitUse:
    """A configured limit and the amount spent of it, in micro-units."""

    def __init__(self, scope: str, name: str, period: Period, limit: int, spent: int) -> None:
        self.scope = scope
        self.name = name
        self.period = period
        self.limit = limit
        self.spent = spent


def _limits(config: Config, path: Path, today: str) -> Iterator[LimitUse]:
    tables: list[tuple[Column, str, LimitsConfig]] = [
        *(("provider", name, provider.limits) for name, provider in config.providers.items()),
        *(("key", key.name, key.limits) for key in config.keys),
    ]
    for scope, name, table in tables:
        amounts: tuple[tuple[Period, float | None], ...] = (
            ("daily", table.daily),
            ("monthly", table.monthly),
        )
        for period, amount in amounts:
            if amount is not None:
                spent = _spent(path, scope, name, window_of(period, today))
                yield LimitUse(scope, name, period, to_micro(amount), spent)


def _spent(path: Path, scope: Column, name: str, window: str) -> int:
    first_day = window if len(window) == len("2026-11-21") else f"{window}-01"
    report = read_report(path, (scope,), first_day)
    rows = () if report is None else report.rows
    return sum(row.cost + row.unsettled_cost for row in rows if row.group == (name,))


def _since(text: str | None, now: float) -> str:
    """The first day: of this month, the given day, or N days back (today is 1d)."""
    if text is None:
        return f"{window_of('monthly', day_of(now))}-01"
    if days := re.fullmatch(r"([1-9]\d{0,4})d", text):
        return day_of(now - timedelta(days=int(days[1]) - 1).total_seconds())
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).strftime("%Y-%m-%d")
    except ValueError as error:
        raise ConfigError(f"--since takes a day as 2026-11-21 or a span as 7d, not {text!r}") from (
            error
        )


def _as_text(
    report: LedgerReport | None,
    by: Sequence[Column],
    since: str,
    limits: list[LimitUse],
    path: Path,
) -> Iterator[str]:
    if report is None:
        yield f"no usage is recorded yet: there is no ledger at {path}"
        return
    yield f"{path}: since {since} (UTC), amounts in {report.currency}"
    if report.total is None:
        yield "nothing was used"
    else:
        rows = [[*map(_shown, by, row.group), *_numbers(row)] for row in report.rows]
        total = ["total", *[""] * (len(by) - 1), *_numbers(report.total)]
        head = [*by, *_NUMBERS]
        yield ""
        yield from table_lines([head, [], *rows, [], total], right=range(len(by), len(head)))
        if report.total.unsettled:
            yield ""
            yield (
                f"unsettled: {report.total.unsettled:,} requests that are under way, or whose end "
                "was not seen, at what they can have cost at most"
            )
        if report.total.unpriced:
            num = report.total.unpriced
            what = "1 request" if num == 1 else f"{num:,} requests"
            yield f"?: no price says the cost of {what}; set [providers.NAME] price"
    if limits:
        lines = [
            # A limit of 0 is shown as 0: it allows nothing that costs.
            [one.scope, one.name, one.period, _amount(one.spent), show_amount(one.limit, _DECIMALS)]
            for one in limits
        ]
        yield ""
        head = ["limited", "name", "period", "spent", "limit"]
        yield from table_lines([head, [], *lines], right=range(3, 5))


def _numbers(row: LedgerRow) -> list[str]:
    counts = (row.requests, row.prompt_tokens, row.cached_tokens, row.completion_tokens)
    cost = "" if row.unpriced and not row.cost else _amount(row.cost)
    return [
        *(f"{count:,}" for count in counts),
        cost + ("?" if row.unpriced else ""),
        _amount(row.unsettled_cost),
    ]


def _amount(micro: int) -> str:
    return show_amount(micro, _DECIMALS) if micro else _NONE


def _shown(column: Column, value: str) -> str:
    """The words for the ledger's empty names."""
    if value:
        return value
    return "(own workers)" if column == "provider" else "(no key)" if column == "key" else _NONE


def _as_json(
    report: LedgerReport | None,
    by: Sequence[Column],
    since: str,
    limits: list[LimitUse],
    path: Path,
) -> dict[str, object]:
    rows = [] if report is None else report.rows
    total = None if report is None or report.total is None else report.total
    return {
        "ledger": str(path),
        "since": since,
        "currency": None if report is None else report.currency,
        "rows": [{**dict(zip(by, row.group, strict=True)), **_fields(row)} for row in rows],
        "total": None if total is None else _fields(total),
        "limits": [
            {
                one.scope: one.name,
                "period": one.period,
                "spent": show_amount(one.spent),
                "limit": show_amount(one.limit),
            }
            for one in limits
        ],
    }


def _fields(row: LedgerRow) -> dict[str, int | str | None]:
    return {
        "requests": row.requests,
        "prompt_tokens": row.prompt_tokens,
        "cached_tokens": row.cached_tokens,
        "completion_tokens": row.completion_tokens,
        # The cost is unknown without a price; 0 would read as free.
        "cost": None if row.unpriced and not row.cost else show_amount(row.cost),
        "unsettled_requests": row.unsettled,
        "unsettled_cost": show_amount(row.unsettled_cost),
        "unpriced_requests": row.unpriced,
    }
