"""Turns the frames that vLLM publishes into our block events.

Owns the steps: frames, order, batches, held blocks; and the counts of faults. Must not know
sockets: their owner passes frames in, sends the replay requests, and reports the end of each
replay.

    PUB     topic, number (8 bytes, big-endian), payload
    replay  topic, number, payload (vLLM 0.26), or without the topic; the number -1 ends it. The
            request is the number to start from.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, final

from protocol.errors import WireError
from protocol.messages import BlockEvent, BlocksSnapshot
from workers.external.event_order import Apply, AskReplay, EventOrder, Forget, Step
from workers.external.held_blocks import HeldBlocks
from workers.external.vllm_events import decode_batch

SEQ_BYTES: Final = 8
REPLAY_END: Final = b"\xff" * SEQ_BYTES

Oddity = Literal[
    "bad_frames", "bad_batch", "forgotten", "other_rank", "unknown_fields", "unknown_kinds"
]


@dataclass(frozen=True, slots=True)
class Heard:
    """The messages for the gateways, and a request for a replay if one is due."""

    messages: tuple[BlockEvent | BlocksSnapshot, ...] = ()
    replay_request: bytes | None = None


@final
class VllmFeed:
    """One publisher: an engine, or one data-parallel rank of it."""

    def __init__(self, held: HeldBlocks, *, can_replay: bool, rank: int = 0) -> None:
        self._held = held
        self._order = EventOrder(can_replay=can_replay)
        self._rank = rank
        self.oddities: Counter[Oddity] = Counter()
        self.last_fault = ""

    def published(self, frames: Sequence[bytes]) -> Heard:
        """Take a message of the PUB socket."""
        if len(frames) != 3 or len(frames[1]) != SEQ_BYTES:
            return self._bad_frames(frames)
        return self._take(self._order.live(int.from_bytes(frames[1], "big"), frames[2]))

    def replayed(self, frames: Sequence[bytes]) -> Heard:
        """Take a message of the replay socket. REQ and DEALER sockets differ by an empty first
        frame, and versions of vLLM by the topic.
        """
        if not 2 <= len(frames) <= 4 or len(frames[-2]) != SEQ_BYTES:
            return self._bad_frames(frames)
        if frames[-2] == REPLAY_END:
            return self.replay_ended()
        return self._take(self._order.replayed(int.from_bytes(frames[-2], "big"), frames[-1]))

    def replay_ended(self) -> Heard:
        """The replay has ended, or did not arrive in time."""
        return self._take(self._order.replay_ended())

    def restarted(self) -> Heard:
        """The engine has restarted, or the connection to it was lost and made again."""
        return self._take(self._order.restarted())

    def snapshot(self) -> BlocksSnapshot:
        """A snapshot of all that is held."""
        return self._held.snapshot()

    def _bad_frames(self, frames: Sequence[bytes]) -> Heard:
        """Count a message without a readable number: if a batch was lost with it, the next number
        shows it.
        """
        self.oddities["bad_frames"] += 1
        self.last_fault = f"KV events: frames of {[len(frame) for frame in frames]} bytes"
        return Heard()

    def _take(self, steps: tuple[Step, ...]) -> Heard:
        replay_request = None
        for step in steps:
            match step:
                case Apply(payload):
                    self._apply(payload)
                case Forget():
                    self.oddities["forgotten"] += 1
                    self._held.clear()
                case AskReplay(start):
                    replay_request = start.to_bytes(SEQ_BYTES, "big")
        return Heard(self._held.take(), replay_request)

    def _apply(self, payload: bytes) -> None:
        """Apply a batch. A batch that cannot be decoded may have removed any block, and a replay
        would bring the same bytes; so all blocks are forgotten.
        """
        try:
            batch = decode_batch(payload)
        except WireError as error:
            self.oddities["bad_batch"] += 1
            self.last_fault = str(error)
            self._held.clear()
            return
        self.oddities["unknown_fields"] += batch.unknown_fields
        self.oddities["unknown_kinds"] += batch.unknown_kinds
        if batch.rank not in {None, self._rank}:
            self.oddities["other_rank"] += 1
            return
        for event in batch.events:
            self._held.apply(event)
