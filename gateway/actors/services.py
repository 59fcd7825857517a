"""What one request needs, gathered once.

Owns the composition that `gateway/app.py` builds and that turns and routes are handed. Must not
create anything itself: no socket, client or task starts here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from config import Config
from gateway.actors.counters import Counters
from gateway.actors.dispatcher import Dispatcher
from gateway.actors.event_feed import EventFeed
from gateway.actors.fleet_link import FleetLink
from gateway.actors.model_files import ModelFiles
from gateway.actors.orphans import Orphanage
from gateway.actors.provider_health import ProviderHealth, Retries
from gateway.actors.spending import Spending
from gateway.core.digest_cache import DigestCache
from gateway.core.suspects import Suspects

if TYPE_CHECKING:
    from gateway.upstream import Provider


class OpenTurns:
    """The turns being answered; a shutdown waits until there are none, and cuts the last ones."""

    def __init__(self) -> None:
        self._scopes: set[trio.CancelScope] = set()
        self._lot = trio.lowlevel.ParkingLot()

    @property
    def count(self) -> int:
        """Turns being answered now."""
        return len(self._scopes)

    @contextmanager
    def one(self) -> Iterator[trio.CancelScope]:
        """An open turn for as long as the block runs; its scope is cancelled by `cut`."""
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield scope
            finally:
                self._scopes.remove(scope)
                if not self._scopes:
                    self._lot.unpark_all()

    def cut(self) -> None:
        """End all open turns now, so that each can still tell its client."""
        for scope in self._scopes:
            scope.cancel()

    async def wait_none(self) -> None:
        """Return once no turn is open."""
        while self._scopes:
            await self._lot.park()


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
    draining: trio.Event = field(default_factory=trio.Event)
    draw: Callable[[int], bytes] = os.urandom
