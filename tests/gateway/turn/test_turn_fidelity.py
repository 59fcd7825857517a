"""What passes between a client and a provider, over real HTTP on both sides."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from config import FallbackConfig, ModelConfig, ParamsConfig, ProviderConfig
from gateway.app import edge_of
from gateway.http.routes import edge_app
from protocol.messages import Submit
from tests.fakes.asgi import chat_body
from tests.fakes.provider import KEY, FakeProvider, open_provider
from tests.fakes.running_gateway import open_gateway
from tests.fakes.served import ask, served
from tests.fakes.worker import open_worker, prompt_ids

CHAT = "/v1/chat/completions"
PARAMS = ParamsConfig(set={"store": False}, default={"temperature": 0.2}, drop=("think",))
ALIAS = ParamsConfig(set={"reasoning_effort": "low"})


@asynccontextmanager
async def _gateway_before(
    fake: FakeProvider, session_hint: str | None = None
) -> AsyncIterator[str]:
    """A gateway whose only model is the provider's."""
    async with open_provider(fake):
        model = ModelConfig(
            name="alpha",
            aliases=("quick",),
            alias_params={"quick": ALIAS},
            fallback=(FallbackConfig(provider="far", model="far-large", params=PARAMS),),
        )
        table = ProviderConfig(
            base_url=fake.base_url, api_key_env="PROVIDER_KEY", session_hint=session_hint
        )
        async with (
            open_gateway(models=[model], providers={"far": table}) as gateway,
            served(edge_app(edge_of(gateway.services))) as url,
        ):
            yield url


async def test_headers_and_fields_pass_both_ways() -> None:
    """End-to-end headers and unknown fields arrive at the provider and come back, streamed or not;
    credentials and cookies of either side do not.
    """
    fake = FakeProvider(
        headers={"x-ratelimit-remaining-tokens": "9", "set-cookie": "a=b", "server": "far"}
    )
    async with _gateway_before(fake) as url:
        for stream in (False, True):
            reply = await ask(
                url,
                "POST",
                CHAT,
                chat_body(stream=stream, my_field={"a": [1]}, think=False),
                user_agent="Agent/1",
                x_my_own="yes",
                cookie="c=d",
                authorization="Bearer of-the-client",
            )
            assert reply.status == 200
            assert reply.headers["x-ratelimit-remaining-tokens"] == "9"
            assert "set-cookie" not in reply.headers
            assert reply.headers["x-herma-served-by"] == "cloud:far"
    for request in fake.requests:
        assert request.headers["x-my-own"] == "yes"
        assert request.headers["user-agent"] == "Agent/1"
        assert request.headers["authorization"] == f"Bearer {KEY}"
        assert request.headers["content-type"] == "application/json"
        assert "cookie" not in request.headers
        assert request.body["my_field"] == {"a": [1]}
        assert request.body["model"] == "far-large"
        assert "think" not in request.body
        assert (request.body["store"], request.body["temperature"]) == (False, 0.2)
        assert "reasoning_effort" not in request.body


async def test_an_alias_rewrites_and_the_fallback_after_it() -> None:
    """The alias rewrites the request first, then the fallback; the client reads the name that it
    asked for.
    """
    fake = FakeProvider()
    async with _gateway_before(fake) as url:
        await ask(url, "POST", CHAT, chat_body(model="quick", stream=False, temperature=1))
    (request,) = fake.requests
    assert request.body["reasoning_effort"] == "low"
    assert (request.body["store"], request.body["temperature"]) == (False, 1)


async def test_an_alias_rewrites_what_is_counted_too() -> None:
    """The tokens of a chat are those of the turn that the same alias would make."""
    quiet = ParamsConfig(set={"enable_thinking": False})
    model = ModelConfig(name="alpha", aliases=("quiet",), alias_params={"quiet": quiet})
    async with (
        open_gateway(models=[model]) as gateway,
        open_worker(gateway.address) as worker,
        served(edge_app(edge_of(gateway.services))) as url,
    ):
        await gateway.wait_state("ready")
        bodies = [chat_body(model=name, stream=False) for name in ("alpha", "quiet")]
        counted = [(await ask(url, "POST", "/tokenize", body)).json["tokens"] for body in bodies]
        for body in bodies:
            await ask(url, "POST", CHAT, body)
        assert counted == [prompt_ids(submit) for submit in worker.all_of(Submit)]
    assert counted[0] != counted[1]


async def test_the_session_is_named_as_the_provider_wants_it() -> None:
    """A header of the client becomes a field, or another header, equal for turns of one session."""
    for hint in ("prompt_cache_key", "x-session-affinity"):
        fake = FakeProvider()
        async with _gateway_before(fake, hint) as url:
            for session in ("one", "one", "two"):
                body = chat_body(stream=False)
                await ask(url, "POST", CHAT, body, x_hermes_session_id=session)
        names = [request.headers.get(hint) or request.body.get(hint) for request in fake.requests]
        assert names[0] == names[1] != names[2], hint
        assert all(isinstance(name, str) and len(name) == 32 for name in names)


async def test_a_refusal_of_the_provider_keeps_its_headers() -> None:
    """A 400 about the request itself comes with the provider's request id."""
    fake = FakeProvider(status=400, headers={"x-request-id": "r7"})
    async with _gateway_before(fake) as url:
        reply = await ask(url, "POST", CHAT, chat_body(stream=True))
    assert (reply.status, reply.headers["x-request-id"]) == (400, "r7")
    assert msgspec.json.decode(reply.body)["error"]["code"] == "y"
