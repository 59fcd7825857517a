"""The blocks of an engine that publishes KV events.

Owns the subscription and its replays: their requests and their time limit. Must not know the format
of events, nor which of them are missing.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Final, final

import trio

from config import KvEventsConfig, WorkerConfig
from protocol.ids import BlockDigest
from protocol.messages import BlockEvent, BlocksSnapshot, EngineFacts
from protocol.transport import Subscriber
from workers.bridge.outbox import Outbox
from workers.external import CacheExpectation, CopyReports, Heard, HeldBlocks, VllmFeed, model_roots
from workers.ipc import BROADCAST

REPLAY_S: Final = 5.0
_PROMPTS_UNHEARD: Final = 16
"""After this many answered prompts without an event, the engine counts as not publishing."""


@final
class KvFeed:
    """Follows the events of one engine; an implementation of `Holdings`."""

    def __init__(
        self, config: WorkerConfig, events: KvEventsConfig, facts: EngineFacts, outbox: Outbox
    ) -> None:
        """Raises `ConfigError` for addresses that cannot be dialled."""
        held = HeldBlocks(
            model_roots(config.serves),
            block_size=facts.block_size,
            max_blocks=facts.kv_tokens,
            copies=CopyReports.SINGLE if config.engine == "sglang" else CopyReports.COUNTED,
        )
        self._feed = VllmFeed(held, can_replay=events.replay is not None)
        self._outbox = outbox
        self._address = events.url
        self._replay_until = math.inf
        self._asked = trio.Event()
        self._num_heard = 0
        self._num_unheard = 0
        self._last_fault = ""
        self._subscriber = Subscriber(
            events.url,
            events.topic.encode(),
            events.replay,
            on_message=self._published,
            on_replay=self._replayed,
            on_connected=self._connected,
        )

    async def run(self) -> None:
        """Follow the events until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._subscriber.run)
            while True:
                await self._asked.wait()
                self._asked = trio.Event()
                await trio.sleep_until(self._replay_until)
                if trio.current_time() >= self._replay_until:
                    self._replay_until = math.inf
                    self._take(self._feed.replay_ended())

    def sent(self, digests: Sequence[BlockDigest], now: float) -> CacheExpectation:  # noqa: ARG002
        """Expect nothing: the events report the blocks."""
        return CacheExpectation(0, now)

    def answered(
        self,
        digests: Sequence[BlockDigest],
        expected: CacheExpectation,  # noqa: ARG002
        cached_tokens: int | None,  # noqa: ARG002
        now: float,  # noqa: ARG002
    ) -> None:
        """Log once that the engine publishes nothing, if its answers show that."""
        if self._num_heard or not digests:
            return
        self._num_unheard += 1
        if self._num_unheard == _PROMPTS_UNHEARD:
            print(
                f"no KV event came from {self._address} for {_PROMPTS_UNHEARD} prompts: does the "
                "engine publish there? (vLLM, SGLang: --kv-events-config)",
                file=sys.stderr,
            )

    def clear(self) -> None:
        """Do nothing: the engine publishes that its blocks are gone."""

    def take(self) -> tuple[BlockEvent | BlocksSnapshot, ...]:
        """No changes wait: `run` sends them as they arrive."""
        return ()

    def snapshot(self) -> BlocksSnapshot:
        """A snapshot of all that is held."""
        return self._feed.snapshot()

    def _connected(self) -> None:
        self._take(self._feed.restarted())

    def _published(self, frames: list[bytes]) -> None:
        self._num_heard += 1
        self._take(self._feed.published(frames))

    def _replayed(self, frames: list[bytes]) -> None:
        self._take(self._feed.replayed(frames))

    def _take(self, heard: Heard) -> None:
        for message in heard.messages:
            self._outbox.put(BROADCAST, message)
        if heard.replay_request is not None:
            self._subscriber.ask_replay(heard.replay_request)
            self._replay_until = trio.current_time() + REPLAY_S
            self._asked.set()
        if self._feed.last_fault != self._last_fault:
            self._last_fault = self._feed.last_fault
            print(self._last_fault, file=sys.stderr)
