"""Audited handlers: each request to one becomes an act in the audit trail.

Owns the act's fields: the sender, what the path named, and how the request ended. Must not know
what a handler does. A request whose sender is unknown is refused and leaves no act.
"""

from typing import final

from gateway.api import ApiError
from gateway.http.exchange import Exchange, Handler
from housekeeping.audit import Act

LOCAL: str = "a caller on this machine"
"""The sender of a request to a gateway without keys."""


@final
class Audited:
    """`handler`, with an audited act for each request. `act` is the act's name."""

    def __init__(self, act: str, handler: Handler) -> None:
        self._act = act
        self._handler = handler

    async def __call__(self, exchange: Exchange) -> None:
        caller = exchange.identify()
        who = f"key {caller.key}" if caller.key else LOCAL
        what = "/".join(exchange.scope["path_params"].values())
        result = "failed"
        try:
            await self._handler(exchange)
            result = "done"
        except ApiError as error:
            result = f"refused: {error.status} {error.code or error.type}"
            raise
        finally:
            exchange.edge.audit.note(Act(self._act, who, result, what, exchange.host))
