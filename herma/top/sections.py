"""The parts of a frame, from an overview.

Owns the words and the columns. Must not know how much room there is, except the width. Pure.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from rich.text import Text

from gateway.dashboard import (
    EventRow,
    LimitRow,
    ModelRow,
    Overview,
    ProviderRow,
    RequestRow,
    WorkerRow,
)
from gateway.spending import Saving, show_amount
from gateway.telemetry import HistorySample
from herma.top.text import DOT, Column, bar, graph, plain

NONE: Final = "-"
UNKNOWN: Final = "?"
"""Shown in place of a cost if the price is unknown."""
_BAR: Final = 8
_OK: Final = 200
_CLIENT_LEFT: Final = 499
_ID_CHARS: Final = 8

_STATES: Final = {
    "ready": "good",
    "unproven": "critical",
    "draining": "info",
    "starting": "info",
    "down": "critical",
    "falling asleep": "soft",
    "asleep": "soft",
    "waking": "info",
}
_CONDITIONS: Final = {
    "well": "good",
    "starting": "info",
    "cloud": "cloud",
    "busy": "warning",
    "down": "critical",
}
_PHASES: Final = {
    "preparing": ("preparing", "soft"),
    "queued": ("queued", "warning"),
    "prefill": ("prefill", "info"),
    "decode": ("answering", "good"),
    "cloud": ("cloud", "cloud"),
    "detached": ("client left", "soft"),
}

WORKER_COLUMNS: Final = (
    Column("WORKER", 8, 24),
    Column("STATE", 12, 12),
    Column("MODELS", 8, 28, drop=2),
    Column("DEVICE", 8, 20, drop=3),
    Column("SEQUENCES", 15, 15),
    Column("MEMORY", 13, 13),
    Column("TOK/S", 6, 6, align="right"),
    Column("STEP", 7, 7, align="right"),
    Column("PREFILL", 7, 7, align="right", drop=1),
)
REQUEST_COLUMNS: Final = (
    Column("REQUEST", 8, 8, drop=4),
    Column("MODEL", 8, 28),
    Column("CLIENT", 8, 28, drop=3),
    Column("PHASE", 11, 20),
    Column("SERVER", 8, 16, drop=1),
    Column("PROMPT", 6, 6, align="right"),
    Column("HIT", 5, 5, align="right"),
    Column("OUT", 6, 6, align="right"),
    Column("TOK/S", 5, 5, align="right"),
    Column("FIRST", 7, 7, align="right", drop=2),
    Column("TIME", 8, 8, align="right"),
)


def count(value: float) -> str:
    """950, 9512, 18.3k, 4.27M"""
    if value < 10_000:
        return str(round(value))
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            number = value / size
            digits = 2 if number < 10 else 1 if number < 100 else 0
            return f"{number:.{digits}f}{unit}"
    raise AssertionError(value)


def rate(value: float) -> str:
    """0, 7.4, 112, 12.3k"""
    return f"{value:.1f}" if 0 < value < 10 else count(value)


def duration(ms: float | None) -> str:
    """4.2 ms, 310 ms, 1.24 s, 12.5 s, 2m05s, 3h12m, 4d03h"""
    if ms is None:
        return NONE
    if ms < 1000:
        return f"{ms:.1f} ms" if ms < 10 else f"{ms:.0f} ms"
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours < 48 else f"{hours // 24}d{hours % 24:02}h"


def percent(part: float, whole: float) -> str:
    if not whole:
        return NONE
    share = part / whole
    return "<1 %" if 0 < share < 0.01 else f"{int(100 * share)} %"


def amount(micro: int, currency: str) -> str:
    return f"{show_amount(micro, 4 if 0 < micro < 100_000 else 2)} {currency}"


def clock(unix_time: float) -> str:
    """The time in this machine's time zone."""
    return datetime.fromtimestamp(unix_time).astimezone().strftime("%H:%M:%S")


def header(now: Overview, samples: Sequence[HistorySample], width: int) -> list[Text]:
    """The state of the whole, its figures, and graphs of the last hour."""
    return [
        Text.assemble((f"{DOT} ", _CONDITIONS[now.condition]), (now.words, "bold")),
        _figures(now),
        _graphs(now, samples, width),
    ]


def _figures(now: Overview) -> Text:
    one = now.totals
    found = sum([each.hit_tokens for each in now.workers])
    loaded = sum([each.loaded_tokens for each in now.workers])
    prompts = sum([each.prompt_tokens for each in now.workers])
    again = sum([each.recomputed_tokens for each in now.workers])
    tiers = f"{percent(found - loaded, prompts)} card, {percent(loaded, prompts)} host"
    queued = f", {one.queued} queued" if one.queued else ""
    failed = f", {one.failed} failed" if one.failed else ""
    figures = (
        ("open", f"{one.open}{queued}"),
        ("ended", f"{count(one.ended)}{failed}"),
        ("cache", percent(one.cached_tokens, one.prompt_tokens)),
        ("cloud", percent(one.by_cloud, one.ended)),
        *([("from host", percent(loaded, found))] if found and not prompts else []),
        *([("tiers", tiers)] if prompts else []),
        *([("again", count(again))] if again else []),
    )
    line = Text()
    for name, value in figures:
        line.append(f"{'   ' if line else ''}{name} ", "soft").append(value, "bold")
    return line


def _graphs(now: Overview, samples: Sequence[HistorySample], width: int) -> Text:
    """Tokens/s and first tokens, now and over the last hour."""
    speed, first = rate(now.totals.tokens_per_s), now.totals
    left = f"{speed} tok/s "
    right = f"first {duration(first.first_p50_ms)}, 95 % {duration(first.first_p95_ms)} "
    room = max(0, width - len(left) - len(right) - 3)
    speeds = graph([one.output_tokens_per_s for one in samples], room // 2)
    firsts = graph([one.first_p50_ms for one in samples], room - room // 2)
    return Text.assemble(
        (left, "bold"), (speeds, "held"), "   ", (right, "bold"), (firsts, "cached")
    )


def worker_rows(workers: Sequence[WorkerRow]) -> list[Sequence[Text]]:
    return [_worker_row(one) for one in workers]


def troubled_first(workers: Sequence[WorkerRow]) -> list[WorkerRow]:
    """The workers with troubled ones first, for a list that may be cut."""
    return sorted(workers, key=lambda one: one.state == "ready" and not one.is_open)


def _worker_row(one: WorkerRow) -> Sequence[Text]:
    style = "warning" if one.is_open and one.state == "ready" else _STATES.get(one.state, "soft")
    dot = (f"{DOT} ", style)
    name = plain(one.name, "bold")
    if one.fault:
        return name, Text.assemble(dot, (f"{one.state}: ", style), plain(one.fault))
    if one.state == "starting" or (one.state == "waking" and one.phase):
        phase = plain(f"{one.phase or 'starting'} {percent(one.fraction, 1)}")
        return name, Text.assemble(dot, phase)
    state = "asked last" if one.is_open else one.state
    waits = f"+{one.waiting}" if one.waiting else ""
    sequences = bar(_BAR, one.running / max(1, one.places), 0)
    blocks = max(1, one.num_blocks)
    cached = min(1.0, max(one.held_blocks, one.cached_blocks - one.host_blocks) / blocks)
    memory = bar(_BAR, one.held_blocks / blocks, cached)
    prefill = count(one.prefill_tokens_per_s) if one.prefill_tokens_per_s else NONE
    again = f", {count(one.recomputed_tokens)} again" if one.recomputed_tokens else ""
    return (
        name,
        Text.assemble(dot, plain(state)),
        plain(", ".join(one.models)),
        plain(one.device),
        Text.assemble(sequences, f" {one.running}/{one.places}{waits}"),
        Text.assemble(memory, f" {percent(one.held_blocks, one.num_blocks)}{again}"),
        plain(rate(one.tokens_per_s)),
        plain(duration(one.step_ms) if one.step_ms else NONE),
        plain(prefill),
    )


def request_rows(now: Overview) -> Iterator[Sequence[Text]]:
    """The open requests, the oldest first, then the requests that ended last."""
    for one in now.requests:
        yield _request_row(one)
    for one in now.recent:
        yield _request_row(one, "soft")


def _request_row(one: RequestRow, style: str = "") -> Sequence[Text]:
    cells = (
        one.id.rpartition("-")[2].rpartition("_")[2][:_ID_CHARS],
        one.model or one.api,
        f"{one.client} {one.key}".strip(),
        None,
        one.server or NONE,
        count(one.prompt_tokens) if one.prompt_tokens else NONE,
        percent(one.cached_tokens, one.prompt_tokens),
        count(one.output_tokens) if one.output_tokens else NONE,
        rate(one.tokens_per_s) if one.tokens_per_s else NONE,
        duration(None if one.first_s is None else 1000 * one.first_s),
        duration(1000 * one.age_s),
    )
    return tuple(_phase(one) if cell is None else plain(cell, style) for cell in cells)


def _phase(one: RequestRow) -> Text:
    word, style = _PHASES.get(one.phase, ("", ""))
    if one.phase == "ended":
        word, style = _end(one)
    elif one.phase == "queued" and one.position:
        word = f"queued {one.position}."
    tries = f", {one.attempts} tries" if one.attempts > 1 else ""
    return plain(f"{word}{tries}", style)


def _end(one: RequestRow) -> tuple[str, str]:
    if one.status == _OK:
        return ("cloud", "cloud") if one.is_cloud else ("done", "soft")
    if one.status == _CLIENT_LEFT:
        return "client left", "soft"
    return f"{one.status} {one.error.replace('_', ' ')}".strip(), "critical"


def model_items(now: Overview) -> list[Text]:
    return [_model_item(one) for one in now.models]


def _model_item(one: ModelRow) -> Text:
    plural = "" if one.ready_workers == 1 else "s"
    words = f"{one.ready_workers} worker{plural}" if one.state == "ready" else one.state
    style = _STATES.get(one.state, "soft")
    if one.is_away:
        since = "" if one.since is None else f" since {clock(one.since)}"
        words, style = f"cloud{since}", "cloud"
    queued = f", {one.queued} queued" if one.queued else ""
    return Text.assemble((f"{DOT} ", style), plain(one.name), (f" {words}{queued}", "soft"))


def client_items(now: Overview) -> list[Text]:
    """The share of each program's prompts that was cached."""
    return [
        Text.assemble(
            plain(one.name),
            (f" {percent(one.cached_tokens, one.prompt_tokens)}", "bold"),
            (f" of {count(one.prompt_tokens)}", "soft"),
        )
        for one in now.clients
    ]


def money_items(now: Overview) -> list[Text]:
    """Limits, providers and savings."""
    return [
        *(_limit_item(one, now.currency) for one in now.limits),
        *(_provider_item(one, now.currency) for one in now.providers),
        *(
            _saving_item(one, now.currency)
            for one in now.savings
            # Without any provider there is nothing to compare with.
            if one.month is not None or now.providers
        ),
    ]


def _limit_item(one: LimitRow, currency: str) -> Text:
    share = one.spent / one.limit if one.limit else 1.0
    style = "critical" if share >= 1 else "warning" if share >= 0.8 else "bold"
    reserved = f", {amount(one.reserved, currency)} reserved" if one.reserved else ""
    return Text.assemble(
        plain(f"{'key ' if one.scope == 'key' else ''}{one.name} {one.period} "),
        (show_amount(one.spent, 2), style),
        (f" of {amount(one.limit, currency)}{reserved}", "soft"),
    )


def _provider_item(one: ProviderRow, currency: str) -> Text:
    last = ", asked last" if one.is_open else ""
    spent = f" {_known(one, currency)} since the start"
    return Text.assemble(plain(one.name), (spent, "soft"), (last, "warning"))


def _known(one: ProviderRow, currency: str) -> str:
    """What was spent, with a mark for requests whose price is unknown."""
    if not one.unpriced:
        return amount(one.spent, currency)
    return f"{amount(one.spent, currency)} + {UNKNOWN}" if one.spent else UNKNOWN


def _saving_item(one: Saving, currency: str) -> Text:
    saved = UNKNOWN if one.month is None else amount(one.month, currency)
    style = "good" if saved != UNKNOWN else "soft"
    return Text.assemble(plain(f"{one.model} saved "), (saved, style))


def log_lines(events: Sequence[EventRow]) -> list[Text]:
    """The events, the newest first."""
    return [
        Text.assemble((f"{_time_of(one)} ", "soft"), (f"{DOT} ", one.level), plain(one.text))
        for one in reversed(events)
    ]


def _time_of(event: EventRow) -> str:
    return clock(datetime.fromisoformat(event.time).timestamp())
