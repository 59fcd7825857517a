"""GET /debug/route: where a chat request would go now, and why.

Owns the page for operators: the body is that of a chat request, nothing is generated, nobody's
place changes. Must not know how workers are weighed.
"""

from starlette.types import Receive, Scope, Send

from gateway.api import parse_chat_request
from gateway.http.auth import Gatekeeper
from gateway.http.body import read_body
from gateway.http.edge import Edge
from gateway.http.reply import send_json


class DebugRoute:
    """The endpoint; admins only, as for `/metrics`."""

    def __init__(self, edge: Edge, gate: Gatekeeper) -> None:
        self._edge = edge
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._gate.check_admin(scope)
        caller = self._gate.identify(scope)
        body = await read_body(receive, scope["headers"], self._edge.config.max_body_bytes)
        request = parse_chat_request(body, self._edge.by_alias)
        await send_json(send, await self._edge.preview(request, caller))
