"""What one request needs, gathered once.

Owns the composition that `gateway/app.py` builds and that turns and routes are handed. Must not
create anything itself: no socket, client or task starts here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from config import Config
from gateway.actors.counters import Counters
from gateway.actors.dispatcher import Dispatcher
from gateway.actors.event_feed import EventFeed
from gateway.actors.first_tokens import FirstTokens
from gateway.actors.fleet_link import FleetLink
from gateway.actors.model_files import ModelFiles
from gateway.actors.open_turns import OpenTurns
from gateway.actors.orphans import Orphanage
from gateway.actors.provider_health import ProviderHealth, Retries
from gateway.actors.spending import Spending
from gateway.core.digest_cache import DigestCache
from gateway.core.suspects import Suspects

if TYPE_CHECKING:
    from gateway.upstream import Provider


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of a running gateway. `draw` gives random bytes; `draining` is set once it stops:
    new requests are then refused with 503.
    """

    config: Config
    dispatcher: Dispatcher
    link: FleetLink
    files: ModelFiles
    providers: Mapping[str, Provider]
    counters: Counters
    spending: Spending
    feed: EventFeed
    health: ProviderHealth
    retries: Retries
    orphans: Orphanage
    digests: DigestCache = field(default_factory=DigestCache)
    suspects: Suspects = field(default_factory=Suspects)
    open_turns: OpenTurns = field(default_factory=OpenTurns)
    first_tokens: FirstTokens = field(default_factory=FirstTokens)
    draining: trio.Event = field(default_factory=trio.Event)
    draw: Callable[[int], bytes] = os.urandom
