"""What vLLM's sockets do with KV events: batches by PUB, and again by ROUTER for those who ask."""

from collections import deque
from typing import Any

import trio
import zmq

from tests.fakes.vllm_engine import frames, replay_frames

KEPT = 100
_END = -1


class KvPublisher:
    """Batches are numbered from 0; `lost` ones are kept for replays and not published. Replays have
    the topic before the number as vLLM 0.26 sends it, or none as SGLang does.
    """

    def __init__(self, events: str, replay: str, *, has_topic: bool) -> None:
        self._topic = [b""] if has_topic else []
        self._context: zmq.Context[Any] = zmq.Context()
        self._events = self._context.socket(zmq.XPUB)
        self._replay = self._context.socket(zmq.ROUTER)
        for socket, address in ((self._events, events), (self._replay, replay)):
            socket.set(zmq.LINGER, 0)
            socket.bind(address)
        self._next = 0
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=KEPT)
        self.num_replays = 0

    def publish(self, payload: bytes, *, lost: bool = False) -> None:
        self._kept.append((self._next, payload))
        if not lost:
            self._events.send_multipart(frames(self._next, payload))
        self._next += 1

    async def subscribed(self) -> None:
        """Return when somebody has subscribed."""
        while not self._events.poll(0):  # noqa: ASYNC110 - another library's socket
            await trio.sleep(0.01)
        self._events.recv()

    async def run(self) -> None:
        """Answer replays until cancelled."""
        while True:
            if not self._replay.poll(0):
                await trio.sleep(0.01)
                continue
            who, empty, start = self._replay.recv_multipart()
            self.num_replays += 1
            first = int.from_bytes(start, "big")
            for number, payload in self._kept:
                if number >= first:
                    self._replay.send_multipart(
                        [who, empty, *self._topic, *replay_frames(number, payload)]
                    )
            self._replay.send_multipart([who, empty, *self._topic, *replay_frames(_END, b"")])

    def close(self) -> None:
        self._events.close()
        self._replay.close()
        self._context.term()
