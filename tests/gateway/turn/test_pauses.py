"""Pauses that providers ask for: a short rest of one is waited for, by a bounded number."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from config import FallbackConfig
from gateway.telemetry import EventFeed
from gateway.turn.fallback_chain import MAX_WAITING, PAUSE_WAIT_S, in_time
from gateway.turn.provider_health import ProviderHealth
from tests.fakes.provider import FakeProvider, open_provider
from tests.fakes.running_gateway import chain_of, open_gateway

TARGET = FallbackConfig(provider="p", model="m")
CHAIN = (TARGET,)


def paused(seconds: int) -> Any:
    """Services whose only provider has asked for a pause."""
    health = ProviderHealth(["p"], EventFeed())
    health.busy(TARGET, seconds)
    return SimpleNamespace(health=health)


async def test_a_short_rest_is_waited_for(autojump_clock: MockClock) -> None:
    """A short pause is waited for: no request goes to the provider before its end; with a longer
    pause the client is told at once.
    """
    del autojump_clock
    services = paused(30)
    assert await in_time(services, CHAIN) == ([], 30.0)
    await trio.sleep(14)  # pi's last try
    began_at = trio.current_time()
    assert await in_time(services, CHAIN) == ([TARGET], None)
    assert trio.current_time() - began_at == pytest.approx(16)
    assert services.health.num_waiting == 0
    assert PAUSE_WAIT_S >= 16


async def test_a_pause_that_grows_meanwhile_is_told(autojump_clock: MockClock) -> None:
    del autojump_clock
    services = paused(10)
    async with trio.open_nursery() as nursery:

        async def grow() -> None:
            await trio.sleep(5)
            services.health.busy(TARGET, 60)

        nursery.start_soon(grow)
        assert await in_time(services, CHAIN) == ([], 55.0)


async def test_those_who_wait_are_bounded(autojump_clock: MockClock) -> None:
    """The number of requests that wait is bounded, and one that leaves makes room."""
    del autojump_clock
    services = paused(10)
    async with trio.open_nursery() as nursery:
        for _ in range(MAX_WAITING):
            nursery.start_soon(in_time, services, CHAIN)
        await wait_all_tasks_blocked()
        assert services.health.num_waiting == MAX_WAITING
        assert await in_time(services, CHAIN) == ([], 10.0)
        nursery.cancel_scope.cancel()
    assert services.health.num_waiting == 0


async def test_a_turn_waits() -> None:
    """A turn waits for the one provider, streamed and whole: it is asked once more, and answers."""
    for stream in (True, False):
        fake = FakeProvider(status=429, headers={"retry-after": "1"})
        async with open_provider(fake):
            model, tables = chain_of({"p0": fake})
            async with open_gateway(models=[model], providers=tables) as gateway:
                refused = await gateway.ask()
                assert refused.error is not None
                fake.status = 200
                assert (await gateway.ask(stream=stream)).error is None
        assert len(fake.requests) == 2
