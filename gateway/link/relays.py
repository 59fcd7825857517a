"""HTTP exchanges with text-level engines, whose bytes travel over the links of their workers.

Owns one exchange: its messages, and its flow control (how many bytes each side may send ahead).
`RelayClient` has the interface of `HttpClient`, so that such an engine is asked in the same way as
a provider. Must not know what bodies mean, nor which worker is asked.
"""

import re
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol, final

import trio

from gateway.link.attempts import Attempt
from gateway.link.silence import Silence
from gateway.routing import Lease
from protocol.errors import ReadError, ReadTimeout, WireError
from protocol.ids import BlockDigest, RequestId
from protocol.messages import (
    RELAY_CHUNK_BYTES,
    RELAY_WINDOW_BYTES,
    Accepted,
    Finished,
    FinishReason,
    Rejected,
    Relay,
    RelayChunk,
    RelayCredit,
    RelayData,
    RelayEnd,
    RelayHead,
    RelayTaken,
    TokenItem,
)
from protocol.transport import Body, HttpResponse

UPLOAD_ROOM_BYTES: Final = 2**19
"""An upload pauses while more bytes than this wait on its worker's link, which streams share."""
LOOK_AGAIN_S: Final = 0.002
_REPORT: Final = re.compile(rb"prompt_progress|queue[ _-]?pos", re.IGNORECASE)
"""What llama-server (`return_progress`) and other engines write into a stream while a prompt waits
or is computed. A bare comment is no sign of life of the sequence.
"""

RelayMessage = RelayHead | RelayData | RelayTaken | RelayEnd


@final
class RelayAttempt(Attempt):
    """One exchange on one worker. Unlike other attempts it rings `ended` at every message.

    The engine has taken `num_taken` bytes of the request; None until its worker has answered. Of
    the response, `num_came` bytes have arrived and `num_read` were read, of which the worker knows
    `num_granted`: it may send `RELAY_WINDOW_BYTES` beyond those. Bytes are no answer yet: the owner
    calls `begin` when the answer has begun, and watches the silence itself from then on.
    """

    has_steps = False

    __slots__ = (
        "has_begun",
        "headers",
        "num_came",
        "num_granted",
        "num_read",
        "num_taken",
        "pieces",
        "status",
    )

    def __init__(
        self, lease: Lease, request_id: RequestId, number: int, silence: Silence | None
    ) -> None:
        super().__init__(
            lease,
            request_id,
            number,
            expected=0,
            on_tokens=_no_tokens,
            on_accepted=_no_acceptance,
            silence=silence,
        )
        self.has_begun = False
        self.status = 0
        self.headers: tuple[tuple[str, str], ...] = ()
        self.pieces: deque[bytes] = deque()
        self.num_taken: int | None = None
        self.num_came = 0
        self.num_read = 0
        self.num_granted = 0

    def take(self, message: RelayMessage) -> str | None:
        """Take a message of the worker. Returns the worker's mistake if bytes are missing or exceed
        its credit.
        """
        wrong = None
        match message:
            case RelayTaken(num_taken=num_taken):
                self.num_taken = num_taken
                self.num_signs += 1
            case RelayHead():
                self.status, self.headers = message.status, message.headers
            case RelayData():
                wrong = self._take_data(message)
            case RelayEnd(error=None, num_bytes=num_bytes) if num_bytes != self.num_came:
                wrong = f"{num_bytes} bytes were sent and {self.num_came} came"
            case RelayEnd():
                self.end(_as_finished(message))
        self.ended.ring()
        return wrong

    def _take_data(self, message: RelayData) -> str | None:
        if message.offset != self.num_came or not self.status:
            return f"bytes at {message.offset} came where {self.num_came} was due"
        self.num_came += len(message.data)
        if self.num_came > self.num_granted + RELAY_WINDOW_BYTES:
            return f"{self.num_came} bytes came where {self.num_granted} had been taken"
        self.pieces.append(message.data)
        if self.has_begun:
            self.expected += len(message.data)
        elif self.silence is not None and _REPORT.search(message.data) is not None:
            self.num_signs += 1
        return None

    def begin(self) -> None:
        """The answer has begun."""
        self.has_begun = True
        self.expected += 1

    def read(self) -> bytes:
        """The bytes that have arrived since the last call."""
        data = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
        self.pieces.clear()
        self.num_read += len(data)
        return data


class Link(Protocol):
    """What an exchange uses of the links to workers."""

    def submit(self, attempt: Attempt, message: Relay) -> None:
        """Send the message that begins the exchange."""

    def send_on(self, attempt: Attempt, message: RelayChunk | RelayCredit) -> None:
        """Send more; nothing if the worker is gone."""

    def waiting_bytes(self, attempt: Attempt) -> int:
        """Bytes that wait to be sent to the attempt's worker."""

    def forget(self, attempt: Attempt) -> None:
        """Stop waiting for the attempt."""


@final
class RelayClient:
    """One exchange on the worker of `lease`; afterwards `attempt.outcome` is how it ended.
    `silence` bounds the wait for the answer's begin.
    """

    def __init__(
        self,
        link: Link,
        lease: Lease,
        request_id: RequestId,
        number: int,
        *,
        model: str,
        digests: Sequence[BlockDigest],
        silence: Silence | None = None,
    ) -> None:
        self._link = link
        self._model = model
        self._digests = digests
        self.attempt = RelayAttempt(lease, request_id, number, silence)

    @asynccontextmanager
    async def exchange(
        self,
        method: str,  # noqa: ARG002 - only POST is relayed
        target: str,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes,
        *,
        connect_s: float,  # noqa: ARG002 - the link is there
        write_s: float,  # noqa: ARG002 - judged by the worker
        read_s: float,
    ) -> AsyncIterator[HttpResponse]:
        """See `HttpClient.exchange`."""
        attempt = self.attempt
        named = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)
        relay = Relay(
            attempt.request_id,
            attempt.number,
            self._model,
            target,
            named,
            len(body),
            body[:RELAY_CHUNK_BYTES],
            b"".join(self._digests),
        )
        try:
            if attempt.outcome is None:
                self._link.submit(attempt, relay)
            with trio.move_on_after(read_s) as waiting:
                await self._send_rest(body, len(relay.data))
                while not attempt.status and attempt.outcome is None:
                    await attempt.ended.wait()
            if waiting.cancelled_caught:
                raise ReadTimeout(f"the engine sent nothing in {read_s:g} s")
            if not attempt.status:
                raise _error_of(attempt)
            received = [
                (name.lower().encode("latin-1", "replace"), value.encode("latin-1", "replace"))
                for name, value in attempt.headers
            ]
            yield HttpResponse(attempt.status, received, _Body(self._link, attempt))
        finally:
            self._link.forget(attempt)

    async def _send_rest(self, body: bytes, num_sent: int) -> None:
        """Send the rest of the body. Stops when the engine answers, which it may do before it has
        taken the whole body.
        """
        attempt = self.attempt
        while num_sent < len(body) and not attempt.status and attempt.outcome is None:
            may_send = -1 if attempt.num_taken is None else attempt.num_taken + RELAY_WINDOW_BYTES
            if num_sent >= may_send:
                await attempt.ended.wait()
            elif self._link.waiting_bytes(attempt) > UPLOAD_ROOM_BYTES:
                await trio.sleep(LOOK_AGAIN_S)
            else:
                piece = body[num_sent : min(num_sent + RELAY_CHUNK_BYTES, may_send)]
                chunk = RelayChunk(attempt.request_id, attempt.number, num_sent, piece)
                self._link.send_on(attempt, chunk)
                num_sent += len(piece)


@final
class _Body(Body):
    """The response's body; reading it grants the worker credit to send more."""

    def __init__(self, link: Link, attempt: RelayAttempt) -> None:
        self._link = link
        self._attempt = attempt

    async def __anext__(self) -> bytes:
        attempt = self._attempt
        # The caller has passed on what it read before this call.
        if attempt.num_read - attempt.num_granted >= RELAY_WINDOW_BYTES // 2:
            attempt.num_granted = attempt.num_read
            if attempt.outcome is None:
                credit = RelayCredit(attempt.request_id, attempt.number, attempt.num_read)
                self._link.send_on(attempt, credit)
        while not attempt.pieces:
            if (outcome := attempt.outcome) is not None:
                if isinstance(outcome, Finished) and outcome.reason == "stop":
                    raise StopAsyncIteration
                raise _error_of(attempt)
            await attempt.ended.wait()
        return attempt.read()


def _as_finished(end: RelayEnd) -> Finished:
    reasons: dict[str | None, FinishReason] = {None: "stop", "aborted": "abort"}
    reason = reasons.get(end.error, "error")
    return Finished(end.request_id, end.attempt, reason, 0, 0, 0, detail=end.detail)


def _error_of(attempt: RelayAttempt) -> ReadError:
    """Why there is no response, or no more of it."""
    match attempt.outcome:
        case Finished(detail=detail) | Rejected(detail=detail):
            return ReadError(detail or "the engine's answer broke off")
        case outcome:
            return ReadError(f"the exchange is over ({type(outcome).__name__.lower()})")


def _no_tokens(_: TokenItem) -> bool:
    raise WireError("tokens came for an exchange of text")


def _no_acceptance(_: Accepted) -> None:
    """Ignore `Accepted`, which a worker may send for a relay too."""
