"""An answer before the whole question was heard.

Owns what hypercorn does not do with the rest of a request body once the app has answered. Must not
know routes.

Closing a connection with unread bytes makes the kernel reset it, and the client may lose the
answer (a 413, say). There is a second reason: hypercorn queues ten body messages per request, and
an app that returned without reading them leaves it waiting for room forever.
"""

import trio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.server.limits import Deadlines

_LINGER_S = Deadlines().linger_s


class LingeringClose:
    """Pure ASGI: sends the whole answer, then reads the rest of the body away for a while."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = _Request(receive)

        async def send_politely(message: Message) -> None:
            ends = message["type"] == "http.response.body" and not message.get("more_body", False)
            if not ends or request.over:
                await send(message)
                return
            await send({**message, "more_body": True})
            with trio.move_on_after(_LINGER_S):
                await request.discard()
            await _send_end(request, send)

        await self._app(scope, request.receive, send_politely)


class _Request:
    """The receiving side, which knows whether the body has come to its end."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.over = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self.over = True
        return message

    async def discard(self) -> None:
        while not self.over:
            await self.receive()

    async def discard_forever(self) -> None:
        while True:
            await self.receive()


async def _send_end(request: _Request, send: Send) -> None:
    async with trio.open_nursery() as nursery:
        if not request.over:
            nursery.start_soon(request.discard_forever)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        nursery.cancel_scope.cancel()
