"""One chat turn as HTTP sees it: what both ways of answering share.

Owns the request's identity, its facts for headers and metrics, and the watch for the client.
Must not know chunks or bodies.
"""

import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import trio
from starlette.types import Receive

from gateway.api import CHAT, AnswerHead, ChatRequest, Dialect, Started, Usage
from gateway.http.edge import Edge
from gateway.http.metrics import Metrics
from gateway.http.reply import Header, header
from gateway.turn import Caller

CLIENT_LEFT: Final = 499
"""The status of a turn whose client left before its end, for metrics only."""

_header: Final = functools.lru_cache(maxsize=1024)(header)
"""For what is said of many turns: nearly every route has costs of its own."""


class RequestContext(msgspec.Struct, eq=False):
    """A request being answered. `started_at` is on trio's clock, as is `first_at`, when the first
    content came. `status` is what the turn ended in, even when a head had said 200. `dialect` is
    the API in which it is told.
    """

    edge: Edge
    metrics: Metrics
    request: ChatRequest
    caller: Caller
    dialect: Dialect
    head: AnswerHead
    started_at: float
    started: Started | None = None
    usage: Usage | None = None
    first_at: float | None = None
    status: int = CLIENT_LEFT

    def note_content(self) -> None:
        """The first content of the answer is here."""
        if self.first_at is None:
            self.first_at = self.edge.now()

    def headers(self) -> tuple[Header, ...]:
        """The `x-herma-*` headers, as far as the facts are known, and those of a provider, where no
        worker is named.
        """
        started = self.started
        if started is None:
            return ()
        ours = (
            _header(b"x-herma-served-by", started.served_by),
            (b"x-herma-cached-tokens", b"%d" % started.cached_tokens),
            header(b"x-herma-route", started.route),
        )
        if started.worker:
            return _header(b"x-herma-worker", started.worker), *ours
        return (*ours, *(header(name.encode(), value) for name, value in started.headers))

    def _model(self) -> str:
        """The name to count it under; a client's own words are none."""
        if self.started is not None and self.started.served_by == "worker":
            return self.started.model
        return self.edge.public_name(self.request.model) or "unknown"

    def observe(self) -> None:
        """Count the turn, which is over."""
        self.metrics.observe_turn(
            model=self._model(),
            status=self.status,
            served_by=self.started.served_by if self.started else "none",
            usage=self.usage,
            first_token_s=None if self.first_at is None else self.first_at - self.started_at,
            duration_s=self.edge.now() - self.started_at,
        )


def open_turn(
    edge: Edge, metrics: Metrics, request: ChatRequest, caller: Caller, dialect: Dialect = CHAT
) -> RequestContext:
    """A turn that starts now."""
    head = AnswerHead(
        dialect.id_prefix + edge.draw(12).hex(),
        int(edge.unix_time()),
        request.model,
        request.include_usage,
    )
    return RequestContext(edge, metrics, request, caller, dialect, head, edge.now())


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[trio.Nursery]:
    """Run the block, in a nursery for its tasks, only as long as the client stays: its leaving
    cancels the block and the nursery at once.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_cancel_when_gone, receive, nursery.cancel_scope)
        yield nursery
        nursery.cancel_scope.cancel()


async def _cancel_when_gone(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
