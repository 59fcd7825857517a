"""Refusals that concern an account at a provider, or the name of a model there: the next provider
is asked, whatever their status is, and no client reads of them.
"""

import json
from dataclasses import dataclass
from typing import Any

import h11
import msgspec
import pytest
import trio

from gateway.app import edge_of
from gateway.http.routes import edge_app
from gateway.upstream.retry_after import retry_after_in
from tests.fakes.provider import KEY, FakeProvider, open_provider
from tests.fakes.running_gateway import chain_of, open_gateway
from tests.fakes.served import ask, served
from tests.gateway.http.test_ends_of_others import each_api, each_way
from tests.gateway.http.test_odd_answers import APIS, OddProvider, asked, event, said_of

Body = dict[str, Any] | list[dict[str, Any]]

REFUSALS: dict[str, tuple[int, Body]] = {
    "google's key": (
        400,
        [
            {
                "error": {
                    "code": 400,
                    "message": "API key not valid. Please pass a valid API key.",
                    "status": "INVALID_ARGUMENT",
                    "details": [{"reason": "API_KEY_INVALID", "domain": "googleapis.com"}],
                }
            }
        ],
    ),
    "google's place": (
        400,
        [{"error": {"code": 400, "message": "User location is not supported for the API use."}}],
    ),
    "xai's key": (
        400,
        {
            "code": "Client specified an invalid argument",
            "error": "Incorrect API key provided: xa***ey. You can obtain an API key from there.",
        },
    ),
    "anthropic's credit": (
        400,
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": "Your credit balance is too low to access the API.",
            },
        },
    ),
    "anthropic's organization": (
        400,
        {"error": {"message": "This organization has been disabled.", "type": "x"}},
    ),
    "alibaba's account": (
        400,
        {
            "error": {
                "code": "Arrearage",
                "message": "Access denied, please make sure your account is in good standing.",
            }
        },
    ),
    "openai's organization": (
        400,
        {"error": {"message": "Your organization must be verified to stream this model."}},
    ),
    "deepseek's model": (
        400,
        {"error": {"message": "Model Not Exist", "code": "invalid_request_error"}},
    ),
    "openrouter's model": (400, {"error": {"message": "a/b-1.5 is not a valid model ID"}}),
    "a model of 400": (400, {"error": {"message": "The model `m-1.5` does not exist"}}),
    "groq's model": (400, {"error": {"message": "Gone.", "code": "model_decommissioned"}}),
    "groq's call": (400, {"error": {"message": "Failed to call.", "code": "tool_use_failed"}}),
    "groq's minute": (
        413,
        {
            "error": {
                "message": "Request too large for model `x` on tokens per minute (TPM): Limit "
                "6000, Requested 8311, please reduce your message size and try again.",
                "code": "rate_limit_exceeded",
            }
        },
    ),
    "amazon's model": (
        400,
        {"message": "Invocation of model ID x with on-demand throughput isn't supported."},
    ),
}


@each_api
@each_way
@pytest.mark.parametrize("name", sorted(REFUSALS))
async def test_the_next_provider_answers(api: str, stream: bool, name: str) -> None:
    """The next provider answers; a client that has only the first gets a failure that a retry may
    cure, without the provider's words.
    """
    status, body = REFUSALS[name]
    data = json.dumps(body).encode()
    reply = await asked(api, OddProvider(status=status, body=data), FakeProvider(), stream=stream)
    assert reply.headers["x-herma-served-by"] == "cloud:p1"
    reply = await asked(api, OddProvider(status=status, body=data), stream=stream)
    assert reply.status == 502
    told = reply.json["error"]["message"]
    assert told == f"No provider could answer: p0 failed with status {status}."


async def test_operators_read_why() -> None:
    """Operators read why in the event, without the key that some providers quote."""
    text = f"Incorrect API key provided: {KEY}. You can obtain one from https://console.x.ai."
    fake = OddProvider(status=400, body=json.dumps({"error": text}).encode())
    async with open_provider(fake):
        model, tables = chain_of({"p0": fake})
        async with open_gateway(models=[model], providers=tables) as gateway:
            with gateway.services.feed.listen() as listener:
                assert (await gateway.ask()).error is not None
                told = str(listener.take())
    assert "failed with status 400: Incorrect API" in told
    assert KEY not in told
    assert "x.ai" not in told


PLAIN: list[tuple[int, str]] = [
    (400, "Unsupported parameter: 'x' is not supported with this model."),
    (400, "'messages' must contain the word 'json' in some form"),
    (400, "The image is not in a format that the model reads."),
    (413, "Request too large: please reduce your message size."),
    (422, "Extra inputs are not permitted"),
]


@pytest.mark.parametrize(("status", "text"), PLAIN)
async def test_other_refusals_stay_the_client_s(status: int, text: str) -> None:
    """Another provider would refuse them, too."""
    fake = OddProvider(status=status, body=json.dumps({"error": {"message": text}}).encode())
    reply = await asked("chat", fake, FakeProvider(), stream=False)
    assert (reply.status, reply.json["error"]["message"]) == (status, text)


PAUSES: list[tuple[Any, int | None]] = [
    ([{"error": {"code": 429, "details": [{"@type": "x", "retryDelay": "31s"}]}}], 31),
    ([{"error": {"code": 429, "details": [{"retryDelay": "0.5s"}]}}], 1),
    ([{"error": {"code": 429, "details": [{"retryDelay": "34.074824224s"}]}}], 35),
    ([{"error": {"code": 429, "details": [{"retryDelay": "134.074824224s"}]}}], 135),
    ({"error": {"code": 429, "message": "Please retry in 26.353781093s."}}, 27),
    ({"error": {"code": 429, "message": "Please retry in 1h2m26.353781093s."}}, 600),
    ({"error": {"message": "Quota exceeded. Please retry in 31.53s."}}, 32),
    ({"error": {"message": "Rate limit reached. Please try again in 20s. Visit x."}}, 20),
    ({"error": {"message": "Please try again in 1m2.5s."}}, 63),
    ({"error": {"message": "Please try again in 6ms."}}, 1),
    ({"error": {"message": "Please try again in 1h12m3s."}}, 600),
    ({"error": {"message": "Calls exceed the rate limit. Please retry after 24 seconds."}}, 24),
    ({"error": {"message": "Try again after 2 minutes and 5 secs."}}, 125),
    ({"error": {"message": "Retrying in about 1 hour."}}, 600),
    ({"error": {"message": "Please try again after the 5 models."}}, None),
    ({"error": {"message": "Please try again in 5 months."}}, None),
    ({"error": {"message": "Please try again in a moment."}}, None),
    ({"error": {"message": "Please try again in 3 days."}}, None),
    ({"error": {"message": "Please try again in ...s."}}, None),
]


@pytest.mark.parametrize(("body", "pause_s"), PAUSES)
async def test_a_limit_without_a_header_may_say_its_pause(body: Any, pause_s: int | None) -> None:
    """A limit without a header may say its pause in the words or details of its body; the client is
    told the same pause, and no other words.
    """
    data = json.dumps(body).encode()
    assert retry_after_in(data) == pause_s
    reply = await asked("chat", OddProvider(status=429, body=data), stream=False)
    assert reply.status == 429
    assert reply.headers["retry-after"] == str(min(pause_s or 5, 60))
    assert b"again" not in reply.body


@each_way
@pytest.mark.parametrize("code", [429, "429", "rate_limit_exceeded", "Throttling.RateQuota", None])
async def test_a_limit_in_an_answer_says_its_pause_too(stream: bool, code: object) -> None:
    """Providers that have sent comments before say 200: the pause holds for client and provider,
    and a code in words is a limit as well.
    """
    kind = None if code is not None else "rate_limit_error"
    words = "Rate limit reached. Please try again in 41s."
    told = json.dumps({"error": {"message": words, "code": code, "type": kind}}).encode()
    fake = OddProvider(body=told, streamed=b": working\n\ndata: " + told + b"\n\n")
    async with open_provider(fake):
        model, tables = chain_of({"p0": fake})
        async with open_gateway(models=[model], providers=tables) as gateway:
            for _ in range(2):
                error = (await gateway.ask(stream=stream)).error
                assert error is not None
                assert error.status == 429
                assert error.retry_after_s in (40, 41)
    assert len(fake.requests) == 1


NO_CREDIT = {
    "error": {
        "message": "You exceeded your current quota, please check your plan and billing details.",
        "type": "insufficient_quota",
        "code": "insufficient_quota",
    }
}


@each_way
@pytest.mark.parametrize("status", [429, 200])
async def test_a_limit_that_no_waiting_ends_is_an_account_without_credit(
    stream: bool, status: int
) -> None:
    """OpenAI says 429 to it: clients would ask again for ever. The next provider answers, the
    operator reads what to do, and a client of the first alone does not read that it is busy.
    """
    error = NO_CREDIT["error"] if status == 429 else {**NO_CREDIT["error"], "code": 429}
    told = json.dumps({"error": error}).encode()
    fake = OddProvider(status=status, body=told, streamed=b"data: " + told + b"\n\n")
    reply = await asked("chat", fake, FakeProvider(), stream=stream)
    assert reply.headers["x-herma-served-by"] == "cloud:p1"
    async with open_provider(fake):
        model, tables = chain_of({"p0": fake})
        async with open_gateway(models=[model], providers=tables) as gateway:
            with gateway.services.feed.listen() as listener:
                refused = (await gateway.ask(stream=stream)).error
                event = str(listener.take())
    assert refused is not None
    assert (refused.status, refused.retry_after_s) == (502, None)
    assert "quota" not in refused.message
    assert "exceeded your current quota" in event
    assert "its account has no credit" in event


async def test_a_quota_that_names_a_time_is_a_limit() -> None:
    """Google says the same words to too many requests per minute."""
    for body, pause_s in (
        ([{**NO_CREDIT, "details": [{"retryDelay": "31s"}]}], "31"),
        ({"error": {**NO_CREDIT["error"], "code": 429, "status": "RESOURCE_EXHAUSTED"}}, "5"),
    ):
        fake = OddProvider(status=429, body=json.dumps(body).encode())
        reply = await asked("chat", fake, stream=False)
        assert (reply.status, reply.headers["retry-after"]) == (429, pause_s)


def _error(code: object) -> bytes:
    return json.dumps({"error": {"message": "No credit at all.", "code": code}}).encode()


@each_api
@each_way
@pytest.mark.parametrize(("code", "status"), [(429, 429), ("429", 429), (402, 502), (500, 502)])
async def test_an_error_names_its_status(api: str, stream: bool, code: object, status: int) -> None:
    """Servers that have sent comments before can say 200 only: such a provider is busy, or refuses
    our account, all the same.
    """
    told = b": working\n\ndata: " + _error(code) + b"\n\n"
    reply = await asked(api, OddProvider(body=_error(code), streamed=told), stream=stream)
    assert reply.status == status
    assert ("retry-after" in reply.headers) is (status == 429)
    assert (b"No credit" in reply.body) is (code != 402)


@each_api
async def test_an_account_s_error_within_an_answer_has_no_words(api: str) -> None:
    """What has begun is cut as by any other failure."""
    told = event(choices=[{"index": 0, "delta": {"content": "Hello"}}])
    fake = OddProvider(streamed=told + b"data: " + _error(402) + b"\n\n")
    reply = await asked(api, fake, stream=True)
    assert reply.status == 200
    assert b"upstream connection lost" in reply.body
    assert b"No credit" not in reply.body


@dataclass
class KnowsNoUsage(FakeProvider):
    """Refuses the field by which a stream is asked for its usage, as older servers do."""

    async def _answer(
        self, stream: trio.abc.Stream, parser: h11.Connection, body: dict[str, Any]
    ) -> None:
        words = "Unrecognized request argument supplied: stream_options"
        self.status = 400 if "stream_options" in body else 200
        self.error_body = json.dumps({"error": {"message": words}}).encode()
        await super()._answer(stream, parser, body)


@each_api
async def test_a_field_that_the_gateway_adds_refuses_no_stream(
    api: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The provider is asked once more without it, and from then on at once."""
    fake = KnowsNoUsage()
    async with open_provider(fake):
        model, tables = chain_of({"p0": fake})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            served(edge_app(edge_of(gateway.services))) as url,
        ):
            path, fields = APIS[api]
            body = msgspec.json.encode({"model": "alpha", "stream": True, **fields})
            for _ in range(2):
                reply = await ask(url, "POST", path, body)
                assert said_of(api, reply, stream=True)["text"] == "Hello from afar"
    assert ["stream_options" in one.body for one in fake.requests] == [True, False, False]
    assert caplog.text.count("p0 refuses `stream_options`") == 1


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "an option of the client's": (
        {"stream_options": {"include_usage": True, "include_obfuscation": 7}},
        {"error": {"message": "Invalid type for 'stream_options.include_obfuscation'."}},
    ),
    "the request is told back": (
        {},
        {
            "detail": [
                {
                    "loc": ["body", "messages"],
                    "msg": "Field required",
                    "input": {"stream_options": {"include_usage": True}},
                }
            ]
        },
    ),
    "it is refused without the field too": (
        {},
        {"error": {"message": "stream_options need stream, and messages are missing"}},
    ),
}


@pytest.mark.parametrize("why", sorted(REFUSED))
async def test_a_client_s_fault_does_not_end_the_count_of_streams(
    why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One bad request would set all later streams of a provider to their worst case."""
    fields, refusal = REFUSED[why]
    fake = FakeProvider(status=400, error_body=json.dumps(refusal).encode())
    async with open_provider(fake):
        model, tables = chain_of({"p0": fake})
        async with open_gateway(models=[model], providers=tables) as gateway:
            refused = await gateway.ask(stream=True, **fields)
            assert json.loads(refused.upstream)["error"]["message"]
            fake.status = 200
            assert (await gateway.ask(stream=True)).error is None
    assert fake.requests[-1].body["stream_options"] == {"include_usage": True}
    assert "refuses `stream_options`" not in caplog.text


async def test_a_refusal_without_words_is_in_the_api_s_form() -> None:
    """Clients look for an error with a message."""
    for body in (b"{}", b'{"error": null}'):
        fake = OddProvider(status=422, body=body)
        for api in ("chat", "messages", "responses"):
            reply = await asked(api, fake, stream=False)
            assert reply.status == 422
            assert reply.json["error"]["message"]
