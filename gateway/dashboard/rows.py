"""What the dashboard shows: the rows of its tables, as JSON.

Owns their fields and units. Must not know where the values come from, nor how they are shown.
Amounts are micro-units of `currency`; times are Unix seconds.
"""

from typing import Literal

import msgspec

from gateway.conversations import ConversationRow, PrefixRow
from gateway.spending import Saving
from gateway.telemetry import HistorySample, Level

Phase = Literal["preparing", "queued", "prefill", "decode", "cloud", "detached", "ended"]
"""Where a request is. `detached`: its client has left before the first token, and may come back."""

Condition = Literal["well", "starting", "cloud", "busy", "down"]
"""The whole gateway: `cloud` and `down` if any model is, `busy` while requests wait."""


class WorkerRow(msgspec.Struct, frozen=True):
    """`state` is as in the fleet. `phase` and `fraction` are the progress of a start. `running` and
    `waiting` are the engine's counts, of `places` at once. Sequences hold `held_blocks` of
    `num_blocks` of key-value memory; the index knows `cached_blocks`. `is_open`: its breaker is
    open. `tokens_per_s` is what this gateway gets from it. An engine with a host cache of
    `host_bytes` has `host_blocks` of the cached ones there alone. Since its start `hit_tokens` of
    `prompt_tokens` were found, `loaded_tokens` of them on the host.
    """

    name: str
    models: tuple[str, ...]
    state: str
    device: str
    kind: str
    phase: str
    fraction: float
    fault: str
    is_open: bool
    running: int
    waiting: int
    places: int
    num_blocks: int
    held_blocks: int
    cached_blocks: int
    kv_tokens: int
    step_ms: float
    prefill_tokens_per_s: float
    tokens_per_s: float
    evicted_blocks: int = 0
    recomputed_tokens: int = 0
    hit_tokens: int = 0
    loaded_tokens: int = 0
    prompt_tokens: int = 0
    host_blocks: int = 0
    host_bytes: int = 0
    host_held_bytes: int = 0
    stored_bytes: int = 0
    loaded_bytes: int = 0
    load_bytes_per_s: float = 0.0


class ModelRow(msgspec.Struct, frozen=True):
    """`since`: when its providers took over, if that is known."""

    name: str
    state: str
    is_away: bool
    since: float | None
    ready_workers: int
    queued: int
    providers: tuple[str, ...]
    context_length: int | None


class RequestRow(msgspec.Struct, frozen=True):
    """A request, open or ended. While it waits, `position` is its place in the queue, from 1, and
    `wait_s` the forecast of its wait. `age_s` is its duration so far. `tokens_per_s` is the rate of
    the last moments for an open request, else the average.
    """

    id: str
    api: str
    model: str
    key: str
    client: str
    phase: Phase
    server: str
    is_cloud: bool
    position: int
    wait_s: float
    unix_time: float
    age_s: float
    first_s: float | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    tokens_per_s: float
    attempts: int
    status: int
    error: str


class ClientRow(msgspec.Struct, frozen=True):
    """Prompt tokens of a client program, and how many were cached."""

    name: str
    prompt_tokens: int
    cached_tokens: int


class ProviderRow(msgspec.Struct, frozen=True):
    """`is_open`: asked last, or not at all, for now. `unpriced` requests are in no sum: no price
    says their cost.
    """

    name: str
    is_open: bool
    spent: int
    reserved: int
    unpriced: int = 0


class LimitRow(msgspec.Struct, frozen=True):
    """A spending limit and its window."""

    scope: str
    name: str
    period: str
    limit: int
    spent: int
    reserved: int


class EventRow(msgspec.Struct, frozen=True):
    """An event; `time` is written as in the log."""

    number: int
    kind: str
    time: str
    level: Level
    text: str


class EventLog(msgspec.Struct, frozen=True):
    """Events in order. `num_lost` earlier ones are no longer kept."""

    events: tuple[EventRow, ...]
    num_lost: int = 0


class Totals(msgspec.Struct, frozen=True):
    """Counts since the start; but `tokens_per_s`, `open` and `queued` are of this moment, and the
    times to the first token are of the last `firsts` requests.
    """

    open: int
    queued: int
    tokens_per_s: float
    ended: int
    failed: int
    by_cloud: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    first_p50_ms: float | None
    first_p95_ms: float | None
    firsts: int


class Overview(msgspec.Struct, frozen=True):
    """The whole gateway at one moment. `requests` are the oldest open ones, at most `MAX_REQUESTS`;
    `recent` are the last ended ones, `conversations` those that were used last, `prefixes` what
    breaks the prefixes of prompts. `process` is the
    index of one of several gateway processes. The overview covers `processes`, which have replaced
    `replaced` others.
    """

    version: str
    process: str | None
    unix_time: float
    started_at: float
    condition: Condition
    words: str
    currency: str
    totals: Totals
    models: tuple[ModelRow, ...]
    workers: tuple[WorkerRow, ...]
    requests: tuple[RequestRow, ...]
    recent: tuple[RequestRow, ...]
    clients: tuple[ClientRow, ...]
    providers: tuple[ProviderRow, ...]
    limits: tuple[LimitRow, ...]
    savings: tuple[Saving, ...]
    conversations: tuple[ConversationRow, ...] = ()
    prefixes: tuple[PrefixRow, ...] = ()
    processes: int = 1
    replaced: int = 0


class DashboardState(msgspec.Struct, frozen=True):
    """An overview with the samples of the last hour and the last events."""

    overview: Overview
    history: tuple[HistorySample, ...]
    events: tuple[EventRow, ...]
