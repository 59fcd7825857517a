"""What a provider says of one model there says nothing about the others: neither a pause that it
asks for, nor a refusal of the model.
"""

import msgspec
import pytest
import trio

from config import FallbackConfig
from gateway.app import edge_of
from gateway.http.routes import edge_app
from gateway.routing.breaker import FAILURES
from gateway.telemetry import EventFeed
from gateway.turn.provider_health import ProviderHealth
from tests.fakes.provider import FakeProvider, open_provider
from tests.fakes.running_gateway import chain_of, open_gateway
from tests.fakes.served import ask, served

ONE, TWO = FallbackConfig("cloud", "one"), FallbackConfig("cloud", "two")
OTHER = FallbackConfig("other", "one")


def health() -> tuple[ProviderHealth, EventFeed]:
    feed = EventFeed()
    return ProviderHealth(["cloud", "other"], feed), feed


async def test_a_pause_is_of_one_model(autojump_clock: trio.abc.Clock) -> None:
    """A pause is of one model, for as long as it was asked for, whatever answers meanwhile."""
    found, feed = health()
    found.busy(ONE, 60)
    assert found.in_order([ONE]) == ([], 60.0)
    assert found.in_order([ONE, TWO, OTHER]) == ([TWO, OTHER], None)
    assert found.open_names() == {"cloud": True, "other": False}
    found.succeeded(TWO)
    found.succeeded(ONE)  # of a request that was sent before
    assert found.in_order([ONE]) == ([], 60.0)
    await trio.sleep(60)
    assert found.in_order([ONE]) == ([ONE], None)
    assert found.open_names()["cloud"] is False
    assert feed.counts["breaker open"] == 1


async def test_refusals_of_a_model_put_that_model_last(autojump_clock: trio.abc.Clock) -> None:
    """The others of the provider keep their place."""
    found, feed = health()
    for _ in range(FAILURES):
        found.asked(ONE)
        found.model_failed(ONE, "it has no such model")
    assert found.in_order([ONE, OTHER]) == ([OTHER, ONE], None)
    assert found.in_order([TWO, OTHER]) == ([TWO, OTHER], None)
    await trio.sleep(5)
    assert found.in_order([ONE, OTHER]) == ([ONE, OTHER], None)
    found.asked(ONE)
    assert found.in_order([ONE, OTHER]) == ([OTHER, ONE], None)  # the trial is under way
    found.succeeded(ONE)
    assert found.in_order([ONE, OTHER]) == ([ONE, OTHER], None)
    assert (feed.counts["breaker open"], feed.counts["breaker closed"]) == (1, 1)


async def test_failures_of_a_provider_are_of_all_its_models(
    autojump_clock: trio.abc.Clock,
) -> None:
    """One that cannot be reached has no model."""
    found, _ = health()
    for _ in range(FAILURES):
        found.failed("cloud", "it cannot be reached")
    found.busy(ONE, 3)
    assert found.in_order([ONE, TWO, OTHER])[0] == [OTHER, TWO]
    await trio.sleep(4)
    assert found.in_order([ONE, OTHER]) == ([OTHER, ONE], None)


async def test_a_changed_provider_begins_anew(autojump_clock: trio.abc.Clock) -> None:
    """A changed provider begins anew: with another key its models may be there."""
    found, feed = health()
    for _ in range(FAILURES):
        found.model_failed(ONE, "it has no such model")
    found.busy(TWO, 60)
    found.reconfigure(["cloud", "other"], ["cloud"])
    assert found.in_order([ONE, TWO, OTHER]) == ([ONE, TWO, OTHER], None)
    assert feed.counts["breaker closed"] == 1


@pytest.mark.parametrize("status", [404, 403, 429])
async def test_another_model_of_the_provider_answers(status: int) -> None:
    """Another model of the provider answers, through a whole request: nothing is refused, and the
    order of the chain stays.
    """
    fake, second = FakeProvider(status=status, headers={"retry-after": "60"}), FakeProvider()
    if status != 429:
        fake.headers = {}
    async with open_provider(fake), open_provider(second):
        well, tables = chain_of({"p0": fake, "p1": second})
        targets = FallbackConfig("p0", "another"), FallbackConfig("p1", "another")
        gone = msgspec.structs.replace(well, name="gone", fallback=well.fallback[:1])
        well = msgspec.structs.replace(well, name="well", fallback=targets)
        async with (
            open_gateway(models=[gone, well], providers=tables) as gateway,
            served(edge_app(edge_of(gateway.services))) as url,
        ):

            async def reply(model: str) -> tuple[int, str | None]:
                message = {"role": "user", "content": "Hi"}
                body = msgspec.json.encode({"model": model, "messages": [message]})
                got = await ask(url, "POST", "/v1/chat/completions", body)
                return got.status, got.headers.get("x-herma-served-by")

            for _ in range(FAILURES + 1):
                assert (await reply("gone"))[0] == (429 if status == 429 else 502)
            fake.status = 200
            assert await reply("well") == (200, "cloud:p0")
