"""Connections to providers that are kept alive, and end just as a request goes out."""

import msgspec
import pytest
import trio

from gateway.routing.breaker import FAILURES
from protocol.transport import http_client
from tests.fakes.provider import FakeProvider, open_provider
from tests.fakes.running_gateway import chain_of, open_gateway
from tests.fakes.scripted_http import ScriptedServer, open_server


async def test_it_is_no_failure_of_the_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request is asked once more, by a new connection, and neither the budget of retries nor
    the breaker knows of it.
    """
    monkeypatch.setattr(http_client, "FRESH_S", 0.0)
    body = FakeProvider().whole("m")
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    one, other = ScriptedServer([head % len(body) + body], num_answers=1), FakeProvider()
    async with open_server(one), open_provider(other):
        model, tables = chain_of({"p0": other, "p1": other})
        tables["p0"] = msgspec.structs.replace(tables["p0"], base_url=one.url)
        async with open_gateway(models=[model], providers=tables) as gateway:
            while gateway.services.retries.may_retry("a test", trio.current_time()):
                pass
            for _ in range(4 * FAILURES):
                asked = await gateway.ask()
                assert asked.error is None
                assert asked.started.served_by == "cloud:p0"
            counts = gateway.services.feed.counts
            assert (counts["provider failed"], counts["breaker open"]) == (0, 0)
        assert len(one.requests) > 4 * FAILURES
        assert not other.requests
