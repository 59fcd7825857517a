"""Rate limits at the edge: the answer of a refused request, headers, metrics, and none at all."""

import pytest
from trio.testing import MockClock

from config import Config, GatewayConfig, KeyConfig, RateLimitConfig, hash_api_key
from gateway.api.events import ChoiceFinished, Started, TextDelta, Usage
from gateway.http.edge import Edge
from gateway.http.routes import edge_app
from tests.fakes.asgi import STARTED, Script, chat_body, scripted_edge
from tests.fakes.hermes_words import window_in
from tests.fakes.served import Reply, connected, served

SECRET = "herma-sk-one"
OTHER = "herma-sk-other"
CHAT = "/v1/chat/completions"
MESSAGE = b'{"model": "alpha", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}'


def _edge(script: Script, **gateway: RateLimitConfig) -> Edge:
    keys = tuple(
        KeyConfig(name=name, hash=hash_api_key(secret))
        for name, secret in (("one", SECRET), ("other", OTHER))
    )
    edge = scripted_edge(script)
    edge.settings.take(Config(gateway=GatewayConfig(**gateway), keys=keys))
    return edge


async def _ask(url: str, secret: str, target: str = CHAT, body: bytes = b"") -> Reply:
    body = body or chat_body(stream=False)
    async with connected(url) as client:
        return await client.ask("POST", target, body, authorization=f"Bearer {secret}")


async def test_a_key_over_its_limit_gets_429() -> None:
    """A key over its limit gets 429 with Retry-After and the headers of OpenAI, in each API's
    shape; other keys go on.
    """
    script = Script()
    edge = _edge(script, rate_limit=RateLimitConfig(requests_per_minute=2, tokens_per_minute=9_000))
    async with served(edge_app(edge)) as url:
        first = await _ask(url, SECRET)
        assert first.status == 200
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        assert first.headers["x-ratelimit-limit-tokens"] == "9000"
        streamed = await _ask(url, SECRET, body=chat_body(stream=True))
        assert streamed.status == 200
        assert streamed.headers["x-ratelimit-remaining-requests"] == "0"
        refused = await _ask(url, SECRET)
        assert refused.status == 429
        assert 0 < int(refused.headers["retry-after"]) <= 30
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert refused.json["error"]["type"] == "rate_limit_error"
        assert refused.json["error"]["code"] == "rate_limit_exceeded"
        assert window_in(refused.json["error"]["message"]) is None
        anthropic = await _ask(url, SECRET, "/v1/messages", MESSAGE)
        assert anthropic.status == 429
        assert anthropic.json["error"]["type"] == "rate_limit_error"
        assert (await _ask(url, OTHER)).status == 200
        assert len(script.requests) == 3
        async with connected(url) as client:
            metrics = await client.ask("GET", "/metrics")
        line = 'herma_rate_limited_total{name="one",scope="key",unit="requests"} 2.0'
        assert line in metrics.body.decode().splitlines()


async def test_an_address_over_its_limit_gets_429() -> None:
    """Whichever key it sends."""
    edge = _edge(Script(), address_rate_limit=RateLimitConfig(requests_per_minute=1))
    async with served(edge_app(edge)) as url:
        assert (await _ask(url, SECRET)).status == 200
        refused = await _ask(url, OTHER)
    assert refused.status == 429
    assert "[gateway] address_rate_limit" in refused.json["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_pays_what_it_used(stream: bool, mock_clock: MockClock) -> None:
    """The usage of its end, not the estimate of its beginning. The clock stands, so that nothing
    comes back meanwhile.
    """
    assert mock_clock.rate == 0
    usage = Usage(prompt_tokens=70, cached_tokens=64, completion_tokens=30)
    script = Script(STARTED, TextDelta(0, "Hi"), ChoiceFinished(0, "stop"), usage)
    edge = _edge(script, rate_limit=RateLimitConfig(tokens_per_minute=100_000))
    async with served(edge_app(edge)) as url:
        assert (await _ask(url, SECRET, body=chat_body(stream=stream))).status == 200
        later = await _ask(url, SECRET)
    left = int(later.headers["x-ratelimit-remaining-tokens"])
    estimate = len(chat_body(stream=False)) // 4
    assert left == 100_000 - 100 - estimate


async def test_a_minute_later_it_passes(mock_clock: MockClock) -> None:
    """The buckets follow trio's clock."""
    edge = _edge(Script(), rate_limit=RateLimitConfig(requests_per_minute=1))
    limits = edge.settings.rate_limits
    assert limits is not None
    assert limits.charge("one", "::1", 0, edge.now())[1] is None
    assert limits.charge("one", "::1", 0, edge.now())[1] is not None
    mock_clock.jump(60)
    assert limits.charge("one", "::1", 0, edge.now())[1] is None


async def test_a_providers_limits_are_not_shown_beside_our_own() -> None:
    """Two headers of one name would mean nothing; without ours, the provider's pass."""
    far = ((b"x-ratelimit-remaining-tokens", b"7"), (b"openai-version", b"1"))
    started = Started("provider", "", 0, "cloud", "alpha", headers=far)
    script = Script(started, TextDelta(0, "Hi"), ChoiceFinished(0, "stop"), Usage(1, 0, 1))
    edge = _edge(script)
    async with served(edge_app(edge)) as url:
        passed = await _ask(url, SECRET)
        assert passed.headers["x-ratelimit-remaining-tokens"] == "7"
        limit = RateLimitConfig(tokens_per_minute=5_000)
        edge.settings.take(Config(gateway=GatewayConfig(rate_limit=limit)))
        async with connected(url) as client:
            ours = await client.ask("POST", CHAT, chat_body(stream=False))
    assert ours.headers["openai-version"] == "1"
    assert int(ours.headers["x-ratelimit-remaining-tokens"]) > 4_000
    assert "x-ratelimit-remaining-requests" not in ours.headers
