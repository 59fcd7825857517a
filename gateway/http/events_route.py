"""GET /events: the events of the fleet as they happen.

Owns the format of the stream: one server-sent event per event of the fleet. `id` is its number,
`event` its kind, `data` one JSON object. The event `lost` gives a slow listener the number of
events that it has missed. Must not know what events mean.
"""

from typing import Final

import trio

from gateway.http.exchange import Exchange
from gateway.telemetry import Listener, PublishedEvent

HEARTBEAT_S: Final = 10.0
"""After this silence a comment is sent, by which each side notices that the other is gone."""


async def send_events(exchange: Exchange) -> None:
    """Answer an admin with the events from now on."""
    exchange.check_admin()
    if exchange.scope["method"] == "HEAD":
        await exchange.send_head()
        await exchange.send_part(b"", is_last=True)
        return
    with exchange.edge.listen() as listener:
        await exchange.send_head()
        await _send_on(exchange, listener)


async def _send_on(exchange: Exchange, listener: Listener) -> None:
    chunk = b": listening\n\n"
    while True:
        await exchange.send_part(chunk)
        with trio.move_on_after(HEARTBEAT_S) as silence:
            await listener.wait()
        if silence.cancelled_caught:
            chunk = b": alive\n\n"
            continue
        num_lost, events = listener.take()
        chunk = _lost(num_lost) + b"".join(map(_event, events))


def _event(event: PublishedEvent) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.number, event.kind.encode(), event.json)


def _lost(count: int) -> bytes:
    return b'event: lost\ndata: {"count":%d}\n\n' % count if count else b""
