"""Frames on their way to the supervisor.

Owns their order and their joining: tokens that came from the engine together go out as one frame
for each gateway, as our own engine sends them. Must not know HTTP or what a sequence is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

import trio

from protocol import wire
from protocol.messages import FromWorker, TokenItem, Tokens
from workers.ipc import SUPERVISOR, Drained, EngineReady, encode_control
from workers.loop import Channel, EngineStatus

GATHER_S: Final = 0.003
"""What comes so soon after a frame goes out with the next: the streams of one step arrive one by
one. A lone stream waits only if its tokens come faster than that.
"""


@final
class Outbox:
    """`put` what happens; `run` sends it, at once after a pause.

    Sending blocks while the supervisor does not read: then the engine's streams wait as well.
    """

    def __init__(self, channel: Channel, status: EngineStatus) -> None:
        self._channel = channel
        self._status = status
        self._messages: dict[int, list[FromWorker | TokenItem]] = {}
        self._wakeup = trio.Event()

    def put(self, link: int, message: FromWorker | TokenItem) -> None:
        """Queue it behind what is queued for the link."""
        self._messages.setdefault(link, []).append(message)
        self._wakeup.set()

    def send_control(self, message: Drained | EngineReady) -> None:
        """Send a control message, behind all that is queued."""
        self.flush()
        self._channel.send([(SUPERVISOR, encode_control(message))])

    def flush(self) -> None:
        """Send what is queued."""
        if not self._messages:
            return
        queued, self._messages = self._messages, {}
        self._status.step += 1
        frames: list[tuple[int, bytes]] = []
        for link, messages in queued.items():
            frames += [(link, wire.encode(one)) for one in _joined(messages, self._status.step)]
        self._channel.send(frames)

    async def run(self) -> None:
        """Send, until cancelled."""
        while True:
            await self._wakeup.wait()
            self._wakeup = trio.Event()
            self.flush()
            await trio.sleep(GATHER_S)


def _joined(messages: Sequence[FromWorker | TokenItem], step: int) -> list[FromWorker]:
    """Neighbouring items become one message."""
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
