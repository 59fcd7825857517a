"""What the loss of a place means, and how much may be tried again.

Owns the choice between going on elsewhere and giving up, for the sequence that had the place: which
engine died, whether the request may be why, whether the fleet can afford another try. Must not know
tokens or events of the answer.

The budget for retries is one for the whole process. Without it a fault that every request meets
would be met several times by each: the load grows just when little of it can be served. A move away
from a dead engine takes nothing from it: it happens once per death, and requests that cause deaths
are found by `quarantine.py`.
"""

import logging
from typing import Final

import trio

from gateway.api import ApiError, connection_lost, poisoned_request
from gateway.link import Outcome, Overdue
from gateway.routing import Dispatcher, Lease, RequestIdentity
from gateway.telemetry import Counters, EventFeed, Rerouted, Resumed, RetryRefused
from protocol.messages import Finished

MAX_ERRORS: Final = 2
"""Engines that may fail at a sequence (out of memory in a step, say) before its client gets an
error. What fails three times lies in the request.
"""
MAX_FRUITLESS_LOSSES: Final = 8
"""A sequence that loses so many places in a row without a proof of progress is given up, although
no engine is known to have died: links that flap do not serve.
"""

PER_REQUEST: Final = 0.2
"""A fifth more work than was asked for, in the long run."""
FLOOR_PER_S: Final = 5.0
"""A fleet with little to do may always try again."""
MOST: Final = 100.0
"""One bad moment of a busy fleet: all that is under way may be tried again once."""

_log = logging.getLogger("herma.turn")


class RetryBudget:
    """A token bucket, full at first, from which each retry takes a token; each turn that `counters`
    has counted adds a part of one.
    """

    def __init__(self, feed: EventFeed, counters: Counters) -> None:
        self._feed = feed
        self._counters = counters
        self._num_turns = 0
        self._tokens = MOST
        self._at: float | None = None

    def may_retry(self, what: str, now: float) -> bool:
        """Whether `what`, a model or provider, may be tried again; an event says so if not."""
        num_turns = self._counters.turns_started
        self._tokens += (num_turns - self._num_turns) * PER_REQUEST
        if self._at is not None:
            self._tokens += max(0.0, now - self._at) * FLOOR_PER_S
        self._tokens = min(MOST, self._tokens)
        self._num_turns, self._at = num_turns, now
        if self._tokens < 1.0:
            self._feed.publish(RetryRefused(what))
            return False
        self._tokens -= 1.0
        return True


class RetryPolicy:
    """Of one sequence; operators find it in the log by its `name`. `identity` is its request's."""

    __slots__ = (
        "_budget",
        "_dispatcher",
        "_feed",
        "_identity",
        "_model",
        "_name",
        "_num_errors",
        "_num_fruitless",
    )

    def __init__(
        self,
        dispatcher: Dispatcher,
        feed: EventFeed,
        budget: RetryBudget,
        name: str,
        model: str,
        identity: RequestIdentity,
    ) -> None:
        self._dispatcher = dispatcher
        self._feed = feed
        self._budget = budget
        self._name = name
        self._model = model
        self._identity = identity
        self._num_fruitless = 0
        self._num_errors = 0

    def proven(self) -> None:
        """The sequence makes progress."""
        self._num_fruitless = 0

    def note_error(self, detail: str) -> None:
        """An engine failed with an error, which `detail` describes: the place is lost. Raises
        `ApiError` if it was one error too many.
        """
        self._num_errors += 1
        if self._num_errors > MAX_ERRORS or not self._budget.may_retry(
            self._model, trio.current_time()
        ):
            # The detail is the engine's: it may hold words on which clients act.
            _log.error("request %s ends in an engine's error: %s", self._name, detail)
            why = f"the gateway's log says why (request {self._name})"
            raise ApiError(500, f"The engine failed on this request; {why}.")
        _log.warning("request %s goes on elsewhere after an engine's error: %s", self._name, detail)

    def note_loss(
        self,
        lease: Lease,
        outcome: Outcome,
        worker: str,
        *,
        is_proven: bool,
        output_tokens: int,
    ) -> None:
        """The place on `worker` is lost, by `outcome`. `is_proven`: progress was made there. Raises
        `ApiError` if it was one loss too many.
        """
        if not is_proven:
            if lease.died is None:
                self._count_fruitless()
            elif deaths := self._dispatcher.strike(self._identity, lease, self._name, self._model):
                raise poisoned_request(deaths)
        loss = self._name, self._model, worker, loss_reason(lease, outcome)
        self._feed.publish(Resumed(*loss, output_tokens) if output_tokens else Rerouted(*loss))

    def _count_fruitless(self) -> None:
        self._num_fruitless += 1
        is_over = self._num_fruitless >= MAX_FRUITLESS_LOSSES
        if is_over or (
            self._num_fruitless > 1 and not self._budget.may_retry(self._model, trio.current_time())
        ):
            raise connection_lost()


def loss_reason(lease: Lease, outcome: Outcome) -> str:
    """Why the place is lost, in fixed words, for operators."""
    match outcome:
        case Finished(reason="error"):
            return "its engine failed on the request"
        case Finished():
            return "it gave the work up"
        case Overdue():
            return "no first token came in time"
        case _:
            return lease.why_lost or "it is out of reach"
