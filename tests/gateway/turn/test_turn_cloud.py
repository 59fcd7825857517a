"""Turns that providers answer: a real HTTP server on loopback, reached through the real client."""

import json
from typing import Any

import pytest
import trio

from gateway.turn.caller import Caller
from protocol.messages import Submit
from protocol.transport import http_client
from tests.fakes.provider import KEY, FakeProvider, open_provider
from tests.fakes.running_gateway import Asked, RunningGateway, chain_of, open_gateway, wait_until
from tests.fakes.scripted_http import ScriptedServer, open_server
from tests.fakes.text_files import CHAT_TEMPLATE, make_text_files
from tests.fakes.worker import PATIENCE_S, FakeWorker, open_worker

REFUSED = {"role": "user", "content": "Not this."}
REFUSING_TEMPLATE = (
    "{%- if messages[-1].content == 'Not this.' %}{{ raise_exception('not this') }}{% endif %}"
    + CHAT_TEMPLATE
)


async def ask_chain(*fakes: FakeProvider, first_token_s: float = 10.0, **fields: Any) -> Asked:
    """A turn of a gateway without workers that has these providers, `p0` first."""
    async with trio.open_nursery() as nursery:
        for fake in fakes:
            await nursery.start(fake.serve)
        named = {f"p{at}": fake for at, fake in enumerate(fakes)}
        model, tables = chain_of(named, first_token_s=first_token_s)
        async with open_gateway(models=[model], providers=tables) as gateway:
            asked = await gateway.ask(**fields)
        nursery.cancel_scope.cancel()
    return asked


def assert_nothing_internal(asked: Asked, *fakes: FakeProvider) -> None:
    assert asked.error is not None
    for fake in fakes:
        assert fake.base_url not in asked.error.message
        assert fake.base_url.split("/")[2] not in asked.error.message
    assert KEY not in asked.error.message


async def test_a_stream_passes_unchanged() -> None:
    """The provider's bytes, unknown fields included, reach the client; only the name differs."""
    fake = FakeProvider()
    asked = await ask_chain(fake, stream=True, my_field={"a": [1]})
    assert asked.upstream == b"".join(fake.events("p0-large"))
    assert asked.started.served_by == "cloud:p0"
    (request,) = fake.requests
    assert request.path == "/v1/chat/completions"
    assert request.body["model"] == "p0-large"
    assert request.body["my_field"] == {"a": [1]}
    assert request.headers["authorization"] == f"Bearer {KEY}"


async def test_tokens_of_a_stream_are_counted_while_they_pass() -> None:
    """Before the usage is known, which comes at the end or never."""
    released, seen = trio.Event(), []
    caller = Caller()
    fake = FakeProvider(words=("one", " two", " three"), go_on=released, comments=2)
    async with open_provider(fake) as provider:
        model, tables = chain_of({"p0": provider})
        async with open_gateway(models=[model], providers=tables) as gateway:
            asked = gateway.start(caller, stream=True)
            seen.append(caller.trace.turn.output_tokens)
            released.set()
            with trio.fail_after(PATIENCE_S):
                await asked.over.wait()
    assert seen == [0]
    assert caller.trace.usage is None
    assert caller.trace.output_tokens == asked.upstream.count(b'"content"') >= 3


async def test_a_whole_answer_passes_unchanged() -> None:
    """The provider's body, unknown fields included, reaches the client."""
    fake = FakeProvider()
    asked = await ask_chain(fake)
    assert asked.upstream == fake.whole("p0-large")
    assert asked.started.served_by == "cloud:p0"


async def test_the_next_provider_answers_for_one_that_fails() -> None:
    """Failures before the first byte are not seen by the client."""
    for status in (401, 403, 404, 408, 429, 499, 500, 503):
        asked = await ask_chain(FakeProvider(status=status), FakeProvider(), stream=True)
        assert asked.started.served_by == "cloud:p1", status
        assert asked.error is None


async def test_a_provider_without_a_first_token_is_left() -> None:
    """The first-token deadline counts per provider, and comments are no token."""
    slow = FakeProvider(first_delay_s=60.0, comments=1)
    asked = await ask_chain(slow, FakeProvider(), first_token_s=0.5, stream=True)
    assert asked.started.served_by == "cloud:p1"


async def test_an_error_event_instead_of_an_answer_is_a_failure() -> None:
    """A 200 whose first event is an error moves on to the next provider."""
    asked = await ask_chain(FakeProvider(stream_error=True), FakeProvider(), stream=True)
    assert asked.started.served_by == "cloud:p1"


async def test_a_stream_cut_in_the_middle_is_an_error_that_clients_retry() -> None:
    """What came whole is passed on, then `upstream connection lost`; nobody else continues it."""
    other = FakeProvider()
    fake = FakeProvider(cut_after=2)
    asked = await ask_chain(fake, other, stream=True)
    assert asked.upstream == b"".join(fake.events("p0-large")[:2])
    assert asked.error is not None
    assert asked.error.message == "upstream connection lost"
    assert not other.requests


async def test_a_stream_without_its_end_is_cut() -> None:
    """A stream that closes cleanly, but without a reason for its end, was cut by somebody in
    between.
    """
    asked = await ask_chain(FakeProvider(ends=False, finish=None), stream=True)
    assert asked.error is not None
    assert asked.error.message == "upstream connection lost"


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"id": "up-1", "choices": []}',
        b'{"id": "up-1", "choices": null}',
        b'{"id": "up-1", "choices": [null]}',
        b'{"id": "up-1", "choices": [{"index": 0, "message": null, "finish_reason": "stop"}]}',
    ],
)
async def test_a_whole_answer_without_a_message_is_asked_elsewhere(body: bytes) -> None:
    """A whole answer without a message is asked elsewhere, as a stream that says nothing; agents
    read `choices[0].message` of whatever is a 200.
    """
    empty = FakeProvider(words=())
    empty.whole = lambda _model: body  # type: ignore[method-assign]
    asked = await ask_chain(empty, FakeProvider())
    assert asked.started.served_by == "cloud:p1"
    alone = await ask_chain(empty)
    assert alone.error is not None
    assert alone.error.code == "no_provider_answered"


async def test_a_whole_answer_of_no_words_is_an_answer() -> None:
    """A model may end at once, and one that calls tools need not say anything."""
    quiet = FakeProvider()
    message = {"role": "assistant", "content": None}
    body = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
    quiet.whole = lambda _model: body  # type: ignore[method-assign]
    asked = await ask_chain(quiet, FakeProvider())
    assert asked.upstream == body


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_kept_connection_that_ends_costs_no_answer(
    stream: bool, resets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers close idle connections just when the next request is on its way there: the only
    provider is asked again, by a new connection.
    """
    monkeypatch.setattr(http_client, "FRESH_S", 0.0)
    fake = FakeProvider()
    body = b"".join(fake.events("m")) if stream else fake.whole("m")
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
    server = ScriptedServer([head + body], resets=resets, num_answers=1)
    async with open_server(server):
        fake.base_url = server.url
        model, tables = chain_of({"p0": fake})
        async with open_gateway(models=[model], providers=tables) as gateway:
            for _ in range(3):
                asked = await gateway.ask(stream=stream)
                assert (asked.error, asked.upstream) == (None, body)
    assert (server.num_connections, len(server.requests)) == (3, 5)


async def test_a_provider_that_ends_every_connection_is_left() -> None:
    """A provider that ends every connection is left: it is asked a second time only if the
    connection had been kept alive.
    """
    server = ScriptedServer([], num_answers=0)
    async with open_server(server):
        fake = FakeProvider(base_url=server.url)
        model, tables = chain_of({"p0": fake})
        async with open_gateway(models=[model], providers=tables) as gateway:
            asked = await gateway.ask()
    assert asked.error is not None
    assert len(server.requests) == 1


async def test_a_cut_whole_answer_is_asked_elsewhere() -> None:
    """Nothing of it was passed on, so the next provider may answer."""
    asked = await ask_chain(FakeProvider(cut_after=0), FakeProvider())
    assert asked.started.served_by == "cloud:p1"


async def test_a_refusal_of_the_request_itself_is_passed_on() -> None:
    """A 4xx about the request would be the same elsewhere: the client gets it as it is."""
    body = json.dumps({"error": {"message": "bad tool schema", "x_more": 1}}).encode()
    for fields in ({}, {"stream": True}):
        other = FakeProvider()
        asked = await ask_chain(FakeProvider(status=400, error_body=body), other, **fields)
        assert asked.upstream == body
        assert not other.requests


async def test_when_nobody_answers_the_client_learns_who_failed_but_not_where() -> None:
    """The error names providers as configured, no address and no key."""
    fakes = FakeProvider(status=500), FakeProvider(status=401)
    asked = await ask_chain(*fakes, stream=True)
    assert asked.error is not None
    assert asked.error.status == 502
    says = "No provider could answer: p0 failed with status 500: no; p1 failed with status 401."
    assert asked.error.message == says
    assert_nothing_internal(asked, *fakes)


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (401, "api_key_env or api_key_file of [providers.p0]"),
        (402, "no credit"),
        (403, "may not do this"),
        (500, "p0 failed with status 500: no"),
    ],
)
async def test_an_operator_learns_what_a_provider_wants_and_a_client_does_not(
    status: int, remedy: str
) -> None:
    """What an account lacks stands in the events, hence in log, dashboard and alerts."""
    fake = FakeProvider(status=status)
    async with open_provider(fake) as provider:
        model, tables = chain_of({"p0": provider})
        async with open_gateway(models=[model], providers=tables) as gateway:
            asked = await gateway.ask()
            published = [one.json.decode() for one in gateway.services.feed.recent]
    (failed,) = [one for one in published if '"provider failed"' in one]
    assert remedy in failed
    assert asked.error is not None
    assert status == 500 or remedy not in asked.error.message


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("told", "reads"),
    [
        ({"error": {"message": "Model is cold."}}, "p0 failed with status 503: Model is cold"),
        ({"detail": "no GPU for {key}"}, "p0 failed with status 503: no GPU for [redacted]"),
        ("<html>x</html>", "p0 failed with status 503"),
    ],
)
async def test_the_words_of_a_failing_provider_reach_the_client(
    told: object, reads: str, *, stream: bool
) -> None:
    """The words of a failing provider reach the client as an error in the client's form, without
    secrets; web pages say nothing to clients.
    """
    text = told if isinstance(told, str) else json.dumps(told).replace("{key}", KEY)
    asked = await ask_chain(FakeProvider(status=503, error_body=text.encode()), stream=stream)
    assert asked.error is not None
    assert asked.error.message == f"No provider could answer: {reads}."


SOUND = [
    {"type": "text", "text": "What is this?"},
    {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}, "x": [1]},
]


@pytest.mark.parametrize("messages", [[{"role": "user", "content": SOUND}], [REFUSED]])
async def test_what_the_template_cannot_show_goes_to_a_provider(
    messages: list[dict[str, Any]],
) -> None:
    """Content that no worker can read is not refused while a provider may take it."""
    refusing = make_text_files(template=REFUSING_TEMPLATE)
    async with open_provider() as fake:
        model, tables = chain_of({"p0": fake})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            open_worker(gateway.address, FakeWorker(files=refusing)) as worker,
        ):
            await gateway.wait_state("ready")
            asked = await gateway.ask(messages=messages)
            assert asked.started.served_by == "cloud:p0"
            assert fake.requests[0].body["messages"] == messages
            assert not worker.all_of(Submit)
            private = await gateway.ask(Caller(cloud=False), messages=messages)
            assert private.error is not None
            assert private.error.status == 400
            fake.status = 500
            failed = await gateway.ask(messages=messages)
            assert failed.error is not None
            assert failed.error.status == 502


async def test_a_tool_of_a_server_goes_to_a_provider() -> None:
    """A tool of a server goes to a provider as the client sent it: no worker can run it."""
    tools = [{"type": "web_search", "web_search": {"enable": True}}]
    async with open_provider() as fake:
        model, tables = chain_of({"p0": fake})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            open_worker(gateway.address) as worker,
        ):
            await gateway.wait_state("ready")
            asked = await gateway.ask(tools=tools)
            assert asked.started.served_by == "cloud:p0"
            assert fake.requests[0].body["tools"] == tools
            assert not worker.all_of(Submit)
            private = await gateway.ask(Caller(cloud=False), tools=tools)
            assert private.error is not None
            assert (private.error.status, private.error.code) == (400, "tool_not_served")


@pytest.mark.parametrize("ready", [True, False])
async def test_sound_is_refused_by_its_type_where_nobody_can_hear(ready: bool) -> None:
    """Without a provider the refusal comes at once, whatever the worker does."""
    async with open_gateway() as gateway, open_worker(gateway.address, ready=ready):
        await gateway.wait_state("ready" if ready else "starting")
        asked = await gateway.ask(messages=[{"role": "user", "content": SOUND}])
        assert asked.error is not None
        assert (asked.error.status, asked.error.code) == (400, "unsupported_content_part")
        assert "input_audio" in asked.error.message


async def test_limits_of_all_providers_are_a_limit() -> None:
    """429 everywhere is 429 with the shortest Retry-After."""
    fakes = [FakeProvider(status=429, headers={"retry-after": text}) for text in ("7", "3.2")]
    asked = await ask_chain(*fakes)
    assert asked.error is not None
    assert (asked.error.status, asked.error.retry_after_s) == (429, 4)


@pytest.mark.parametrize("statuses", [(503, 503), (429, 529), (503, 429)])
async def test_busy_providers_say_when_to_come_back(statuses: tuple[int, int]) -> None:
    """SDKs wait for it; without it they give up after two tries within 2 s."""
    fakes = [
        FakeProvider(status=status, headers={"retry-after": text})
        for status, text in zip(statuses, ("30", "7"), strict=True)
    ]
    asked = await ask_chain(*fakes)
    assert asked.error is not None
    assert (asked.error.status, asked.error.retry_after_s) == (503, 7)


async def test_a_failure_without_a_time_names_none() -> None:
    """One provider's time says nothing of the other that failed."""
    asked = await ask_chain(
        FakeProvider(status=503, headers={"retry-after": "30"}), FakeProvider(status=500)
    )
    assert asked.error is not None
    assert (asked.error.status, asked.error.retry_after_s) == (502, None)


async def test_an_unreachable_provider_is_left() -> None:
    """A closed port fails at once, without its address in any text."""
    closed = FakeProvider(base_url="http://127.0.0.1:9/v1")
    model, tables = chain_of({"p0": closed})
    async with open_gateway(models=[model], providers=tables) as gateway:
        asked = await gateway.ask()
    assert_nothing_internal(asked, closed)


async def test_a_client_that_leaves_ends_the_exchange() -> None:
    """Cancelling the turn closes the provider's connection."""
    fake = FakeProvider(words=("a",) * 10_000, extra={"x": "y" * 1000})
    async with open_provider(fake):
        model, tables = chain_of({"p0": fake})
        async with open_gateway(models=[model], providers=tables) as gateway:
            asked = gateway.start(stream=True)
            with trio.fail_after(PATIENCE_S):
                while not asked.upstream:  # noqa: ASYNC110 - the events have no end to wait for
                    await trio.sleep(0.001)
                asked.scope.cancel()
                await fake.gone.wait()


async def down_and_up(gateway: RunningGateway, worker: FakeWorker) -> list[str]:
    """The servers that answered while the engine was there, gone and back."""
    served = [(await gateway.ask()).started.served_by]
    worker.fail_engine()
    await gateway.wait_state("starting")
    served.append((await gateway.ask()).started.served_by)
    worker.register()
    await gateway.wait_local()
    served.append((await gateway.ask()).started.served_by)
    return served


async def test_the_cloud_answers_while_the_engine_restarts() -> None:
    """Local, provider, local again: without anyone's help."""
    async with open_provider() as fake:
        model, tables = chain_of({"p0": fake})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            open_worker(gateway.address) as worker,
        ):
            await gateway.wait_state("ready")
            assert await down_and_up(gateway, worker) == ["worker", "cloud:p0", "worker"]


async def test_a_stream_that_has_begun_never_moves_to_the_cloud() -> None:
    """Text is out: the stream waits for its engine although a provider is there."""
    async with open_provider() as fake:
        model, tables = chain_of({"p0": fake})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            open_worker(gateway.address) as worker,
        ):
            await gateway.wait_state("ready")
            worker.pause_after = 3
            asked = gateway.start(stream=True)
            await asked.wait_text()
            worker.pause_after = None
            worker.fail_engine()
            await gateway.wait_state("starting")
            worker.register()
            with trio.fail_after(PATIENCE_S):
                await asked.over.wait()
            assert asked.text == "The weather in Athens is warm."
            assert not fake.requests


async def test_a_request_that_nobody_has_seen_moves_to_the_cloud() -> None:
    """Lost before its first text, with no worker left: the provider answers."""
    async with open_provider() as fake:
        model, tables = chain_of({"p0": fake})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            open_worker(gateway.address) as worker,
        ):
            await gateway.wait_state("ready")
            worker.pause_after = 0
            asked = gateway.start(stream=True)
            await worker.wait(Submit)
            worker.fail_engine()
            with trio.fail_after(PATIENCE_S):
                await asked.over.wait()
            assert asked.upstream == b"".join(fake.events("p0-large"))


async def test_a_key_without_cloud_is_held_instead() -> None:
    """`cloud = "never"` waits for the worker although a provider is there."""
    async with open_provider() as fake:
        model, tables = chain_of({"p0": fake})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            open_worker(gateway.address, ready=False) as worker,
        ):
            await gateway.wait_state("starting")
            asked = gateway.start(Caller(key="alice", cloud=False))
            worker.register()
            with trio.fail_after(PATIENCE_S):
                await asked.over.wait()
            assert asked.started.served_by == "worker"
            assert not fake.requests


async def test_failing_providers_leave_the_request_to_the_worker_that_is_coming() -> None:
    """When the whole chain fails while an engine starts, the request is held for it."""
    async with open_provider(FakeProvider(status=500)) as fake:
        model, tables = chain_of({"p0": fake})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            open_worker(gateway.address, ready=False) as worker,
        ):
            await gateway.wait_state("starting")
            asked = gateway.start()
            with trio.fail_after(PATIENCE_S):
                while gateway.services.dispatcher.statistics().queued == 0:  # noqa: ASYNC110
                    await trio.sleep(0.005)
            worker.register()
            with trio.fail_after(PATIENCE_S):
                await asked.over.wait()
            assert asked.started.served_by == "worker"
            assert gateway.services.counters.cloud_failures == 1


async def test_failing_providers_leave_the_request_to_the_worker_that_has_vanished() -> None:
    """With failing providers the request waits for a vanished worker that may dial in again, as it
    does without providers.
    """
    async with open_provider(FakeProvider(status=500)) as fake:
        model, tables = chain_of({"p0": fake})
        async with open_gateway(models=[model], providers=tables) as gateway:
            async with open_worker(gateway.address):
                await gateway.wait_state("ready")
            await gateway.wait_state("down")
            asked = gateway.start()
            await wait_until(lambda: gateway.services.counters.cloud_failures == 1)
            async with open_worker(gateway.address):
                with trio.fail_after(PATIENCE_S):
                    await asked.over.wait()
            assert asked.started.served_by == "worker"
            assert asked.reasons == ["stop"]
