"""The dashboard's data, and the task that samples its history.

Owns the reading of all parts of the gateway at one moment, the overview that readers share, and the
sample every five seconds. Must not know HTTP, nor how the rows are shown.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final, final

import trio

from gateway.dashboard.explanation import Explanation, explain
from gateway.dashboard.overview import (
    MAX_TALKS,
    OverviewSource,
    away_since,
    event_row,
    last_attempt,
    overview_of,
)
from gateway.dashboard.rates import Rates, RequestProgress
from gateway.dashboard.rows import EventLog, Overview
from gateway.dashboard.siblings import Siblings, merged
from gateway.routing import with_refusals
from gateway.telemetry import SAMPLE_S, History, HistorySample, Reading, RequestTrace
from gateway.turn import Services
from housekeeping.tick import next_tick

Clients = Mapping[str, tuple[int, int]]
SHARED_S: Final = 0.5
"""An overview is shared by all requests for one within this time."""
SHOWN_EVENTS: Final = 200


@final
class Dashboard:
    """`process` is the index of this process if there are several; `now` is the clock of traces.
    `siblings` and `read_clients`, which readers in other processes need, are set later.
    """

    def __init__(
        self,
        services: Services,
        version: str,
        process: str | None = None,
        unix_time: Callable[[], float] = time.time,
        now: Callable[[], float] = trio.current_time,
    ) -> None:
        self._services = services
        self._version = version
        self._process = process
        self._unix_time = unix_time
        self._now = now
        self._started_at = unix_time()
        self._rates = Rates()
        self._history = History()
        self._sampled_at = float("-inf")
        self._shared: Overview | None = None
        self._shared_at = float("-inf")
        self.siblings: Siblings | None = None
        self.read_clients: Callable[[], Clients] = dict

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Sample until cancelled."""
        self._sample()
        task_status.started()
        while True:
            await trio.sleep_until(next_tick(trio.current_time(), SAMPLE_S))
            self._sample()

    async def look(self) -> None:
        """Ask the other processes on the port, if any, for their part of the next overview."""
        if self.siblings is not None:
            await self.siblings.look()

    def overview(self, clients: Clients) -> Overview:
        """The overview of all processes: of this one at most `SHARED_S` old, of the others as of
        the last `look`. `clients` has prompt tokens and cached ones by client program.
        """
        own = self.own(clients)
        return own if self.siblings is None else merged(own, self.siblings.seen)

    def own(self, clients: Clients) -> Overview:
        """The overview of this process alone."""
        now = self._now()
        if self._shared is None or now - self._shared_at >= SHARED_S:
            self._rates.look(map(_progress, self._services.traces.open.values()), now)
            self._shared, self._shared_at = overview_of(self._source(clients)), now
        return self._shared

    def explain(self, name: str) -> Explanation | None:
        """The request with that id, or with that name in events; None if it is not known here."""
        trace = self._services.traces.find(name)
        return None if trace is None else explain(trace, self._source({}))

    def samples(self, number: int = 0) -> tuple[int, list[HistorySample]]:
        """The number of samples so far, and the samples after the first `number`."""
        return self._history.number, self._history.since(number)

    def log(self, after: int | None = None) -> EventLog:
        """The events with numbers above `after` that are kept; by default the last ones."""
        recent = self._services.feed.recent
        if after is None:
            return EventLog(tuple(map(event_row, list(recent)[-SHOWN_EVENTS:])))
        kept = [one for one in recent if one.number > after]
        num_lost = kept[0].number - after - 1 if kept else 0
        return EventLog(tuple(map(event_row, kept)), num_lost)

    def _source(self, clients: Clients) -> OverviewSource:
        services = self._services
        traces, dispatcher = services.traces, services.dispatcher
        return OverviewSource(
            version=self._version,
            process=self._process,
            unix_time=self._unix_time(),
            started_at=self._started_at,
            now=self._now(),
            models=with_refusals(dispatcher.models(), services.spending.refuses_all),
            workers=dispatcher.workers(),
            positions=dispatcher.positions(),
            open=tuple(traces.open.values()),
            recent=tuple(traces.recent()),
            rates=self._rates.by_number,
            away_since=away_since(services.feed.recent),
            clients=clients,
            spending=services.spending.figures(),
            open_breakers=services.health.open_names(),
            ended=traces.num_ended,
            failed=traces.num_failed,
            by_cloud=traces.num_by_cloud,
            prompt_tokens=traces.prompt_tokens,
            cached_tokens=traces.cached_tokens,
            output_tokens=traces.output_tokens,
            replaced=services.counters.processes_replaced,
            conversations=services.conversation_tracker.rows(most=MAX_TALKS),
            prefixes=services.conversation_tracker.prefixes()[:MAX_TALKS],
        )

    def _sample(self) -> None:
        traces = self._services.traces
        reading = Reading(
            unix_time=self._unix_time(),
            ended=traces.num_ended,
            failed=traces.num_failed,
            by_cloud=traces.num_by_cloud,
            prompt_tokens=traces.prompt_tokens,
            cached_tokens=traces.cached_tokens,
            output_tokens=traces.output_tokens,
            open=len(traces.open),
            queued=self._services.dispatcher.num_waiting,
            firsts=traces.firsts(self._sampled_at),
        )
        self._sampled_at = self._now()
        self._history.add(reading)


def _progress(trace: RequestTrace) -> RequestProgress:
    attempt = last_attempt(trace)
    first_at = trace.first_at if attempt is None else attempt.first_at or trace.first_at
    return RequestProgress(trace.number, trace.output_tokens, first_at)
