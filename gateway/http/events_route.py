"""GET /events: the events of the fleet as they happen.

Owns the format of the stream: one server-sent event per event of the fleet. `id` is its number,
`event` its kind, `data` one JSON object. The event `lost` gives a slow listener the number of
events that it has missed. Must not know what events mean.
"""

from typing import Final

import trio
from starlette.types import Receive, Scope, Send

from gateway.http.auth import Gatekeeper
from gateway.http.edge import Edge
from gateway.http.error_responses import SSE_HEADERS
from gateway.telemetry import Listener, PublishedEvent

HEARTBEAT_S: Final = 10.0
"""After this silence a comment is sent, by which each side notices that the other is gone."""


class Events:
    """The endpoint; admins only, as for `/metrics`."""

    def __init__(self, edge: Edge, gate: Gatekeeper) -> None:
        self._edge = edge
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        self._gate.check_admin(scope)
        if scope["method"] == "HEAD":
            await _send_head(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        with self._edge.listen() as listener:
            await _send_head(send)
            await _send_events(listener, send)


async def _send_head(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": list(SSE_HEADERS)})


async def _send_events(listener: Listener, send: Send) -> None:
    chunk = b": listening\n\n"
    while True:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
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
