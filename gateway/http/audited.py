"""Audited endpoints: each request to one becomes an act in the audit trail.

Owns the act's fields: the sender, what the path named, and how the request ended. Must not know
what an endpoint does. A request whose sender is unknown is refused and leaves no act.
"""

from typing import final

from starlette.types import Receive, Scope, Send

from gateway.api import ApiError
from gateway.http.auth import Gatekeeper
from gateway.http.edge import Edge, Endpoint
from housekeeping.audit import Act

LOCAL: str = "a caller on this machine"
"""The sender of a request to a gateway without keys."""


@final
class Audited:
    """`endpoint`, with an audited act for each request. `act` is the act's name."""

    def __init__(self, edge: Edge, gate: Gatekeeper, act: str, endpoint: Endpoint) -> None:
        self._edge = edge
        self._gate = gate
        self._act = act
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = self._gate.identify(scope)
        who = f"key {caller.key}" if caller.key else LOCAL
        what = "/".join(scope.get("path_params", {}).values())
        host, _ = scope["client"] or ("", 0)
        result = "failed"
        try:
            await self._endpoint(scope, receive, send)
            result = "done"
        except ApiError as error:
            result = f"refused: {error.status} {error.code or error.type}"
            raise
        finally:
            self._edge.audit.note(Act(self._act, who, result, what, host))
