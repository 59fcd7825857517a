"""Span export: spans of requests go to a collector in batches.

Owns the queue between the requests and the export, its bound, the retries, and what is counted as
lost. A request is never delayed: its span waits in the queue, or is lost if the queue is full. Must
not know the collector's protocol.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, final

import trio

from gateway.telemetry.counters import GatewayCounters
from gateway.telemetry.request_span import RequestSpan, span_of
from gateway.telemetry.request_traces import RequestTrace

MAX_WAITING: Final = 4096
"""Spans, 1 to 4 KB each."""
MAX_BATCH: Final = 512
PAUSE_S: Final = 1.0
"""Spans are collected for this time, and leave together."""
RETRY_S: Final = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""The pauses before a batch is sent again; after these it is lost."""
LAST_S: Final = 3.0
"""How long the stop of the gateway waits for the last spans."""

_log: Final = logging.getLogger(__name__)

SendSpans = Callable[[Sequence[RequestSpan]], Awaitable[bool]]
"""Hands spans over; False if that failed."""


@final
class SpanExport:
    """`add` listens to the ends of requests. `counters` learn what was sent and what was lost."""

    def __init__(self, send: SendSpans, counters: GatewayCounters) -> None:
        self._send = send
        self._counters = counters
        self._waiting: deque[RequestSpan] = deque()
        self._news = trio.Event()
        self._is_failing = False

    def add(self, trace: RequestTrace) -> None:
        """Queue the span of a request that has ended."""
        if len(self._waiting) >= MAX_WAITING:
            self._counters.spans_lost += 1
            return
        self._waiting.append(span_of(trace))
        self._news.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send batches until cancelled; then send the rest once."""
        task_status.started()
        batch: list[RequestSpan] = []
        try:
            while True:
                await self._news.wait()
                await trio.sleep(PAUSE_S)
                batch = self._take()
                await self._deliver(batch)
                batch = []
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + LAST_S):
                await self._deliver_rest([*batch, *self._waiting])

    def _take(self) -> list[RequestSpan]:
        batch = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
        if not self._waiting:
            self._news = trio.Event()
        return batch

    async def _deliver(self, batch: list[RequestSpan]) -> None:
        for wait_s in RETRY_S:
            if await self._send(batch):
                self._note_sent(len(batch))
                return
            if not self._is_failing:
                self._is_failing = True
                _log.warning("spans are not taken by their collector; trying again")
            await trio.sleep(wait_s)
        self._counters.spans_lost += len(batch)
        _log.warning("%d spans are lost: their collector takes none", len(batch))

    async def _deliver_rest(self, rest: list[RequestSpan]) -> None:
        if not rest:
            return
        self._counters.spans_lost += len(rest)
        if await self._send(rest):
            self._counters.spans_lost -= len(rest)
            self._note_sent(len(rest))

    def _note_sent(self, count: int) -> None:
        self._counters.spans_sent += count
        if self._is_failing:
            self._is_failing = False
            _log.warning("spans are taken again")
