"""The dashboard's overview: from the gateway's plain data to rows.

Owns the assembly, which reads no clock and changes nothing. Must not know HTTP or its readers.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from gateway.conversations import ConversationRow, PrefixRow
from gateway.dashboard.rows import (
    ClientRow,
    Condition,
    EventRow,
    LimitRow,
    ModelRow,
    Overview,
    Phase,
    ProviderRow,
    RequestRow,
    Totals,
    WorkerRow,
)
from gateway.routing import ModelView, QueuePosition, WorkerView
from gateway.spending import SpendingFigures
from gateway.telemetry import (
    AttemptTrace,
    FleetEvent,
    PublishedEvent,
    RequestTrace,
    percentile,
    words_of,
)
from protocol.messages import CacheUse

_DIGITS: Final = re.compile(r"(\d{1,18})", re.ASCII)

MAX_REQUESTS: Final = 100
MAX_RECENT: Final = 40
MAX_TALKS: Final = 20
"""Conversations that are shown."""


class OverviewSource(msgspec.Struct, frozen=True):
    """The input of an overview. `now` is on the clock of traces. `positions` has the queue position
    of each waiting ticket, `rates` the tokens per second of open requests by number, `away_since`
    the time at which providers took over by model, `clients` prompt tokens and cached ones.
    """

    version: str
    process: str | None
    unix_time: float
    started_at: float
    now: float
    models: Sequence[ModelView] = ()
    workers: Sequence[WorkerView] = ()
    positions: Mapping[int, QueuePosition] = {}
    open: Sequence[RequestTrace] = ()
    recent: Sequence[RequestTrace] = ()
    rates: Mapping[int, float] = {}
    away_since: Mapping[str, float] = {}
    clients: Mapping[str, tuple[int, int]] = {}
    spending: SpendingFigures = SpendingFigures()
    open_breakers: Mapping[str, bool] = {}
    ended: int = 0
    failed: int = 0
    by_cloud: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    replaced: int = 0
    conversations: Sequence[ConversationRow] = ()
    prefixes: Sequence[PrefixRow] = ()


def overview_of(source: OverviewSource) -> Overview:
    """The rows of `source`."""
    condition, words = condition_of(source.models, source.workers, len(source.positions))
    oldest = sorted(source.open, key=lambda trace: trace.received_at)
    money = source.spending
    return Overview(
        version=source.version,
        process=source.process,
        unix_time=round(source.unix_time, 3),
        started_at=round(source.started_at, 3),
        condition=condition,
        words=words,
        currency=money.currency,
        totals=_totals(source),
        models=tuple(_model_row(view, source.away_since) for view in source.models),
        workers=tuple(_worker_rows(source)),
        requests=tuple(request_row(trace, source) for trace in oldest[:MAX_REQUESTS]),
        recent=tuple(request_row(trace, source) for trace in source.recent[:MAX_RECENT]),
        clients=tuple(_client_rows(source.clients)),
        providers=tuple(
            ProviderRow(
                name,
                is_open,
                money.spent.get(name, 0),
                money.reserved.get(name, 0),
                money.unpriced.get(name, 0),
            )
            for name, is_open in source.open_breakers.items()
        ),
        limits=tuple(
            LimitRow(*one.account, one.period, one.limit, one.spent, one.reserved)
            for one in money.windows
        ),
        savings=money.savings,
        conversations=tuple(source.conversations),
        prefixes=tuple(source.prefixes),
        replaced=source.replaced,
    )


def condition_of(
    models: Iterable[ModelView], workers: Sequence[WorkerView], num_waiting: int
) -> tuple[Condition, str]:
    """The condition of the whole gateway, in a word and in a sentence."""
    models = tuple(models)
    away = [model.name for model in models if model.is_away and not model.is_providers_alone]
    down = [model.name for model in models if model.state == "down" and not model.is_away]
    starting = [model.name for model in models if model.state == "starting" and not model.is_away]
    unproven = [worker.name for worker in workers if worker.state == "unproven"]
    if down:
        why = f" {_list(unproven)} gave no answers." if unproven else ""
        if refused := [model.name for model in models if model.name in down and model.is_refused]:
            why += f" A spending limit keeps the providers of {_list(refused)} from answering."
        return "down", f"No worker serves {_list(down)}.{why}"
    if away:
        unserved = [
            model.name for model in models if model.name in away and model.has_only_providers
        ]
        whose, whom = ("its", "it") if len(away) == 1 else ("their", "them")
        why = f"{whose} workers are not ready"
        if unserved == away:
            why = f"no worker has joined for {whom} since the gateway's start"
        return "cloud", f"Providers answer for {_list(away)}: {why}."
    if starting:
        return "starting", f"The workers of {_list(starting)} are starting."
    unready = [
        worker.name for worker in workers if worker.state in {"starting", "unproven", "down"}
    ]
    waiting = f"{num_waiting} requests wait." if num_waiting != 1 else "1 request waits."
    if unready:
        verb = "is" if len(unready) == 1 else "are"
        return "busy", f"All models are served; {_list(unready)} {verb} not ready."
    if num_waiting:
        return "busy", f"All workers are ready; {waiting}"
    asleep = sum(worker.state in {"falling asleep", "asleep", "waking"} for worker in workers)
    if asleep:
        verb = "sleeps" if asleep == 1 else "sleep"
        return "well", f"All workers are ready; of {len(workers)}, {asleep} {verb}."
    return "well", "All workers are ready." if workers else "Providers answer for all models."


def request_row(trace: RequestTrace, source: OverviewSource) -> RequestRow:
    """One request."""
    turn, attempt = trace.turn, last_attempt(trace)
    waiting = source.positions.get(turn.ticket)
    ended_at = source.now if trace.ended_at is None else trace.ended_at
    age_s = ended_at - trace.received_at
    first_s = None if trace.first_at is None else trace.first_at - trace.received_at
    usage = trace.usage
    is_over = trace.ended_at is not None
    rate = source.rates.get(trace.number, 0.0)
    if is_over and first_s is not None:
        rate = trace.output_tokens / max(1e-3, age_s - first_s)
    return RequestRow(
        id=trace.id,
        api=trace.api,
        model=trace.model or turn.model,
        key=trace.key,
        client=trace.client,
        phase=phase_of(trace),
        server="" if attempt is None else attempt.server,
        is_cloud=attempt is not None and attempt.is_cloud,
        position=0 if is_over or waiting is None else waiting.number,
        wait_s=0.0 if is_over or waiting is None else round(waiting.wait_s, 1),
        unix_time=round(trace.unix_time, 3),
        age_s=round(age_s, 3),
        first_s=None if first_s is None else round(first_s, 4),
        prompt_tokens=turn.prompt_tokens if usage is None else usage.prompt_tokens,
        cached_tokens=_cached_tokens(attempt) if usage is None else usage.cached_tokens,
        output_tokens=trace.output_tokens,
        tokens_per_s=round(rate, 1),
        attempts=turn.num_attempts,
        status=trace.status,
        error=trace.error,
    )


def last_attempt(trace: RequestTrace) -> AttemptTrace | None:
    """The server that has the request, or had it last."""
    attempts = trace.turn.attempts
    return attempts[-1] if attempts else None


def phase_of(trace: RequestTrace) -> Phase:
    """The phase in which the request is now."""
    turn, attempt = trace.turn, last_attempt(trace)
    if trace.ended_at is not None:
        return "detached" if turn.num_open else "ended"
    if turn.ticket:
        return "queued"
    if attempt is None:
        return "preparing"
    if attempt.is_cloud:
        return "cloud"
    is_decoding = attempt.first_at is not None or trace.first_at is not None
    return "decode" if is_decoding else "prefill"


def event_row(published: PublishedEvent) -> EventRow:
    """An event of the log in words."""
    level, text = words_of(_decode_event(published.json))
    time = _decode_time(published.json).time
    return EventRow(published.number, published.kind, time, level, text)


def away_since(events: Iterable[PublishedEvent]) -> dict[str, float]:
    """When providers took over each model that they answer for, as far as `events` go back."""
    since: dict[str, float] = {}
    for published in events:
        if published.kind == "fallback on":
            event = _decode_time(published.json)
            since[event.model] = event.unix_time
    return since


class _EventTime(msgspec.Struct):
    time: str
    model: str = ""

    @property
    def unix_time(self) -> float:
        return datetime.fromisoformat(self.time).timestamp()


_decode_event = msgspec.json.Decoder(FleetEvent).decode
_decode_time = msgspec.json.Decoder(_EventTime).decode


def _list(names: Sequence[str]) -> str:
    if len(names) <= 2:
        return " and ".join(names)
    return f"{names[0]}, {names[1]} and {len(names) - 2} more"


def _cached_tokens(attempt: AttemptTrace | None) -> int:
    return 0 if attempt is None else attempt.cached_tokens


def _totals(source: OverviewSource) -> Totals:
    firsts = sorted(
        trace.first_at - trace.received_at
        for trace in (*source.open, *source.recent)
        if trace.first_at is not None
    )
    p50, p95 = percentile(firsts, 0.5), percentile(firsts, 0.95)
    return Totals(
        open=len(source.open),
        queued=len(source.positions),
        tokens_per_s=round(sum(source.rates.values()), 1),
        ended=source.ended,
        failed=source.failed,
        by_cloud=source.by_cloud,
        prompt_tokens=source.prompt_tokens,
        cached_tokens=source.cached_tokens,
        output_tokens=source.output_tokens,
        first_p50_ms=None if p50 is None else round(1000 * p50, 1),
        first_p95_ms=None if p95 is None else round(1000 * p95, 1),
        firsts=len(firsts),
    )


def _model_row(view: ModelView, since: Mapping[str, float]) -> ModelRow:
    return ModelRow(
        name=view.name,
        state=view.state,
        is_away=view.is_away,
        since=since.get(view.name) if view.is_away else None,
        ready_workers=view.ready_workers,
        queued=view.queued,
        providers=tuple(target.provider for target in view.fallback),
        context_length=view.context_length,
    )


def _worker_rows(source: OverviewSource) -> Iterator[WorkerRow]:
    speeds: dict[str, float] = {}
    for trace in source.open:
        attempt = last_attempt(trace)
        if attempt is not None and not attempt.is_cloud:
            rate = source.rates.get(trace.number, 0.0)
            speeds[attempt.server] = speeds.get(attempt.server, 0.0) + rate
    for view in sorted(source.workers, key=lambda view: _natural(view.name)):
        yield _worker_row(view, speeds.get(view.name, 0.0))


def _natural(name: str) -> list[tuple[int, str]]:
    """Orders gpu2 before gpu10."""
    parts = _DIGITS.split(name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


_NO_CACHE: Final = CacheUse(0, 0)


def _worker_row(view: WorkerView, tokens_per_s: float) -> WorkerRow:
    engine, load, progress = view.engine, view.load, view.progress
    blocks = engine.kv_tokens // engine.block_size if engine is not None else 0
    cache = (load.cache if load is not None else None) or _NO_CACHE
    return WorkerRow(
        name=view.name,
        models=view.models,
        state=view.state,
        device=engine.device if engine is not None else "",
        kind=engine.kind if engine is not None else "",
        phase=progress.phase if progress is not None else "",
        fraction=round(progress.fraction, 3) if progress is not None else 0.0,
        fault=_why_not_ready(view),
        is_open=view.is_open,
        running=load.running if load is not None else view.running,
        waiting=load.waiting if load is not None else 0,
        places=view.places,
        num_blocks=load.num_blocks if load is not None else blocks,
        held_blocks=load.num_blocks - load.free_blocks if load is not None else 0,
        cached_blocks=view.cached_blocks,
        kv_tokens=engine.kv_tokens if engine is not None else 0,
        step_ms=round(load.step_ms, 2) if load is not None else 0.0,
        prefill_tokens_per_s=round(load.prefill_tokens_per_s) if load is not None else 0.0,
        tokens_per_s=round(tokens_per_s, 1),
        evicted_blocks=load.evicted_blocks if load is not None else 0,
        recomputed_tokens=load.recomputed_tokens if load is not None else 0,
        hit_tokens=cache.hit_tokens,
        loaded_tokens=cache.loaded_tokens,
        prompt_tokens=cache.prompt_tokens,
        host_blocks=view.host_blocks,
        host_bytes=cache.num_bytes,
        host_held_bytes=cache.held_bytes,
        stored_bytes=cache.stored_bytes,
        loaded_bytes=cache.loaded_bytes,
        load_bytes_per_s=round(cache.load_bytes_per_s),
    )


def _why_not_ready(view: WorkerView) -> str:
    """Why the worker is not ready: the last fault of its engine; before the first fault of an
    attached engine, what its start waits for, which names the engine's address; for a sleeping
    worker, what keeps it from waking.
    """
    if view.sleep_trouble:
        return view.sleep_trouble
    if view.engine is not None:
        return ""
    progress = view.progress
    waits = progress is not None and progress.phase == "attach" and not view.fault
    return progress.detail if progress is not None and waits else view.fault


def _client_rows(clients: Mapping[str, tuple[int, int]]) -> Iterator[ClientRow]:
    """A row for each client, the one with the most prompt tokens first."""
    for name, (prompt, cached) in sorted(clients.items(), key=lambda item: -item[1][0]):
        yield ClientRow(name, prompt, cached)
