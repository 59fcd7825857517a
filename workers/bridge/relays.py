"""Text-level work: a gateway's HTTP request goes to the engine unchanged, and the response comes
back.

Owns one exchange: how far each side may be ahead, the limits of messages, and its end. Never reads
the bytes. Must not know APIs, other requests or sockets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from functools import partial
from typing import Final, final

import trio

from config import TEXT_ENGINE
from protocol.errors import KeptConnectionClosed, WireError
from protocol.ids import ID_BYTES, BlockDigest
from protocol.messages import (
    RELAY_CHUNK_BYTES,
    RELAY_WINDOW_BYTES,
    Relay,
    RelayChunk,
    RelayCredit,
    RelayData,
    RelayEnd,
    RelayError,
    RelayHead,
    RelayTaken,
    Submit,
)
from protocol.paths import is_plain_path
from protocol.transport import HttpResponse
from workers.bridge.engine_client import EngineClient
from workers.bridge.outbox import Outbox
from workers.bridge.work import BridgeRequest, CannotRun, Holdings, Key, Progress, note_answered

_NOT_RELAYED: Final = frozenset(
    {b"connection", b"content-encoding", b"content-length", b"keep-alive", b"transfer-encoding"}
)
"""Headers about the connection to the engine, or about bytes that our client has decompressed."""
_ROOT: Final = "/v1/"
_REFUSED: Final = 400
_MAX_NAME_BYTES: Final = 1024
_MAX_VALUE_BYTES: Final = 2**14
_MAX_HEADERS: Final = 128


@final
class Relayed(BridgeRequest):
    """One relayed exchange."""

    def __init__(self, key: Key, relay: Relay, on_progress: Progress, work: Relays) -> None:
        digests = relay.digests
        starts = range(0, len(digests), ID_BYTES)
        super().__init__(key, [BlockDigest(digests[at : at + ID_BYTES]) for at in starts])
        self._relay = relay
        self._on_progress = on_progress
        self._work = work
        self._upload = _Upload(self)
        self._news = trio.Event()
        self._num_sent = 0
        self._num_credit = 0
        self._status = 0

    @property
    def num_tokens(self) -> int:
        """Roughly the tokens of the prompt."""
        return len(self.digests) * self._work.block_size

    async def run(self) -> None:
        try:
            await self._exchange()
        except KeptConnectionClosed:
            if self._upload.is_used:
                raise
            # The engine closed an idle connection and computed nothing: try again on another one.
            await self._exchange()
        if self._status < 400:
            note_answered(self, self._work.holdings, self._work.outbox, None)
        self._end(None)

    def take(self, message: RelayChunk | RelayCredit) -> None:
        if isinstance(message, RelayCredit):
            self._num_credit = min(max(self._num_credit, message.num_taken), self._num_sent)
        else:
            self._upload.add(message)
        self._news.set()

    def aborted(self) -> None:
        self._end("aborted")

    def failed(self, detail: str) -> None:
        self._end("broken", detail)

    async def until_news(self) -> None:
        """Return when another message of the gateway has arrived."""
        self._news = trio.Event()
        await self._news.wait()

    def took(self, num_bytes: int) -> None:
        """Tell the gateway that the engine has taken `num_bytes` of the request so far."""
        link, request_id, attempt = self.key
        self._work.outbox.put(link, RelayTaken(request_id, attempt, num_bytes))

    async def _exchange(self) -> None:
        relay = self._relay
        is_whole = len(relay.data) == relay.num_bytes
        # The gateway learns that the request arrived here, and may send the rest.
        self.took(len(relay.data))
        async with self._work.client.relay(
            relay.target,
            [(name.encode("latin-1"), value.encode("latin-1")) for name, value in relay.headers],
            relay.data if is_whole else self._upload,
            relay.num_bytes,
        ) as response:
            self._begin(response)
            if response.status >= _REFUSED:
                on_data = partial(self._on_progress, self, 1)
                await self._pass_on(await self._work.client.refusal(response, on_data))
                return
            async for data in response.body:
                self._on_progress(self, 1)
                await self._pass_on(data)

    def _begin(self, response: HttpResponse) -> None:
        self.is_accepted = True
        self._status = response.status
        link, request_id, attempt = self.key
        kept = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in response.headers
            if name not in _NOT_RELAYED
            and len(name) <= _MAX_NAME_BYTES
            and len(value) <= _MAX_VALUE_BYTES
        ]
        headers = tuple(kept[:_MAX_HEADERS])
        self._work.outbox.put(link, RelayHead(request_id, attempt, response.status, headers))

    async def _pass_on(self, data: bytes) -> None:
        link, request_id, attempt = self.key
        for start in range(0, len(data), RELAY_CHUNK_BYTES):
            piece = data[start : start + RELAY_CHUNK_BYTES]
            while self._num_sent + len(piece) > self._num_credit + RELAY_WINDOW_BYTES:
                await self.until_news()
            self._work.outbox.put(link, RelayData(request_id, attempt, self._num_sent, piece))
            self._num_sent += len(piece)

    def _end(self, error: RelayError | None, detail: str = "") -> None:
        link, request_id, attempt = self.key
        end = RelayEnd(request_id, attempt, self._num_sent, error, detail)
        self._work.outbox.put(link, end)

    @property
    def first(self) -> bytes:
        """The first part of the request's body."""
        return self._relay.data

    @property
    def num_bytes(self) -> int:
        """The length of the request's body."""
        return self._relay.num_bytes


@final
class _Upload(AsyncIterator[bytes]):
    """A request's body in pieces. The engine has taken a piece when it asks for the next one."""

    def __init__(self, relayed: Relayed) -> None:
        self._relayed = relayed
        self._pieces: deque[bytes] = deque()
        self._num_came = 0
        self._num_given = 0

    @property
    def is_used(self) -> bool:
        """Whether the engine has taken a part, so that the body cannot be sent again."""
        return self._num_given > 0

    def add(self, chunk: RelayChunk) -> None:
        """Append a piece. Raises `WireError` for bytes that are not due."""
        relayed = self._relayed
        came = self._num_came or len(relayed.first)
        ahead = chunk.offset + len(chunk.data) - max(self._num_given, len(relayed.first))
        is_over = chunk.offset + len(chunk.data) > relayed.num_bytes
        if chunk.offset != came or is_over or ahead > RELAY_WINDOW_BYTES:
            raise WireError(f"{len(chunk.data)} bytes at {chunk.offset} came where {came} was due")
        self._num_came = came + len(chunk.data)
        self._pieces.append(chunk.data)

    async def __anext__(self) -> bytes:
        relayed = self._relayed
        if self._num_given == 0:
            self._num_given = len(relayed.first)
            if relayed.first:
                return relayed.first
        relayed.took(self._num_given)
        if self._num_given == relayed.num_bytes:
            raise StopAsyncIteration
        while not self._pieces:
            await relayed.until_news()
        piece = self._pieces.popleft()
        self._num_given += len(piece)
        return piece


@final
class Relays:
    """Accepts requests for one text-level engine."""

    def __init__(
        self, client: EngineClient, outbox: Outbox, holdings: Holdings, block_size: int
    ) -> None:
        self.client = client
        self.outbox = outbox
        self.holdings = holdings
        self.block_size = block_size

    def begin(self, key: Key, message: Submit | Relay, on_progress: Progress) -> Relayed:
        if isinstance(message, Submit):
            raise CannotRun("invalid", f"the {TEXT_ENGINE} engine takes text, not tokens")
        if len(message.data) > message.num_bytes or len(message.digests) % ID_BYTES:
            raise CannotRun("invalid", "the body is longer than it says, or a digest is cut")
        if not (message.target.startswith(_ROOT) and is_plain_path(message.target)):
            raise CannotRun("invalid", f"{message.target!r} is no plain path below {_ROOT}")
        return Relayed(key, message, on_progress, self)
