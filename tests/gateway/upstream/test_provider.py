"""One provider over real HTTP, and the guard of its connection pool."""

import functools
import random
from typing import Any

import httpx
import pytest
import trio
import trio.testing

from config import ProviderConfig
from gateway.upstream import Provider, ProviderCut, ProviderFailed
from gateway.upstream.pool import ClientPool, num_stuck
from tests.fakes.provider import FakeProvider, open_provider

RAW = {"model": "alias", "messages": [{"role": "user", "content": "Hi"}], "stream": True}


def provider_of(fake: FakeProvider, *, read_s: float = 10.0) -> Provider:
    return Provider("far", ProviderConfig(base_url=fake.base_url, read_s=read_s), None)


async def test_the_request_is_not_changed() -> None:
    """The caller's dict stays as it is although the name is rewritten, and the usage asked for, on
    the way.
    """
    async with open_provider() as fake:
        provider = provider_of(fake)
        await provider.stream(RAW, "large", lambda _: None)
        assert RAW["model"] == "alias"
        assert fake.requests[0].body == {
            **RAW,
            "model": "large",
            "stream_options": {"include_usage": True},
        }
        assert "authorization" not in fake.requests[0].headers
        await provider.aclose()


async def test_silence_in_the_middle_cuts_the_answer() -> None:
    """After `read_s` without a byte the answer is cut, however long it ran before."""
    events: list[bytes] = []
    async with open_provider(FakeProvider(first_delay_s=60.0)) as fake:
        fake.comments = 1
        fake.events = lambda *_: [b"data: 1\n\n", b"data: 2\n\n"]  # type: ignore[method-assign]
        provider = provider_of(fake, read_s=0.1)
        with pytest.raises(ProviderCut):
            await provider.stream(RAW, "large", events.append)
        assert events == [b"data: 1\n\n"]
        await provider.aclose()


@pytest.mark.parametrize("fault", [{"linger_s": 60.0}, {"breaks": True, "extra": {}}])
async def test_an_answer_is_over_when_it_says_so(fault: dict[str, Any]) -> None:
    """After [DONE] nothing is awaited, and what becomes of the connection is no error."""
    events: list[bytes] = []
    fake = FakeProvider(**fault)
    async with open_provider(fake):
        provider = provider_of(fake)
        with trio.fail_after(5):
            assert await provider.stream(RAW, "large", events.append) is None
        assert b"".join(events) == b"".join(fake.events("large"))
        await provider.aclose()


async def test_the_deadline_and_the_first_token_in_the_same_moment(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Either the answer counts or nothing of it was passed on: another may be asked then."""
    events: list[bytes] = []
    fake = FakeProvider(before_first=lambda: mock_clock.jump(61.0))
    async with open_provider(fake):
        provider = provider_of(fake)
        with pytest.raises(ProviderFailed):
            await provider.stream(RAW, "large", events.append)
        assert events == []
        await provider.aclose()


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"\xff"])
async def test_a_web_page_is_no_answer(body: bytes) -> None:
    """A 200 or a 4xx that is not a JSON object is a failure of the provider."""
    async with open_provider(FakeProvider(status=400, error_body=body)) as fake:
        provider = provider_of(fake)
        with pytest.raises(ProviderFailed):
            await provider.complete(RAW, "large")
        await provider.aclose()


async def test_a_redirect_is_not_followed() -> None:
    """The key goes to the configured address only."""
    fake = FakeProvider(status=302, headers={"location": "http://127.0.0.1:9/"})
    async with open_provider(fake):
        provider = provider_of(fake)
        with pytest.raises(ProviderFailed, match="far answered 302"):
            await provider.complete(RAW, "large")
        await provider.aclose()


async def test_leaked_connections_replace_the_client() -> None:
    """A slot that is still connecting while nothing is requested makes the pool start anew."""
    async with open_provider() as fake:
        pool = ClientPool(functools.partial(httpx.AsyncClient, trust_env=False))
        async with pool.client() as first:
            connection = _stuck_connection(first, fake.base_url)
            assert num_stuck(first) == 1
        assert pool.num_replaced == 1
        assert connection is not None
        async with pool.client() as second:
            assert second is not first
            assert num_stuck(second) == 0
        assert pool.num_replaced == 1
        await pool.aclose()


def _stuck_connection(client: httpx.AsyncClient, url: str) -> object:
    """A connection as a cancelled request can leave it: in the pool, never connected."""
    transport = client._transport
    assert isinstance(transport, httpx.AsyncHTTPTransport)
    pool = transport._pool
    import httpcore

    connection = pool.create_connection(httpcore.URL(url).origin)
    pool._connections.append(connection)
    return connection


async def test_requests_cancelled_at_random_times_leave_a_pool_that_serves() -> None:
    """After many cancelled requests the provider still answers."""
    rng = random.Random(7)
    async with open_provider(FakeProvider(delay_s=0.005)) as fake:
        provider = provider_of(fake)

        async def cancelled(after_s: float) -> None:
            with trio.move_on_after(after_s):
                await provider.stream(RAW, "large", lambda _: None)

        async with trio.open_nursery() as nursery:
            for _ in range(60):
                nursery.start_soon(cancelled, rng.uniform(0, 0.05))
        fake.delay_s = 0
        with trio.fail_after(20):
            assert await provider.stream(RAW, "large", lambda _: None) is None
        await provider.aclose()
