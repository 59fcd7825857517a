"""Requests to an engine in the same process, through frames as a supervisor would relay them.

Owns the channel in memory and the one client at its other end. Frames are encoded and joined on
both sides as on the socket. Answers are decoded after the clock has stopped, because in production
another process does that. Must not know the engine's internals.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from protocol import wire
from protocol.messages import Abort, Accepted, Finished, Grammar, Rejected, Submit, Tokens
from protocol.sampling import SamplingParams
from protocol.tokens import pack_tokens, unpack_tokens
from workers.ipc.framing import SUPERVISOR, FrameDecoder, encode_frames

MODEL: Final = "model"
LINK: Final = 1
_ENDINGS: Final = (wire.tag_of(Finished), wire.tag_of(Rejected))


class EngineStopped(RuntimeError):
    """The engine ended while the client waited."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """The prompt and parameters of one request. Requests share cached prefixes only under the same
    `salt`.
    """

    prompt: Sequence[int]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    salt: bytes = b""
    grammar: Grammar | None = None


@dataclass(slots=True)
class EngineAnswer:
    """The answer to a request. Times are in seconds since the call, `inf` until they are known;
    `times_s` are the times of its tokens' frames. `batch` is the largest number of requests in the
    engine at once; None if others came and went.
    """

    request: EngineRequest
    outputs: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    first_s: float = float("inf")
    end_s: float = float("inf")
    ending: str = ""
    batch: int | None = None
    times_s: list[float] = field(default_factory=list)


class MemoryChannel:
    """The engine's `take` and `send`, and the client's `put` and `taken`, without a socket."""

    def __init__(self) -> None:
        self._inbox: deque[bytes] = deque()
        self._decoder = FrameDecoder()
        self._filled = threading.Condition()
        self._outbox: deque[tuple[float, bytes]] = deque()
        self._ended = threading.Semaphore(0)
        self._idle = threading.Event()
        self._is_stopped = False

    def take(self, timeout_s: float | None) -> list[tuple[int, bytes]]:
        """All waiting frames. Waits for the first up to `timeout_s` (None: without limit)."""
        with self._filled:
            if not self._inbox and timeout_s is None:
                self._idle.set()
            if not self._inbox and timeout_s != 0.0:
                self._filled.wait(timeout_s)
            if not self._inbox:
                return []
            data = b"".join(self._inbox)
            self._inbox.clear()
        return self._decoder.feed(data)

    def send(self, frames: list[tuple[int, bytes]]) -> None:
        """Take the engine's frames, with the time at which it sent them."""
        if not frames:
            return
        data = encode_frames(frames)
        self._outbox.append((time.perf_counter(), data))
        for link, payload in frames:
            if link != SUPERVISOR and wire.peek_tag(payload) in _ENDINGS:
                self._ended.release()

    def put(self, frames: Sequence[tuple[int, bytes]]) -> None:
        """Pass frames to the engine as one read."""
        data = encode_frames(frames)
        with self._filled:
            self._idle.clear()
            self._inbox.append(data)
            self._filled.notify()

    def stop(self) -> None:
        """Note that the engine has ended, and wake every waiter."""
        self._is_stopped = True
        self._ended.release()
        self._idle.set()

    def wait_ending(self, timeout_s: float | None = None) -> bool:
        """Wait until one more sequence has ended. Raises `EngineStopped`."""
        ended = self._ended.acquire(timeout=timeout_s)
        if self._is_stopped:
            raise EngineStopped("the engine ended during a call")
        return ended

    def settle(self) -> None:
        """Wait until the engine has no work."""
        self._idle.wait()

    def taken(self) -> list[tuple[float, int, bytes]]:
        """Frames since the last call: time, link, payload."""
        decoder, heard = FrameDecoder(), []
        while self._outbox:
            at, data = self._outbox.popleft()
            heard += [(at, link, payload) for link, payload in decoder.feed(data)]
        return heard


class BenchClient:
    """Sends requests and collects answers; used by one thread."""

    def __init__(self, channel: MemoryChannel) -> None:
        self._channel = channel
        self._num_sent = 0
        self._sent_at = time.perf_counter()
        self.answers: dict[int, EngineAnswer] = {}

    def call(self, requests: Sequence[EngineRequest]) -> tuple[list[EngineAnswer], float]:
        """Submit all requests at once. Returns the answers in order, and the seconds until the last
        ended.
        """
        self.answers = {}
        numbers = self.submit(requests)
        # Frames are read once all have ended: reading would take time from the engine's thread.
        for _ in requests:
            self._channel.wait_ending()
        self.listen()
        answers = [self.answers[number] for number in numbers]
        while not all(answer.ending for answer in answers):
            # Some of the endings belong to an earlier call that read its frames itself.
            self._channel.wait_ending()
            self.listen()
        for answer in answers:
            answer.batch = len(answers)
        return answers, max(answer.end_s for answer in answers)

    def submit(self, requests: Sequence[EngineRequest], *, keeps_clock: bool = False) -> list[int]:
        """Submit requests without waiting; return their numbers. Their times count from the last
        call without `keeps_clock`.
        """
        if not keeps_clock:
            self._sent_at = time.perf_counter()
        frames, numbers = [], []
        for request in requests:
            self._num_sent += 1
            self.answers[self._num_sent] = EngineAnswer(request)
            numbers.append(self._num_sent)
            frames.append((LINK, wire.encode(_submit(self._num_sent, request))))
        self._channel.put(frames)
        return numbers

    def abort(self, number: int) -> None:
        """Cancel a request; its answer ends with `abort`, unless it has ended."""
        self._channel.put([(LINK, wire.encode(Abort(_id(number), 0)))])

    def wait(self, timeout_s: float) -> None:
        """Wait until a request ends, at most `timeout_s`, then read the frames."""
        self._channel.wait_ending(timeout_s)
        self.listen()

    def listen(self) -> None:
        """Read the engine's frames."""
        for at, link, payload in self._channel.taken():
            if link == LINK:
                self._read_frame(at - self._sent_at, payload)

    def _read_frame(self, at_s: float, payload: bytes) -> None:
        match message := wire.decode_from_worker(payload):
            case Accepted():
                self._answer(message.request_id).cached_tokens = message.cached_tokens
            case Tokens():
                for item in message.items:
                    answer = self._answer(item.request_id)
                    answer.first_s = min(answer.first_s, at_s)
                    answer.outputs.extend(unpack_tokens(item.ids))
                    answer.times_s.append(at_s)
            case Finished():
                answer = self._answer(message.request_id)
                answer.ending, answer.end_s = message.reason, at_s
                if message.reason == "error":
                    raise RuntimeError(f"a request failed: {message.detail}")
            case Rejected():
                raise RuntimeError(f"a request was refused: {message.detail}")
            case _:
                pass  # loads and blocks are for routers

    def _answer(self, request_id: bytes) -> EngineAnswer:
        return self.answers[int.from_bytes(request_id, "little")]


def _id(number: int) -> bytes:
    return number.to_bytes(16, "little")


def _submit(number: int, request: EngineRequest) -> Submit:
    sampling = SamplingParams(
        max_tokens=request.max_tokens, temperature=request.temperature, ignore_eos=True
    )
    prompt = pack_tokens(request.prompt)
    return Submit(
        _id(number),
        0,
        MODEL,
        prompt,
        b"",
        sampling,
        request.seed,
        salt=request.salt,
        grammar=request.grammar,
    )
