"""All attempts that wait for their workers.

Owns the way of each token item and each answer to the attempt that it is for; what is for none is
counted and dropped. Must not know sockets, nor what tokens mean.
"""

from gateway.link.attempt import STOPPED, Attempt, Crashed
from gateway.telemetry import Counters
from protocol.ids import WorkerId
from protocol.messages import Accepted, Finished, Rejected, TokenItem
from protocol.tokens import TOKEN_BYTES


class _Ended:
    """What fails in its block ends the attempt, and nothing else."""

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
    """By the request; one has one attempt at a time."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._attempts: dict[bytes, Attempt] = {}

    def __len__(self) -> int:
        return len(self._attempts)

    def add(self, attempt: Attempt) -> None:
        """It hears of everything from now on."""
        self._attempts[attempt.request_id] = attempt

    def remove(self, attempt: Attempt) -> None:
        """It no longer waits, unless another has its place already."""
        if self._attempts.get(attempt.request_id) is attempt:
            del self._attempts[attempt.request_id]

    def accepted(self, worker_id: WorkerId, message: Accepted) -> None:
        """Of interest to its turn alone: a place is counted from its decision on."""
        attempt = self.of(worker_id, message)
        if attempt is not None:
            with _Ended(attempt):
                attempt.on_accepted(message)

    def tokens(self, worker_id: WorkerId, items: tuple[TokenItem, ...]) -> str | None:
        """Hand on the tokens of one step; what is wrong with the worker, if tokens are missing."""
        attempts = self._attempts
        for item in items:
            # As `of`, which is asked where somebody has to be counted.
            attempt = attempts.get(item.request_id)
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
            try:
                on_tokens = attempt.on_tokens
                wants_no_more = on_tokens(item)
            except Exception as error:  # noqa: BLE001 - one request fails, the others are served
                attempt.end(Crashed(error))
                continue
            if wants_no_more:
                attempt.end(STOPPED)
        return None

    def finished(self, worker_id: WorkerId, message: Finished) -> str | None:
        """Tell of an end; what is wrong with the worker, if tokens are missing.

        The last tokens have no successor whose offset would show that they are.
        """
        attempt = self.of(worker_id, message)
        if attempt is None:
            return None
        if message.reason in ("stop", "length"):
            num_sent = message.output_tokens - (message.matched is not None)
            if num_sent != attempt.expected:
                return f"{num_sent} tokens were sent and {attempt.expected} came"
            with _Ended(attempt):
                attempt.on_complete(message)
        attempt.end(message)
        return None

    def of(
        self, worker_id: WorkerId, message: TokenItem | Finished | Rejected | Accepted
    ) -> Attempt | None:
        """The live attempt that the message is for; others are counted."""
        attempt = self._attempts.get(message.request_id)
        if attempt is None or attempt.number != message.attempt or attempt.outcome is not None:
            self._counters.items_stale += 1
            return None
        if attempt.worker_id != worker_id:
            self._counters.items_foreign += 1
            return None
        return attempt
