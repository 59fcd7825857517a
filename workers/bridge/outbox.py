"""Frames on their way to the supervisor.

Owns their order and their joining: tokens that arrived together leave as one frame for each
gateway, as from our own engine. Must not know HTTP or what a sequence is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, final

import outcome
import trio

from protocol import wire
from protocol.messages import FromWorker, TokenItem, Tokens
from workers.ipc import SUPERVISOR, Drained, EngineReady, Slept, Woken, encode_control
from workers.loop import Channel, EngineStatus

PAUSE_S: Final = 0.004
MANY_STREAMS: Final = 8
"""From this many streams on, the loop pauses between two looks at their sockets: tokens that
arrived meanwhile are read in one turn and leave in one frame. At 64 streams of 50 tokens/s that
saves a quarter of the CPU here, and a tenth of the gateway's
(docs/decisions/0021-external-engines.md).
"""


@final
class Outbox(trio.abc.Instrument):
    """Queues messages with `put`; `run` sends them at the end of each turn of trio's loop.

    Sending blocks while the supervisor does not read; then the engine's streams wait as well.
    `is_crowded` is set while there are many streams.
    """

    def __init__(self, channel: Channel, status: EngineStatus) -> None:
        self._channel = channel
        self._status = status
        self._messages: dict[int, list[FromWorker | TokenItem]] = {}
        self._failure: outcome.Error | None = None
        self._has_failed = trio.Event()
        self.is_crowded = False

    def put(self, link: int, message: FromWorker | TokenItem) -> None:
        """Queue a message for the link."""
        self._messages.setdefault(link, []).append(message)

    def send_control(self, message: Drained | EngineReady | Slept | Woken) -> None:
        """Send a control message behind all queued messages."""
        self.flush()
        self._channel.send([(SUPERVISOR, encode_control(message))])

    def flush(self) -> None:
        """Send the queued messages."""
        if not self._messages:
            return
        queued, self._messages = self._messages, {}
        self._status.step += 1
        frames: list[tuple[int, bytes]] = []
        for link, messages in queued.items():
            frames += [(link, wire.encode(one)) for one in _joined(messages, self._status.step)]
        self._channel.send(frames)

    async def run(self) -> None:
        """Send queued messages until cancelled. Raises the errors of sending."""
        trio.lowlevel.add_instrument(self)
        try:
            await self._has_failed.wait()
            assert self._failure is not None
            self._failure.unwrap()
        finally:
            trio.lowlevel.remove_instrument(self)

    def before_io_wait(self, timeout: float) -> None:
        """Called by trio when all tasks of a turn of the loop have run."""
        if self._messages and self._failure is None:
            # trio would log an instrument's exception, and never call the instrument again.
            result = outcome.capture(self.flush)
            if isinstance(result, outcome.Error):
                self._failure = result
                trio.lowlevel.current_trio_token().run_sync_soon(self._has_failed.set)
        if self.is_crowded and timeout > 0:
            time.sleep(PAUSE_S)


def _joined(messages: Sequence[FromWorker | TokenItem], step: int) -> list[FromWorker]:
    """The messages, with neighbouring items joined into one message."""
    joined: list[FromWorker] = []
    items: list[TokenItem] = []
    for message in messages:
        if isinstance(message, TokenItem):
            items.append(message)
            continue
        if items:
            joined.append(Tokens(step, tuple(items)))
            items = []
        joined.append(message)
    if items:
        joined.append(Tokens(step, tuple(items)))
    return joined
