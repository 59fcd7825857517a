"""The interface between the bridge and the two ways to run a request: as tokens or as text.

Owns the terms that the bridge, which has the requests of all gateways, shares with `sequences.py`
and `relays.py`. Must not know HTTP, frames or clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import trio

from protocol.ids import BlockDigest
from protocol.messages import (
    BlockEvent,
    BlocksSnapshot,
    RejectReason,
    Relay,
    RelayChunk,
    RelayCredit,
    Submit,
)
from workers.bridge.outbox import Outbox
from workers.external import CacheExpectation
from workers.ipc import BROADCAST

Key = tuple[int, bytes, int]
"""A link, a request and its attempt."""


class CannotRun(Exception):
    """A request cannot run here. It never leaves the bridge: it becomes a `Rejected`."""

    def __init__(self, reason: RejectReason, detail: str) -> None:
        super().__init__(detail)
        self.reason: RejectReason = reason


class BridgeRequest:
    """One running request. `is_accepted`: the engine answers it. `is_dropped`: its gateway is gone.
    `digests` are the blocks of its prompt; `expected` is what the cache was expected to hold when
    the request was sent. `reported_at`: when the gateway last learned that it is alive.
    """

    def __init__(self, key: Key, digests: list[BlockDigest]) -> None:
        self.key = key
        self.digests = digests
        self.expected = CacheExpectation(0, 0.0)
        self.scope = trio.CancelScope()
        self.is_accepted = False
        self.is_dropped = False
        self.last_at = 0.0
        self.reported_at = 0.0

    @property
    def num_tokens(self) -> int:
        """The number of tokens that it takes in the engine's cache."""
        raise NotImplementedError

    async def run(self) -> None:
        """Run to the end. Raises `EngineRefusal`, `EngineError` or `HttpError`."""
        raise NotImplementedError

    def take(self, message: RelayChunk | RelayCredit) -> None:
        """Take a further message of the gateway about this request. Raises `WireError` for one that
        is not due.
        """
        raise NotImplementedError

    def aborted(self) -> None:
        """Report that the request was cancelled."""
        raise NotImplementedError

    def failed(self, detail: str) -> None:
        """Report that the request failed on an engine that lives."""
        raise NotImplementedError


def note_answered(
    running: BridgeRequest, holdings: Holdings, outbox: Outbox, cached_tokens: int | None
) -> None:
    """Note that the engine has computed the prompt, and send the changes of its cache to the
    gateways.
    """
    now = trio.current_time()
    holdings.answered(running.digests, running.expected, cached_tokens, now)
    for message in holdings.take():
        outbox.put(BROADCAST, message)


Progress = Callable[[BridgeRequest, int], None]
"""(request, number of new tokens) -> None, called with each part of an answer."""


class BridgeWork(Protocol):
    """One way to run requests."""

    def begin(self, key: Key, message: Submit | Relay, on_progress: Progress) -> BridgeRequest:
        """Check a request and prepare it. Raises `CannotRun` for a request that cannot run here."""


class Holdings(Protocol):
    """The blocks in the engine's cache, as far as they are known."""

    def sent(self, digests: Sequence[BlockDigest], now: float) -> CacheExpectation:
        """Note that a prompt was sent; return the expected hits."""

    def answered(
        self,
        digests: Sequence[BlockDigest],
        expected: CacheExpectation,
        cached_tokens: int | None,
        now: float,
    ) -> None:
        """Note that the engine has computed these blocks. `cached_tokens` is None if the engine
        does not report it.
        """

    def clear(self) -> None:
        """The engine has forgotten all blocks, because it slept."""

    def take(self) -> tuple[BlockEvent | BlocksSnapshot, ...]:
        """The changes since the last call."""

    def snapshot(self) -> BlocksSnapshot:
        """A snapshot of the cache."""
