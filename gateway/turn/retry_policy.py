"""Retries: what a sequence does after it has lost its place on a worker.

Owns the choice between another worker and giving up: which engine died, whether the request may
have caused it, whether the fleet can afford another try. Must not know tokens or events of the
answer.

The whole process has one retry budget. Without it, a fault that hits every request would multiply
the load just when little of it can be served. Moving away from a dead engine takes nothing from the
budget: it happens once per death, and `quarantine.py` finds requests that cause deaths.
"""

import logging
from typing import Final

import trio

from gateway.api import ApiError, connection_lost, poisoned_request
from gateway.link import (
    MOST_RENEWALS,
    SECOND_PLACE,
    Crashed,
    Outcome,
    Overdue,
    Silence,
    Unreadable,
)
from gateway.routing import Dispatcher, Lease, RequestIdentity
from gateway.telemetry import EventFeed, GatewayCounters, Rerouted, Resumed, RetryRefused
from protocol.messages import Finished, Rejected

MAX_ERRORS: Final = 2
"""A sequence may survive this many errors of engines (out of memory in a step, say). The next one
ends it with an error: a sequence that fails three times is probably at fault itself.
"""
MAX_FRUITLESS_LOSSES: Final = 8
"""A sequence is given up after this many lost places in a row without progress, even if no engine
is known to have died: links that flap do not serve it.
"""

PER_REQUEST: Final = 0.2
"""Retries per request in the long run: a fifth more work than clients asked for."""
FLOOR_PER_S: Final = 5.0
"""Retries per second that are allowed at any load."""
MOST: Final = 100.0
"""Retries that may happen at once: all requests of a busy fleet, once."""

_MAX_SILENCES: Final = 2

_log = logging.getLogger("herma.turn")


class RetryBudget:
    """A token bucket, full at first. Each retry takes a token; each turn that `counters` counts
    adds `PER_REQUEST` of one, each second `FLOOR_PER_S`, up to `MOST`.
    """

    def __init__(self, feed: EventFeed, counters: GatewayCounters) -> None:
        self._feed = feed
        self._counters = counters
        self._num_turns = 0
        self._tokens = MOST
        self._at: float | None = None

    def may_retry(self, what: str, now: float) -> bool:
        """Take a token for a retry at `what`, a model or provider. If there is none, publish an
        event and return False.
        """
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
    """The retries of one sequence. `name` identifies it in the log; `identity` is the identity of
    its request.
    """

    __slots__ = (
        "_budget",
        "_dispatcher",
        "_feed",
        "_identity",
        "_model",
        "_name",
        "_num_errors",
        "_num_fruitless",
        "_num_silences",
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
        self._num_silences = 0

    def silence(self, first_s: float, stall_s: float, now: float, num_parts: int) -> Silence:
        """The bounds on the silence at the next place: longer ones, if the last was left for it."""
        factor = SECOND_PLACE if self._num_silences else 1.0
        # Others renew it for no longer than at the first place.
        most_s = MOST_RENEWALS * first_s
        bounds = factor * first_s, factor * stall_s
        return Silence(*bounds, now, num_parts=num_parts, most_s=most_s)

    def note_silence(self, *, has_begun: bool) -> None:
        """The place was left because nothing came. Raises `ApiError` if it was the second one: a
        request about which two places are silent is not tried for ever.
        """
        self._num_silences += 1
        if self._num_silences < _MAX_SILENCES:
            return
        _log.error("request %s ends: two places of %s were silent", self._name, self._model)
        if has_begun:
            raise connection_lost()
        text = f"No worker of {self._model} began to answer in time, at two places."
        raise ApiError(504, text, code="no_answer")

    def proven(self) -> None:
        """The sequence has made progress: count losses from zero again."""
        self._num_fruitless = 0

    def note_error(self, detail: str) -> None:
        """An engine failed on the sequence with the error `detail`, so that the place is lost.
        Raises `ApiError` if that was one error too many.
        """
        self._num_errors += 1
        if self._num_errors > MAX_ERRORS or not self._budget.may_retry(
            self._model, trio.current_time()
        ):
            # Not shown to the client: the engine's own words could make it act on them.
            _log.error("request %s ends in an engine's error: %s", self._name, detail)
            why = f"the gateway's log says why (request {self._name})"
            raise ApiError(500, f"The engine failed on this request; {why}.")
        _log.warning("request %s continues elsewhere after an error: %s", self._name, detail)

    def note_loss(
        self,
        lease: Lease,
        outcome: Outcome,
        worker: str,
        *,
        is_proven: bool,
        output_tokens: int,
    ) -> None:
        """The place on `worker` is lost by `outcome`. `is_proven`: the sequence made progress
        there. Raises `ApiError` if that was one loss too many.
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


def failed_there(outcome: Outcome) -> bool:
    """Whether the engine lives and has failed on the request. Then it is not asked again while
    another one can answer.
    """
    match outcome:
        case Overdue() | Crashed() | Unreadable() | Finished(reason="error"):
            return True
        case _:
            return False


def loss_reason(lease: Lease, outcome: Outcome) -> str:
    """Why the place is lost, in one of a few fixed phrases for operators."""
    match outcome:
        case Finished(reason="error"):
            return "its engine failed on the request"
        case Finished():
            return "it gave the work up"
        case Overdue(has_begun=True):
            return "no more tokens came in time"
        case Overdue():
            return "no first token came in time"
        case Crashed() | Unreadable():
            return "it broke the protocol"
        case Rejected() if not lease.is_lost:
            return "it refused the rest of an answer"
        case _:
            return lease.why_lost or "it is out of reach"
