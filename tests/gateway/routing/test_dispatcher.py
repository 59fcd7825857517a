"""The dispatcher as turns and the link see it, in virtual time."""

import math
from functools import partial

import msgspec
import pytest
import trio
import trio.testing

from config import FallbackConfig, GatewayConfig, ModelConfig
from gateway.api.errors import ApiError
from gateway.routing.dispatcher import IDLE_TICK_S, REST_TICK_S, TICK_S, Dispatcher
from gateway.routing.effects import Effects, RouteRequest, UseProvider
from gateway.routing.fleet_state import FleetState
from gateway.routing.lease import Lease
from gateway.telemetry.event_feed import EventFeed
from protocol.ids import WorkerId
from protocol.messages import PROTOCOL_VERSION, EngineFacts, Register

WORKER = WorkerId(b"w" * 16)
FACTS = EngineFacts("fake", "cpu", "float32", 4096, 32, 4096, 1, 512, b"f" * 16)


class Port:
    """Records what the dispatcher asks of the link."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def welcome(self, worker_id: WorkerId) -> None:
        self.said.append(f"welcome {worker_id!r}")

    def refuse(self, worker_id: WorkerId, reason: str) -> None:
        self.said.append(f"refuse {worker_id!r}: {reason}")

    def ask_snapshot(self, worker_id: WorkerId) -> None:
        self.said.append(f"snapshot {worker_id!r}")

    def ask_files(self, worker_id: WorkerId, digest: bytes) -> None:
        self.said.append(f"files {worker_id!r} {digest!r}")


def make_dispatcher() -> tuple[Dispatcher, Port]:
    core = FleetState((ModelConfig(name="alpha"),), max_queue=4, resume_wait_s=120.0)
    dispatcher, port = Dispatcher(core, EventFeed()), Port()
    dispatcher.attach(port)
    return dispatcher, port


def register(dispatcher: Dispatcher, *, ready: bool = True) -> None:
    facts = FACTS if ready else None
    dispatcher.register(WORKER, Register(PROTOCOL_VERSION, "w1", ("alpha",), "b", "0", 1, facts))


def request(dispatcher: Dispatcher) -> RouteRequest:
    return RouteRequest(dispatcher.next_ticket(), "alpha", "", 1.0, None, (), 10, 10)


async def route(dispatcher: Dispatcher) -> Lease:
    answer = await dispatcher.route(request(dispatcher))
    assert isinstance(answer, Lease)
    return answer


async def test_a_ready_worker_is_welcomed_and_asked_for_its_state() -> None:
    """Effects reach the link in order."""
    dispatcher, port = make_dispatcher()
    register(dispatcher)
    assert [words.split()[0] for words in port.said] == ["welcome", "snapshot", "files"]
    assert dispatcher.has_ready.is_set()


async def test_a_waiting_turn_gets_the_place_that_another_leaves() -> None:
    """The worker holds one sequence; the second starts when the first is released."""
    dispatcher, _ = make_dispatcher()
    register(dispatcher)
    first = await route(dispatcher)
    places: list[Lease] = []

    async def wait() -> None:
        places.append(await route(dispatcher))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert not places
        dispatcher.release(first.ticket)
    assert places[0].worker_id == WORKER


async def test_a_cancelled_wait_leaves_the_queue() -> None:
    """Nothing is reserved for a turn that has gone."""
    dispatcher, _ = make_dispatcher()
    register(dispatcher)
    first = await route(dispatcher)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(route, dispatcher)
            await trio.testing.wait_all_tasks_blocked()
            assert dispatcher.statistics().queued == 1
            scope.cancel()
    dispatcher.release(first.ticket)
    assert dispatcher.statistics().queued == dispatcher.statistics().running == 0


async def test_patience_ends_in_a_refusal(autojump_clock: trio.testing.MockClock) -> None:
    """A held request is refused with 503 after `resume_wait_s`, by the ticks of the actor."""
    dispatcher, _ = make_dispatcher()
    register(dispatcher, ready=False)
    async with trio.open_nursery() as nursery:
        await nursery.start(dispatcher.run)
        with pytest.raises(ApiError) as caught:
            await dispatcher.route(request(dispatcher))
        nursery.cancel_scope.cancel()
    assert caught.value.status == 503
    assert 119 < trio.current_time() < 121


class Ticked(FleetState):
    """A dispatcher that notes when it ticks."""

    def __init__(self) -> None:
        super().__init__((ModelConfig(name="alpha"),), max_queue=400, resume_wait_s=120.0)
        self.ticks: list[float] = []

    def tick(self, now: float) -> Effects:
        self.ticks.append(now)
        return super().tick(now)


async def test_how_often_the_dispatcher_ticks(autojump_clock: trio.testing.MockClock) -> None:
    """The dispatcher ticks as often as the work under way needs; a task that begins to wait just
    before a tick does not delay it.
    """
    core = Ticked()
    dispatcher = Dispatcher(core, EventFeed())
    dispatcher.attach(Port())
    register(dispatcher)
    rates = []
    async with trio.open_nursery() as nursery:
        await nursery.start(dispatcher.run)
        for what in ("nothing", "one runs", "one waits", "more come to wait"):
            if what == "one runs":
                await route(dispatcher)
            elif what == "one waits":
                nursery.start_soon(route, dispatcher)
            await trio.sleep_until(math.ceil(trio.current_time()) + 0.99 * TICK_S)
            core.ticks.clear()
            for _ in range(100):
                if what == "more come to wait":
                    nursery.start_soon(route, dispatcher)
                await trio.sleep(TICK_S)
            rates.append(len(core.ticks) / 10.0)
        nursery.cancel_scope.cancel()
    expected = [1 / REST_TICK_S, 1 / IDLE_TICK_S, 1 / TICK_S, 1 / TICK_S]
    assert rates == pytest.approx(expected, abs=0.11)


async def test_a_waiting_request_ends_the_long_interval_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """What is due soon for those that wait is not put off to the end of a long tick."""
    dispatcher, _ = make_dispatcher()
    register(dispatcher, ready=False)
    async with trio.open_nursery() as nursery:
        await nursery.start(dispatcher.run)
        await trio.sleep_until(10 * REST_TICK_S + TICK_S / 2)
        late = msgspec.structs.replace(request(dispatcher), deadline_at=trio.current_time() + 0.01)
        with pytest.raises(ApiError):
            await dispatcher.route(late)
        assert trio.current_time() < 10 * REST_TICK_S + 2 * TICK_S
        nursery.cancel_scope.cancel()


async def test_a_provider_for_another_ticket_is_not_the_answer_to_this_one() -> None:
    """A reload gives a waiting request a provider; the next request, whose key forbids providers,
    asks before the tick. It waits, and the first gets the provider.
    """
    chain = (FallbackConfig(provider="cloud", model="big"),)
    core = FleetState(
        (ModelConfig(name="alpha", fallback=chain),), max_queue=4, resume_wait_s=120.0
    )
    dispatcher = Dispatcher(core, EventFeed())
    dispatcher.attach(Port())
    register(dispatcher, ready=False)
    assert isinstance(await dispatcher.route(request(dispatcher)), UseProvider)
    dispatcher.reconfigure(GatewayConfig(), (ModelConfig(name="alpha"),))
    answers: dict[str, object] = {}

    async def ask(name: str, *, cloud: bool) -> None:
        asked = msgspec.structs.replace(request(dispatcher), cloud=cloud)
        answers[name] = await dispatcher.route(asked)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(ask, "first", cloud=True))
        await trio.testing.wait_all_tasks_blocked()
        dispatcher.reconfigure(GatewayConfig(), (ModelConfig(name="alpha", fallback=chain),))
        nursery.start_soon(partial(ask, "second", cloud=False))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert list(answers) == ["first"]
    assert isinstance(answers["first"], UseProvider)
