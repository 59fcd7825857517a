"""What the routes need of the gateway behind them.

Owns the seam between HTTP and the actors; tests script it. Must not know ASGI or actors.
"""

import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from config import GatewayConfig, KeyConfig
from gateway.actors.caller import Caller
from gateway.core.chat_request import ChatRequest
from gateway.core.events import TurnEvent

Emit = Callable[[TurnEvent], None]
RunTurn = Callable[[ChatRequest, Caller, Emit], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A served model as its callers see it. `context_length` is in tokens, None while no worker
    has reported it; `state` is one word.
    """

    name: str
    aliases: tuple[str, ...]
    context_length: int | None
    state: str
    ready: bool


@dataclass(frozen=True, slots=True)
class FleetGauges:
    """The fleet at one moment. `queued` and `on_fallback` (1 or 0) are by model, `workers` by
    state; `counters` have only risen since the start.
    """

    queued: Mapping[str, int] = field(default_factory=dict)
    on_fallback: Mapping[str, int] = field(default_factory=dict)
    workers: Mapping[str, int] = field(default_factory=dict)
    open_turns: int = 0
    counters: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Edge:
    """The gateway as HTTP sees it. `draw` gives random bytes, `unix_time` seconds."""

    config: GatewayConfig
    keys: tuple[KeyConfig, ...]
    version: str
    run_turn: RunTurn
    models: Callable[[], tuple[ModelFacts, ...]]
    gauges: Callable[[], FleetGauges]
    draw: Callable[[int], bytes] = os.urandom
    unix_time: Callable[[], float] = time.time

    def public_name(self, name: str) -> str | None:
        """The model that answers to `name` (its own or an alias), if any."""
        for model in self.models():
            if name == model.name or name in model.aliases:
                return model.name
        return None
