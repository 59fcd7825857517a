"""Attempts: each is one sequence on one worker, and gets that worker's messages about it.

Owns the point where frames meet the task that waits for them: tokens reach their callback by plain
calls, and only the end wakes the task. Messages for no live attempt are counted and dropped. Must
not know sockets, text or HTTP.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from gateway.link.silence import Silence
from gateway.routing import Lease
from gateway.runtime import Wakeup
from gateway.telemetry import GatewayCounters
from protocol.errors import WireError
from protocol.ids import RequestId, WorkerId
from protocol.messages import (
    Accepted,
    Bundle,
    Embedding,
    Finished,
    Rejected,
    RelayData,
    RelayEnd,
    RelayHead,
    RelayTaken,
    Scored,
    SequenceAlive,
    TokenItem,
    Tokens,
)
from protocol.tokens import TOKEN_BYTES
from protocol.wire import named_ids, peek_tag, tag_of


class Lost(msgspec.Struct, frozen=True):
    """The worker, its engine or the link to it is gone."""


class Overdue(msgspec.Struct, frozen=True):
    """The worker was silent about the sequence for too long; it may never have received it, unless
    it `has_begun` to answer.
    """

    has_begun: bool = False


class StoppedByGateway(msgspec.Struct, frozen=True):
    """The gateway needs no more tokens, as after a stop string; the worker does not know it yet."""


class Unreadable(msgspec.Struct, frozen=True):
    """A frame of the worker that may have held a part of the answer could not be read."""

    detail: str


class Crashed(msgspec.Struct, frozen=True):
    """Processing the tokens failed on our side."""

    error: Exception


_AboutAttempt = (
    TokenItem
    | Embedding
    | Scored
    | Finished
    | Rejected
    | Accepted
    | SequenceAlive
    | RelayHead
    | RelayData
    | RelayTaken
    | RelayEnd
)
_PARTS: Final = (Tokens, Embedding, Scored, Finished, Rejected)
_OF_EXCHANGES: Final = (RelayHead, RelayData, RelayTaken, RelayEnd)
_NEEDED: Final = frozenset([tag_of(kind) for kind in (*_PARTS, *_OF_EXCHANGES, Bundle)])
"""Messages without which a request would wait in vain. An unknown tag is none of these: newer
workers may send other messages.
"""
Outcome = Finished | Rejected | Lost | Overdue | StoppedByGateway | Unreadable | Crashed

LOST: Final = Lost()
OVERDUE: Final = Overdue()
STALLED: Final = Overdue(has_begun=True)
STOPPED: Final = StoppedByGateway()


_EMPTY: Final = "it says that a limit is reached, and gave no token"


class Attempt:
    """One sequence on one worker. `expected` is the offset of the next output token. The attempt is
    over once it has an `outcome`, which rings `ended`. `silence` bounds how long the worker may be
    silent about the sequence; None if the owner of the attempt bounds it. `num_signs` counts signs
    of life other than tokens. `has_steps`: a step of the engine shows that the engine works on
    sequences.

    The callbacks run inside the link's frame callback and must not block. `on_first_tokens` gets
    the tokens until the owner sets `is_proven`, `on_tokens` gets those that follow; both return
    True when no more tokens are wanted. `on_complete` gets the worker's `Finished` before the
    waiting task wakes, so that the client's last bytes do not wait for a task switch.
    `on_embedding` gets the result of an embedding, which has no tokens; `on_scored` gets
    log-probabilities of the prompt.
    """

    has_steps = True

    __slots__ = (
        "ended",
        "expected",
        "is_proven",
        "lease",
        "num_signs",
        "number",
        "on_accepted",
        "on_complete",
        "on_embedding",
        "on_first_tokens",
        "on_scored",
        "on_tokens",
        "outcome",
        "request_id",
        "silence",
        "worker_id",
    )

    def __init__(
        self,
        lease: Lease,
        request_id: RequestId,
        number: int,
        *,
        expected: int,
        on_tokens: Callable[[TokenItem], bool],
        on_accepted: Callable[[Accepted], None],
        on_first_tokens: Callable[[TokenItem], bool] | None = None,
        on_complete: Callable[[Finished], None] = lambda _finished: None,
        silence: Silence | None = None,
    ) -> None:
        self.lease = lease
        self.worker_id = lease.worker_id
        self.request_id = request_id
        self.number = number
        self.expected = expected
        self.silence = silence
        self.num_signs = 0
        self.outcome: Outcome | None = None
        self.is_proven = on_first_tokens is None
        self.on_first_tokens = on_first_tokens or on_tokens
        self.on_tokens = on_tokens
        self.on_accepted = on_accepted
        self.on_complete = on_complete
        self.on_embedding: Callable[[bytes], None] | None = None
        self.on_scored: Callable[[Scored], None] | None = None
        self.ended = Wakeup()
        lease.on_lost = self.lose
        if lease.is_lost:
            self.lose()

    @property
    def generates(self) -> bool:
        """Whether the result of the attempt is tokens."""
        return self.on_embedding is None and self.on_scored is None

    def __repr__(self) -> str:
        return f"<Attempt {self.request_id.hex()[:8]}/{self.number} at {self.expected}>"

    def lose(self) -> None:
        """End the attempt as lost: the worker cannot finish it."""
        self.end(LOST)

    def end(self, outcome: Outcome) -> None:
        """End the attempt; the first outcome counts."""
        if self.outcome is None:
            self.outcome = outcome
            # Breaks the reference cycle: collecting such cycles took 20 us per request.
            self.lease.on_lost = None
            self.ended.ring()

    async def wait(self) -> Outcome:
        while (outcome := self.outcome) is None:
            await self.ended.wait()
        return outcome


class _EndsOnError:
    """A context in which an exception ends the attempt and is not raised further."""

    __slots__ = ("_attempt",)

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._attempt.end(Crashed(error))
        return True


class Attempts:
    """All attempts that wait for their workers, by request id; a request has one at a time."""

    def __init__(self, counters: GatewayCounters) -> None:
        self._counters = counters
        self._attempts: dict[bytes, Attempt] = {}
        # Workers that have brought a part of any answer since the last look at silent ones.
        self._moving: set[WorkerId] = set()

    def __len__(self) -> int:
        return len(self._attempts)

    def add(self, attempt: Attempt) -> None:
        """Route messages to the attempt from now on."""
        self._attempts[attempt.request_id] = attempt

    def remove(self, attempt: Attempt) -> None:
        """Forget the attempt, unless a later one of the same request has replaced it."""
        if self._attempts.get(attempt.request_id) is attempt:
            del self._attempts[attempt.request_id]

    def end_overdue(self, now: float, stepped: Callable[[WorkerId], bool]) -> None:
        """End the attempts that have been silent for too long. One timer serves all: a cancel scope
        per attempt cost more than the rest of a request's waiting, and so would a note of the time
        with each token. `stepped`: the worker's engine has worked since the last call; steps of
        text-level engines prove nothing, because their comments count too.
        """
        watched = [one for one in self._attempts.values() if one.silence is not None]
        moving, self._moving = self._moving, set()
        for attempt in watched:
            assert attempt.silence is not None
            if attempt.silence.has_moved(attempt.expected):
                moving.add(attempt.worker_id)
        for attempt in watched:
            assert attempt.silence is not None
            worker_id = attempt.worker_id
            others_move = worker_id in moving or (attempt.has_steps and stepped(worker_id))
            if attempt.silence.look(
                now, attempt.expected, attempt.num_signs, others_move=others_move
            ):
                attempt.end(OVERDUE if attempt.silence.is_waiting else STALLED)

    def note_answer(self, worker_id: WorkerId) -> None:
        """The worker has finished an answer."""
        self._moving.add(worker_id)

    def accepted(self, worker_id: WorkerId, message: Accepted) -> None:
        """The engine has taken the sequence."""
        attempt = self.of(worker_id, message)
        if attempt is not None:
            attempt.num_signs += 1
            with _EndsOnError(attempt):
                attempt.on_accepted(message)

    def tokens(self, worker_id: WorkerId, items: tuple[TokenItem, ...]) -> str | None:
        """Hand the tokens of one step to their attempts. Returns a description of the gap if tokens
        are missing.
        """
        attempts = self._attempts
        for item in items:
            attempt = attempts.get(item.request_id)
            # The checks of `of`, inlined to save a call per token; `of` counts what fails them.
            if (
                attempt is None
                or attempt.number != item.attempt
                or attempt.outcome is not None
                or attempt.worker_id != worker_id
            ):
                self.of(worker_id, item)
                continue
            if item.offset != attempt.expected:
                return f"tokens at {item.offset} came where {attempt.expected} was due"
            attempt.expected += len(item.ids) // TOKEN_BYTES
            on_tokens = attempt.on_tokens if attempt.is_proven else attempt.on_first_tokens
            try:
                wants_no_more = on_tokens(item)
            except Exception as error:  # noqa: BLE001 - one request fails, the others are served
                attempt.end(Crashed(error))
                continue
            if wants_no_more:
                attempt.end(STOPPED)
        return None

    def read(self, worker_id: WorkerId, message: Embedding | Scored | SequenceAlive) -> None:
        """Hand what was computed of a prompt to its attempt; a `SequenceAlive` only says that the
        engine has not forgotten the sequence.
        """
        attempt = self.of(worker_id, message)
        if attempt is None:
            return
        attempt.num_signs += 1
        with _EndsOnError(attempt):
            if isinstance(message, Scored):
                if attempt.on_scored is not None:
                    attempt.on_scored(message)
            elif isinstance(message, Embedding) and attempt.on_embedding is not None:
                attempt.on_embedding(message.values)

    def finished(self, worker_id: WorkerId, message: Finished) -> str | None:
        """The worker ended a sequence. Returns a description of the gap if the last tokens are
        missing: no later offset would show it.
        """
        attempt = self.of(worker_id, message)
        if attempt is None:
            return None
        if message.reason in ("stop", "length"):
            num_sent = message.output_tokens - (message.matched is not None)
            if num_sent != attempt.expected:
                return f"{num_sent} tokens were sent and {attempt.expected} came"
            if message.reason == "length" and not num_sent and attempt.generates:
                attempt.end(msgspec.structs.replace(message, reason="error", detail=_EMPTY))
                return None
            with _EndsOnError(attempt):
                attempt.on_complete(message)
            self._moving.add(worker_id)
        attempt.end(message)
        return None

    def unreadable(self, worker_id: WorkerId, frame: bytes, error: WireError) -> None:
        """End the attempts of the worker that an unreadable frame names: it may have held their
        tokens or their end, which are not sent again.
        """
        if peek_tag(frame) not in _NEEDED:
            return
        for request_id in named_ids(frame):
            attempt = self._attempts.get(request_id)
            if attempt is not None and attempt.worker_id == worker_id:
                attempt.end(Unreadable(str(error)))

    def of(self, worker_id: WorkerId, message: _AboutAttempt) -> Attempt | None:
        """The live attempt that the message is for; None for other messages, which are counted."""
        attempt = self._attempts.get(message.request_id)
        if attempt is None or attempt.number != message.attempt or attempt.outcome is not None:
            self._counters.items_stale += 1
            return None
        if attempt.worker_id != worker_id:
            self._counters.items_foreign += 1
            return None
        return attempt
