"""What an engine that is not ours does for one request, whatever it speaks: tokens or text.

Owns the terms between the bridge, which has the requests of all gateways, and the two ways to run
one (`sequences.py`, `relays.py`). Must not know HTTP, frames or clocks.
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
from workers.external import Expectation
from workers.ipc import BROADCAST

Key = tuple[int, bytes, int]
"""The link, the request and its attempt."""


class Refused(Exception):
    """A request cannot be taken. Never leaves the bridge: it becomes a `Rejected`."""

    def __init__(self, reason: RejectReason, detail: str) -> None:
        super().__init__(detail)
        self.reason: RejectReason = reason


class Running:
    """One request on its way. `is_accepted`: the engine answers it; `is_dropped`: its gateway is
    gone. `digests` are those of its prompt, and `expected` what of them was thought to be held when
    it was sent.
    """

    def __init__(self, key: Key, digests: list[BlockDigest]) -> None:
        self.key = key
        self.digests = digests
        self.expected = Expectation(0, 0.0)
        self.scope = trio.CancelScope()
        self.is_accepted = False
        self.is_dropped = False
        self.last_at = 0.0

    @property
    def num_tokens(self) -> int:
        """How many tokens of the engine's cache it takes."""
        raise NotImplementedError

    async def run(self) -> None:
        """To its end. Raises `EngineRefusal`, `EngineError` or `HttpError`."""
        raise NotImplementedError

    def take(self, message: RelayChunk | RelayCredit) -> None:
        """Take what its gateway sends on. Raises `WireError` if it sends nothing on."""
        raise NotImplementedError

    def aborted(self) -> None:
        """Its scope was cancelled."""
        raise NotImplementedError

    def failed(self, detail: str) -> None:
        """The engine failed at it, and lives."""
        raise NotImplementedError


def note_answered(
    running: Running, holdings: Holdings, outbox: Outbox, cached_tokens: int | None
) -> None:
    """The engine has computed the prompt; `cached_tokens` of it, as it says, were there."""
    now = trio.current_time()
    holdings.answered(running.digests, running.expected, cached_tokens, now)
    for message in holdings.take():
        outbox.put(BROADCAST, message)


Progress = Callable[[Running, int], None]
"""Called with each part of an answer, and how many tokens it has."""


class Work(Protocol):
    """One way to run requests."""

    def begin(self, key: Key, message: Submit | Relay, on_progress: Progress) -> Running:
        """Raises `Refused` for what can never run here."""


class Holdings(Protocol):
    """What the engine has in its cache, as far as it is known."""

    def sent(self, digests: Sequence[BlockDigest], now: float) -> Expectation:
        """A prompt goes to the engine."""

    def answered(
        self,
        digests: Sequence[BlockDigest],
        expected: Expectation,
        cached_tokens: int | None,
        now: float,
    ) -> None:
        """The engine has computed these blocks; `cached_tokens` as it says, None if it does not."""

    def take(self) -> tuple[BlockEvent | BlocksSnapshot, ...]:
        """The changes since the last call."""

    def snapshot(self) -> BlocksSnapshot:
        """All that it holds."""
