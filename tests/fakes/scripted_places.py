"""Services whose dispatcher follows a script, and a request whose tries follow one."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final, cast

from gateway.api import ApiError, unavailable
from gateway.link.attempts import Crashed, Lost
from gateway.routing import Lease, RouteRequest, UseProvider
from gateway.telemetry import EventFeed, GatewayCounters
from gateway.turn import RetryBudget, Services
from gateway.turn.caller import Caller
from gateway.turn.tries import TABLE, TryEvent, TryState
from gateway.turn.try_loop import TryLoop
from protocol.errors import WireError
from protocol.ids import WorkerId

NUM_WORKERS: Final = 3
REFUSED: Final = "refused"
PROVIDERS: Final = "providers"


class ScriptedPlaces:
    """A dispatcher that gives places on one worker after the other; `last` is its answer once the
    tries of the script are over. `held` are the tickets that nobody has released.
    """

    def __init__(self, num_places: int, last: str) -> None:
        self._num_places = num_places
        self._last = last
        self._num_tickets = 0
        self.num_placed = 0
        self.asked: list[RouteRequest] = []
        self.busy: list[tuple[int, str]] = []
        self.held: set[int] = set()
        self.released: list[tuple[int, int | None, bool]] = []

    def next_ticket(self) -> int:
        self._num_tickets += 1
        return self._num_tickets

    async def route(self, request: RouteRequest) -> Lease | UseProvider:
        assert not self.held, "two places for one request"
        self.asked.append(request)
        return self._answer(request.ticket)

    async def route_again(self, lease: Lease, reason: str) -> Lease | UseProvider:
        assert self.held == {lease.ticket}
        self.busy.append((lease.ticket, reason))
        return self._answer(lease.ticket)

    def release(self, ticket: int, tokens: int | None, *, is_proven: bool) -> None:
        self.held.discard(ticket)
        self.released.append((ticket, tokens, is_proven))

    def _answer(self, ticket: int) -> Lease | UseProvider:
        if self.num_placed == self._num_places:
            if self._last == REFUSED:
                self.held.discard(ticket)
                raise unavailable("No worker is ready.", 1)
            self.held.add(ticket)
            return UseProvider(ticket, (), "no worker is ready")
        worker = WorkerId(bytes([self.num_placed % NUM_WORKERS]))
        self.num_placed += 1
        self.held.add(ticket)
        return Lease(ticket, worker, 0, "scripted")


def scripted_services(places: ScriptedPlaces) -> Services:
    """The services that a loop of tries uses."""
    counters, feed = GatewayCounters(), EventFeed()
    link = SimpleNamespace(worker_name=lambda worker: f"w{worker[0]}")
    fields: dict[str, Any] = {
        "dispatcher": places,
        "counters": counters,
        "feed": feed,
        "link": link,
        "retries": RetryBudget(feed, counters),
        "draw": bytes,
    }
    return cast("Services", SimpleNamespace(**fields))


class ScriptedTries(TryLoop):
    """A request whose tries bring the events of `script`, one list per place; "error" raises."""

    def __init__(self, services: Services, script: Sequence[Sequence[TryEvent | str]]) -> None:
        super().__init__(services, Caller(), "alpha", b"")
        self._script = list(script)
        self.tried: list[TryState] = []
        self.tokens = 0

    def _enter_trace(self) -> None:
        self._trace.model = self._model

    def _request(self) -> RouteRequest:
        return RouteRequest(
            self._next_ticket(),
            self._model,
            "",
            1.0,
            None,
            (),
            1,
            1,
            cloud=self._cloud,
            excluded=self._excluded,
        )

    def _num_tokens(self) -> int:
        return self.tokens

    def _tokens_at_release(self) -> int | None:
        return self.tokens

    async def _try(self, lease: Lease) -> None:
        name = self._begin_attempt(lease)
        for event in self._script.pop(0):
            if isinstance(event, str):
                raise ApiError(500, event)
            if event in (TryEvent.LOSE, TryEvent.DISTRUST):
                is_proven = self.state is TryState.PROVEN
                outcome = Lost() if event is TryEvent.LOSE else Crashed(WireError("torn"))
                self._note_loss(lease, outcome, name, is_proven=is_proven)
            self.tokens += event in (TryEvent.PART, TryEvent.PROOF)
            self.state = TABLE[self.state, event]
        self.tried.append(self.state)
