"""Clients that leave before the first token and come again, in virtual time."""

import gc
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.api.events import Failed, Started, TextDelta, TurnEvent
from gateway.telemetry import RequestTrace, RequestTraces
from gateway.telemetry.event_feed import EventFeed
from gateway.turn.open_turns import (
    MAX_DETACHED,
    MAX_KEPT,
    Emit,
    OpenTurns,
    RetryClaim,
    StreamedTurn,
)

GRACE_S = 10.0
CLAIM = RetryClaim("alice", b"bytes", "alpha")
STARTED = Started("worker", "w1", 0, "the only one", "alpha")


class Turn:
    """Work that emits what it is told to; counts how often it was started and cancelled."""

    def __init__(self) -> None:
        self.emit: Emit = lambda _: None
        self.num_started = 0
        self.was_cancelled = False
        self.done = trio.Event()
        self.error: Exception | None = None

    async def work(self, emit: Emit) -> None:
        self.num_started += 1
        self.emit = emit
        try:
            await self.done.wait()
        except trio.Cancelled:
            self.was_cancelled = True
            raise
        if self.error is not None:
            raise self.error


class Client:
    """One connected client; `leave` is its disconnect."""

    def __init__(self, open_turns: OpenTurns, nursery: trio.Nursery) -> None:
        self._open_turns = open_turns
        self._nursery = nursery
        self.events: list[TurnEvent] = []
        self.scope = trio.CancelScope()
        self.failure: Exception | None = None
        self.over = False

    def ask(self, turn: Turn, claim: RetryClaim = CLAIM) -> "Client":
        self._nursery.start_soon(self._run, turn.work, claim)
        return self

    async def _run(self, work: Callable[[Emit], Awaitable[None]], claim: RetryClaim) -> None:
        with self.scope:
            try:
                await self._open_turns.stream(claim, work, self.events.append, RequestTrace())
            except ValueError as error:
                self.failure = error
            self.over = True

    async def leave(self) -> None:
        self.scope.cancel()
        await wait_all_tasks_blocked()


@pytest.fixture
async def open_turns() -> AsyncIterator[OpenTurns]:
    """One that runs, and whose tasks all end with it."""
    async with trio.open_nursery() as nursery:
        open_turns = OpenTurns(EventFeed(), RequestTraces(), grace_s=GRACE_S)
        await nursery.start(open_turns.run)
        yield open_turns
        nursery.cancel_scope.cancel()


async def test_the_same_request_takes_over(
    open_turns: OpenTurns, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """The work goes on, and the second client gets all of it, the beginning too."""
    turn = Turn()
    first = Client(open_turns, nursery).ask(turn)
    await wait_all_tasks_blocked()
    turn.emit(STARTED)
    await first.leave()
    assert open_turns.num_detached == 1
    await trio.sleep(GRACE_S - 1)
    turn.emit(TextDelta(0, "Hel"))
    second = Client(open_turns, nursery).ask(turn)
    await wait_all_tasks_blocked()
    turn.emit(TextDelta(0, "lo"))
    await trio.sleep(2 * GRACE_S)
    turn.done.set()
    await wait_all_tasks_blocked()
    assert turn.num_started == 1
    assert second.events == [STARTED, TextDelta(0, "Hel"), TextDelta(0, "lo")]
    assert second.over
    assert open_turns.num_detached == 0


async def test_a_detached_turn_lives_for_its_grace(
    open_turns: OpenTurns, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """A detached turn lives for its grace period. Then it is cancelled, and the same request begins
    anew.
    """
    turn = Turn()
    first = Client(open_turns, nursery).ask(turn)
    await wait_all_tasks_blocked()
    await first.leave()
    await trio.sleep(GRACE_S - 0.1)
    assert not turn.was_cancelled
    await trio.sleep(0.2)
    assert turn.was_cancelled
    assert open_turns.num_detached == 0
    Client(open_turns, nursery).ask(turn)
    await wait_all_tasks_blocked()
    assert turn.num_started == 2


async def test_connected_clients_are_never_merged(
    open_turns: OpenTurns, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """Two clients with the same bytes have two turns; of two detached ones one is kept."""
    one, two = Turn(), Turn()
    clients = [Client(open_turns, nursery).ask(turn) for turn in (one, two)]
    await wait_all_tasks_blocked()
    assert (one.num_started, two.num_started) == (1, 1)
    for client in clients:
        await client.leave()
    assert open_turns.num_detached == 1
    assert [one.was_cancelled, two.was_cancelled].count(True) == 1


@pytest.mark.parametrize(
    "claim", [RetryClaim("bob", b"bytes", "alpha"), RetryClaim("alice", b"other", "alpha")]
)
async def test_others_do_not_take_over(
    claim: RetryClaim, open_turns: OpenTurns, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """Another key or another byte is another request."""
    turn, other = Turn(), Turn()
    first = Client(open_turns, nursery).ask(turn)
    await wait_all_tasks_blocked()
    await first.leave()
    Client(open_turns, nursery).ask(other, claim)
    await wait_all_tasks_blocked()
    assert other.num_started == 1
    assert open_turns.num_detached == 1


async def test_after_the_first_token_leaving_is_the_end(
    open_turns: OpenTurns, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """After the first token a client that leaves ends the request at once: text that a client has
    seen is not shown to another.
    """
    turn = Turn()
    client = Client(open_turns, nursery).ask(turn)
    await wait_all_tasks_blocked()
    turn.emit(STARTED)
    turn.emit(TextDelta(0, "Hel"))
    await client.leave()
    assert turn.was_cancelled
    assert open_turns.num_detached == 0


async def test_a_turn_that_was_taken_over_can_detach_again(
    open_turns: OpenTurns, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """Clients may give up more than once; each has the whole grace."""
    turn = Turn()
    for _ in range(3):
        client = Client(open_turns, nursery).ask(turn)
        await trio.sleep(GRACE_S * 2)
        await client.leave()
        await trio.sleep(GRACE_S * 0.9)
    assert turn.num_started == 1
    assert not turn.was_cancelled


async def test_an_answer_that_ended_detached_waits_for_its_client(
    open_turns: OpenTurns, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """The answer, or the failure, goes to the client that comes within the grace."""
    for error in (None, ValueError("no")):
        turn = Turn()
        turn.error = error
        first = Client(open_turns, nursery).ask(turn)
        await wait_all_tasks_blocked()
        await first.leave()
        turn.emit(TextDelta(0, "All"))
        turn.done.set()
        await wait_all_tasks_blocked()
        second = Client(open_turns, nursery).ask(turn)
        await wait_all_tasks_blocked()
        assert second.events == [TextDelta(0, "All")]
        assert second.failure is error
        assert turn.num_started == 1


async def test_detached_turns_and_their_events_are_bounded(
    open_turns: OpenTurns, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """One too many is cancelled at once, as is one that writes without end."""
    turns = [Turn() for _ in range(MAX_DETACHED + 1)]
    for number, turn in enumerate(turns):
        claim = RetryClaim("alice", str(number).encode(), "alpha")
        client = Client(open_turns, nursery).ask(turn, claim)
        await wait_all_tasks_blocked()
        await client.leave()
    assert open_turns.num_detached == MAX_DETACHED
    assert [turn.was_cancelled for turn in turns] == [False] * MAX_DETACHED + [True]
    for _ in range(MAX_KEPT + 1):
        turns[0].emit(TextDelta(0, "x"))
    await wait_all_tasks_blocked()
    assert turns[0].was_cancelled


@pytest.mark.parametrize("is_over", [True, False])
async def test_a_detached_turn_that_was_cut_cannot_be_taken_over(
    is_over: bool, open_turns: OpenTurns, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """A detached turn that was cut cannot be taken over, because its events are no whole answer:
    the second try starts anew.
    """
    turn, again = Turn(), Turn()
    client = Client(open_turns, nursery).ask(turn)
    await wait_all_tasks_blocked()
    await client.leave()
    for _ in range(MAX_KEPT + 1):
        turn.emit(TextDelta(0, "x"))
    if is_over:
        await wait_all_tasks_blocked()
    second = Client(open_turns, nursery).ask(again)
    await wait_all_tasks_blocked()
    again.emit(STARTED)
    again.done.set()
    await wait_all_tasks_blocked()
    assert turn.was_cancelled
    assert second.over
    assert second.events == [STARTED]
    assert open_turns.num_detached == 0


async def test_the_end_of_the_gateway_is_an_error(autojump_clock: MockClock) -> None:
    """A client that is connected when all is cancelled gets an error on which clients retry."""
    async with trio.open_nursery() as nursery:
        open_turns, turn = OpenTurns(EventFeed(), RequestTraces(), grace_s=GRACE_S), Turn()
        async with trio.open_nursery() as owner:
            await owner.start(open_turns.run)
            client = Client(open_turns, nursery).ask(turn)
            await wait_all_tasks_blocked()
            owner.cancel_scope.cancel()
        await wait_all_tasks_blocked()
        (failed,) = client.events
        assert isinstance(failed, Failed)
        assert failed.error.code == "upstream_connection_lost"


def _streamed() -> list[StreamedTurn]:
    return [each for each in gc.get_objects() if type(each) is StreamedTurn]


async def test_a_turn_that_is_over_leaves_no_reference_cycle(
    open_turns: OpenTurns, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """A turn that is over leaves no reference cycle, whether its client stayed or it was taken over
    after its end.
    """
    gc.collect()
    others = _streamed()  # of a test that has failed before, whose frames are kept
    gc.disable()
    try:
        for leaves in (False, True):
            turn = Turn()
            client = Client(open_turns, nursery).ask(turn)
            await wait_all_tasks_blocked()
            if leaves:
                await client.leave()
            turn.done.set()
            await wait_all_tasks_blocked()
            if leaves:
                client = Client(open_turns, nursery).ask(turn)
                await wait_all_tasks_blocked()
            assert client.over
            del client, turn
            await trio.sleep(2 * GRACE_S)
            left = [each for each in _streamed() if not any(each is other for other in others)]
            assert not left, leaves
    finally:
        gc.enable()
