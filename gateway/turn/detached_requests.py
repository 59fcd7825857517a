"""Requests whose client has left before the first token.

Owns streamed turns for as long as they run, and the wait for a client's second try: clients time
out, and come again with the same bytes, just when a prompt is long. Must not know what a turn does.

A request takes over only what nobody is connected to, so two clients never share a turn.
"""

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, NamedTuple

import trio

from gateway.api import Failed, Started, TurnEvent, connection_lost
from gateway.output import EventSink
from gateway.telemetry import EventFeed, RequestDetached, TakenOver

MAX_ORPHANS: Final = 64
"""Each holds a place on a worker."""
MAX_KEPT: Final = 8192
"""Events of an orphan that goes on without a client; one that writes more in its grace is ended."""

Emit = Callable[[TurnEvent], None]
Work = Callable[[Emit], Awaitable[None]]


class Claim(NamedTuple):
    """Whose request it is, and which: the same key and the same bytes. `model` is for the log."""

    key: str
    fingerprint: bytes
    model: str


class DetachedRequests:
    """`run` owns the tasks of all turns that go through `host`."""

    def __init__(self, feed: EventFeed, *, grace_s: float) -> None:
        self._feed = feed
        self._grace_s = grace_s
        self._detached_requests: dict[Claim, _Hosted] = {}
        self._nursery: trio.Nursery | None = None

    def __len__(self) -> int:
        return len(self._detached_requests)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Host turns until cancelled, which ends them all."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    async def host(self, claim: Claim, work: Work, emit: Emit) -> None:
        """Do `work`, or go on with an orphan's, and pass its events on; what it raises is raised.

        Cancelling the call is the client's leaving: the work lives on as an orphan if nothing but
        its beginning was passed on, and is cancelled otherwise.
        """
        if self._nursery is None:
            raise RuntimeError("the orphanage does not run")
        hosted = self._adopt(claim)
        if hosted is None:
            hosted = _Hosted()
            hosted.attach(emit)
            self._nursery.start_soon(hosted.run, work)
        else:
            hosted.attach(emit)
        try:
            await hosted.over.wait()
        finally:
            if not hosted.over.is_set():
                self._leave(claim, hosted)
        if hosted.failure is not None:
            raise hosted.failure

    def _adopt(self, claim: Claim) -> "_Hosted | None":
        hosted = self._detached_requests.pop(claim, None)
        if hosted is not None and hosted.scope.cancel_called:
            # It was ended for what it wrote, and what is kept of it is no whole answer.
            return None
        if hosted is not None:
            after_s = trio.current_time() - hosted.left_at
            self._feed.publish(TakenOver(claim.model, claim.key, round(after_s, 3)))
        return hosted

    def _leave(self, claim: Claim, hosted: "_Hosted") -> None:
        hosted.detach()
        has_room = (
            len(self._detached_requests) < MAX_ORPHANS and claim not in self._detached_requests
        )
        if hosted.was_seen or not has_room or self._nursery is None:
            hosted.scope.cancel()
            return
        self._detached_requests[claim] = hosted
        self._feed.publish(RequestDetached(claim.model, claim.key, self._grace_s))
        hosted.adopted = trio.Event()
        self._nursery.start_soon(self._wait_for_client, claim, hosted, hosted.adopted)

    async def _wait_for_client(self, claim: Claim, hosted: "_Hosted", adopted: trio.Event) -> None:
        with trio.move_on_after(self._grace_s):
            await adopted.wait()
        if self._detached_requests.get(claim) is hosted:
            del self._detached_requests[claim]
            hosted.scope.cancel()


class _Hosted:
    """One turn and who listens. `was_seen`: a client may have seen something of its answer; events
    go to it directly from then on, until it leaves.
    """

    __slots__ = (
        "_audience",
        "_emit",
        "_kept",
        "adopted",
        "failure",
        "left_at",
        "over",
        "scope",
        "was_seen",
    )

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.over = trio.Event()
        self.adopted: trio.Event | None = None
        self.failure: Exception | None = None
        self.was_seen = False
        self.left_at = 0.0
        self._emit: Emit | None = None
        self._audience = EventSink(self._keep)
        self._kept: list[TurnEvent] = []

    async def run(self, work: Work) -> None:
        """Do the work; its failure is kept for whoever waits for it."""
        with self, self.scope:
            await work(self._audience)

    def __enter__(self) -> "_Hosted":
        return self

    def __exit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """The end. An `Exception` is raised again by the call that waits; if nobody does, it is the
        end of an orphan, and nobody is told.
        """
        if isinstance(error, Exception):
            self.failure = error
        elif self._emit is not None and (error or self.scope.cancelled_caught):
            self._emit(Failed(connection_lost()))
        # What refers to itself awaits the collector.
        self._audience.tell = _to_nobody
        self.over.set()
        return self.failure is not None

    def attach(self, emit: Emit) -> None:
        """Events go to `emit` from now on, those that nobody has heard first."""
        self._emit = emit
        self._audience.tell = self._tell_first
        if self.adopted is not None:
            self.adopted.set()
        kept, self._kept = self._kept, []
        for event in kept:
            self._audience(event)
        if self.over.is_set():
            self._audience.tell = _to_nobody

    def detach(self) -> None:
        """The client has left."""
        self._emit = None
        self._audience.tell = self._keep
        self.left_at = trio.current_time()

    def _keep(self, event: TurnEvent) -> None:
        self._kept.append(event)
        if len(self._kept) > MAX_KEPT:
            self.scope.cancel()

    def _tell_first(self, event: TurnEvent) -> None:
        assert self._emit is not None
        if isinstance(event, Started):
            # Whoever takes over is told too.
            self._kept = [event]
        else:
            self.was_seen = True
            self._kept.clear()
            self._audience.tell = self._emit
        self._emit(event)


def _to_nobody(_event: TurnEvent) -> None:
    """A turn that is over says nothing."""
