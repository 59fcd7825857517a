"""The open turns, and the lifecycle of a streamed one.

Owns the tasks of streamed turns from start to end, and how a shutdown ends the last turns: each
with an error that its client still gets. Must not know what turns do.

Clients time out and send the same request again, mostly while a long prompt is computed. So a
streamed turn whose client leaves before the first token continues for a grace period, in which a
request with the same key and the same bytes takes it over. A turn whose client is connected is
never taken over, so two clients never share one.
"""

import enum
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, NamedTuple

import trio

from gateway.api import Failed, Started, TurnEvent, stopping
from gateway.output import EventSink
from gateway.runtime import Wakeup, break_off
from gateway.telemetry import (
    EventFeed,
    RequestDetached,
    RequestTrace,
    RequestTraces,
    TakenOver,
    TurnTrace,
)

MAX_DETACHED: Final = 64
"""Detached turns at a time; each holds a place on a worker."""
MAX_KEPT: Final = 8192
"""Events that a detached turn may keep for the next client; with more it is cancelled."""
CUT_AGAIN_S: Final = 0.05

Emit = Callable[[TurnEvent], None]
Work = Callable[[Emit], Awaitable[None]]


class TurnState(enum.Enum):
    """Where a streamed turn is in its life.

    WAITING -> STREAMING | DETACHED | ENDED, STREAMING -> ENDED, DETACHED -> WAITING | ENDED.
    """

    WAITING = enum.auto()
    """A client is connected and has seen at most the name of the worker or provider."""
    STREAMING = enum.auto()
    """The client has seen content; its leaving cancels the turn."""
    DETACHED = enum.auto()
    """The client has left; events are kept until another client takes over or the grace is over."""
    ENDED = enum.auto()


# Names of this module, as in `LifeEnum`.
_WAITING: Final = TurnState.WAITING
_STREAMING: Final = TurnState.STREAMING
_DETACHED: Final = TurnState.DETACHED
_ENDED: Final = TurnState.ENDED


class RetryClaim(NamedTuple):
    """What a retry of a request has in common with it: its key and bytes. `model` is for events."""

    key: str
    fingerprint: bytes
    model: str


class StreamedTurn:
    """One streamed turn and its client. While it is STREAMING, events go to `emit` directly."""

    __slots__ = (
        "_emit",
        "_kept",
        "attached",
        "claim",
        "ended",
        "failure",
        "left_at",
        "scope",
        "sink",
        "state",
        "trace",
    )

    def __init__(self, claim: RetryClaim, trace: TurnTrace) -> None:
        self.claim = claim
        self.trace = trace
        self.state = _WAITING
        self.scope = trio.CancelScope()
        self.sink = EventSink(self._keep)
        self.attached: trio.Event | None = None
        self.ended = Wakeup()
        self.failure: Exception | None = None
        self.left_at = 0.0
        self._emit: Emit | None = None
        self._kept: list[TurnEvent] = []

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """Keep a failure of the work, which the client's task raises again."""
        if isinstance(error, Exception):
            self.failure = error
        return self.failure is not None

    def attach(self, emit: Emit) -> None:
        """A client is connected: send it the kept events, and those that follow, by `emit`."""
        self.state = _WAITING
        self.scope.deadline = float("inf")
        self._emit = emit
        self.sink.emit = self._pass_first
        kept, self._kept = self._kept, []
        for event in kept:
            self.sink(event)
        if self.attached is not None:
            self.attached.set()

    def detach(self, grace_s: float) -> None:
        """The client has left; another may take over within `grace_s`."""
        self.state = _DETACHED
        self.left_at = trio.current_time()
        self.scope.deadline = self.left_at + grace_s
        self.attached = trio.Event()
        self._emit = None
        self.sink.emit = self._keep

    def cancel(self) -> None:
        """Cancel the turn: its client has left and no other may take over."""
        self._emit = None
        self.sink.emit = _ignore
        self.scope.cancel()

    def end(self, *, is_cut: bool) -> None:
        """The turn is over; if it was cut, a client that is still connected gets an error."""
        self.state = _ENDED
        if is_cut and self._emit is not None:
            self._emit(Failed(stopping(has_begun=True)))
        # A bound method in the sink would be a reference cycle.
        self.sink.emit = _ignore
        self.ended.ring()

    def _keep(self, event: TurnEvent) -> None:
        self._kept.append(event)
        if len(self._kept) > MAX_KEPT:
            self.scope.cancel()

    def _pass_first(self, event: TurnEvent) -> None:
        assert self._emit is not None
        if isinstance(event, Started):
            # Kept for a client that may take over.
            self._kept = [event]
        else:
            self.state = _STREAMING
            self._kept.clear()
            self.sink.emit = self._emit
        self._emit(event)


class Interruptible:
    """A block that a shutdown can end: its cancel scope is in `scopes` while the block runs. Raises
    `stopping` if it was cancelled.
    """

    __slots__ = ("_scope", "_scopes")

    def __init__(self, scopes: set[trio.CancelScope]) -> None:
        self._scopes = scopes
        self._scope = trio.CancelScope()

    def __enter__(self) -> None:
        self._scopes.add(self._scope)
        self._scope.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        self._scopes.remove(self._scope)
        is_handled = self._scope.__exit__(kind, error, trace)
        if self._scope.cancelled_caught:
            raise stopping(has_begun=True)
        return is_handled


class OpenTurns:
    """All open turns, each counted once by its main task. `run` owns the tasks of streamed turns.

    A turn that waits for a place or a worker waits on a `Wakeup`, where `cut` can break it off. Any
    other wait of a turn has to be `interruptible`, or short.
    """

    def __init__(self, feed: EventFeed, traces: RequestTraces, *, grace_s: float) -> None:
        self._feed = feed
        self._traces = traces
        self.grace_s = grace_s
        self._nursery: trio.Nursery | None = None
        self._detached: dict[RetryClaim, StreamedTurn] = {}
        self._tasks: set[trio.lowlevel.Task] = set()
        self._scopes: set[trio.CancelScope] = set()

    @property
    def count(self) -> int:
        """Turns being answered now."""
        return len(self._tasks)

    @property
    def num_detached(self) -> int:
        """Turns whose client has left before the first token."""
        return len(self._detached)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run streamed turns until cancelled, which ends them all."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    async def stream(self, claim: RetryClaim, work: Work, emit: Emit, trace: RequestTrace) -> None:
        """Run `work` as a new turn, or take over a detached turn of the same claim, and pass its
        events on. Raises what the work raises. Cancelling the call means that the client has left.
        `trace` is the request's.
        """
        if self._nursery is None:
            raise RuntimeError("the open turns do not run")
        turn = self._take_over(claim) if self._detached else None
        if turn is None:
            turn = StreamedTurn(claim, trace.turn)
            self._nursery.start_soon(self._run_streamed, turn, work)
        else:
            self._traces.take_over(trace, turn.trace)
        turn.attach(emit)
        try:
            while turn.state is not _ENDED:
                await turn.ended.wait()
        finally:
            if turn.state is not _ENDED:
                self._leave(turn)
        failure, turn.failure = turn.failure, None
        if failure is not None:
            raise failure

    def open(self) -> trio.lowlevel.Task:
        """Count the turn that this task answers; pass the result to `close` when it ends."""
        task = trio.lowlevel.current_task()
        self._tasks.add(task)
        return task

    def close(self, task: trio.lowlevel.Task) -> None:
        """The turn of `task` has ended."""
        self._tasks.remove(task)

    def interruptible(self) -> "Interruptible":
        """Let `cut` end a block that waits on something else than a `Wakeup`; it then raises
        `ApiError`.
        """
        return Interruptible(self._scopes)

    async def cut(self) -> int:
        """End all open turns with the error `stopping`; return once they have ended how many there
        were.
        """
        num_cut = len(self._tasks)
        while self._tasks:
            for scope in self._scopes:
                scope.cancel()
            for task in self._tasks:
                break_off(task, stopping(has_begun=True))
            await trio.sleep(CUT_AGAIN_S)
        return num_cut

    async def _run_streamed(self, turn: StreamedTurn, work: Work) -> None:
        """The task of a turn. Its failure is kept for the client's task to raise; a turn that ends
        without a client drops it.
        """
        is_cut = True
        try:
            with turn.scope:
                with turn:
                    await work(turn.sink)
                while turn.state is _DETACHED:
                    assert turn.attached is not None
                    await turn.attached.wait()
                is_cut = False
        finally:
            if self._detached.get(turn.claim) is turn:
                del self._detached[turn.claim]
            turn.end(is_cut=is_cut)

    def _take_over(self, claim: RetryClaim) -> StreamedTurn | None:
        turn = self._detached.pop(claim, None)
        # A cancelled turn has lost events.
        if turn is None or turn.scope.cancel_called:
            return None
        after_s = trio.current_time() - turn.left_at
        self._feed.publish(TakenOver(claim.model, claim.key, round(after_s, 3)))
        return turn

    def _leave(self, turn: StreamedTurn) -> None:
        claim = turn.claim
        has_room = len(self._detached) < MAX_DETACHED and claim not in self._detached
        if turn.state is _STREAMING or not has_room:
            turn.cancel()
            return
        turn.detach(self.grace_s)
        self._detached[claim] = turn
        self._feed.publish(RequestDetached(claim.model, claim.key, self.grace_s))


def _ignore(_event: TurnEvent) -> None:
    """The sink of a turn that has ended."""
