"""GET / and /dashboard/...: the operators' page and the data behind it.

Owns the answers of these paths and the page's stream: `history` first and with each new sample,
`log` as events happen, `state` each second. A slow reader gets the newest state when it reads
again, and the part of the log that it has missed and that is still kept. Must not know where the
data comes from.
"""

from typing import Final

import trio

from gateway.api import ApiError, nothing_at
from gateway.dashboard import Dashboard, DashboardState, Overview, page
from gateway.http.edge import Edge
from gateway.http.error_responses import Header, header, json_bytes
from gateway.http.exchange import Exchange
from gateway.http.metrics import Metrics
from gateway.telemetry import Listener
from housekeeping.tick import next_tick

STATE_S: Final = 1.0
LOG_S: Final = 0.25
"""Events are collected for this time: 200 events a second are four messages."""

_HTML: Final = b"text/html; charset=utf-8"
_PAGE_HEADERS: Final[tuple[Header, ...]] = (
    (b"cache-control", b"no-cache"),
    (b"referrer-policy", b"no-referrer"),
    (b"vary", b"Accept"),
    (b"x-content-type-options", b"nosniff"),
)


class DashboardRoute:
    """The page for browsers, its data for admins."""

    def __init__(self, edge: Edge, dashboard: Dashboard, metrics: Metrics) -> None:
        self._edge = edge
        self._dashboard = dashboard
        self._metrics = metrics
        dashboard.read_clients = metrics.clients.totals
        self._page: tuple[bytes, tuple[Header, ...]] | None = None

    async def page(self, exchange: Exchange) -> None:
        """The page, for browsers. It holds no data, and asks for a key where one is needed. Other
        clients get a 404.
        """
        if "text/html" not in (exchange.header(b"accept") or ""):
            raise nothing_at(exchange.path)
        if self._page is None:
            body, policy = page()
            self._page = body, (header(b"content-security-policy", policy), *_PAGE_HEADERS)
        body, headers = self._page
        await exchange.send_body(200, body, content_type=_HTML, headers=headers)

    async def state(self, exchange: Exchange) -> None:
        """The data of the whole page, once, as JSON."""
        exchange.check_page()
        dashboard = self._dashboard
        _, samples = dashboard.samples()
        await dashboard.look()
        events = dashboard.log().events
        await exchange.send_json(DashboardState(self._overview(), tuple(samples), events))

    async def request(self, exchange: Exchange) -> None:
        """One request, explained."""
        exchange.check_page()
        name = exchange.named()
        found: object = self._dashboard.explain(name)
        if found is None and self._dashboard.siblings is not None:
            found = await self._dashboard.siblings.explain(name)
        if found is None:
            raise ApiError(404, "No such request is open, nor among the last that were.")
        await exchange.send_json(found)

    async def stream(self, exchange: Exchange) -> None:
        """The page's stream."""
        exchange.check_page()
        with self._edge.listen() as listener:
            await exchange.send_head()
            await self._send_news(listener, exchange)

    async def _send_news(self, listener: Listener, exchange: Exchange) -> None:
        dashboard = self._dashboard
        number, samples = dashboard.samples()
        log = dashboard.log()
        await dashboard.look()
        chunk = _event("history", samples) + _event("log", log) + _event("state", self._overview())
        due, seen = next_tick(trio.current_time(), STATE_S), 0
        while True:
            await exchange.send_part(chunk)
            with trio.CancelScope(deadline=due):
                await listener.wait()
                await trio.sleep(LOG_S)
            listener.take()
            seen = log.events[-1].number if log.events else seen
            log = dashboard.log(seen)
            chunk = _event("log", log) if log.events else b""
            if (now := trio.current_time()) >= due:
                due = next_tick(now, STATE_S)
                number, samples = dashboard.samples(number)
                chunk += _event("history", samples) if samples else b""
                await dashboard.look()
                chunk += _event("state", self._overview())

    def _overview(self) -> Overview:
        return self._dashboard.overview(self._metrics.clients.totals())


def _event(name: str, value: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), json_bytes(value))
