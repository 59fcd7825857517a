"""Lists, pages and metrics."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import openai
import pytest
import trio
from openai.types.chat import ChatCompletionUserMessageParam
from starlette.routing import BaseRoute, Match, Mount
from starlette.types import ASGIApp, Scope
from trio.testing import MockClock

from config import FallbackConfig
from gateway.api.errors import ApiError, busy
from gateway.api.events import ChoiceFinished, Started
from gateway.http.edge import FleetGauges
from gateway.http.error_responses import header
from gateway.http.routes import edge_app, endpoints_by_path
from tests.fakes.asgi import (
    ANSWER,
    STARTED,
    USAGE,
    Exchange,
    Script,
    chat_body,
    model_view,
    scripted_edge,
)
from tests.fakes.checked_http import checked_sdk_client
from tests.fakes.served import ask, served

MODELS = (
    model_view("alpha", aliases=("default",)),
    model_view("org/beta", context_length=None, state="starting", ready_workers=0),
)
HI: ChatCompletionUserMessageParam = {"role": "user", "content": "Hi"}
PROBES = ("readiness", "liveness", "liveliness")
NUMBERS = ("max_model_len", "context_length", "context_window", "n_ctx", "max_tokens")


async def _get(app: ASGIApp, path: str, **more: Any) -> Exchange:
    return await Exchange(app, method="GET", path=path, **more).run()


@pytest.mark.parametrize("path", ["/v1/models", "/models"])
async def test_models_are_listed_with_their_window(path: str) -> None:
    """Every number that a client may take for the window of a name is the same, or there is none.
    Aliases are behind the models, and tell theirs.
    """
    listing = (await _get(edge_app(scripted_edge(Script(), models=MODELS)), path)).json
    assert listing["object"] == "list"
    alpha, beta, default = listing["data"]
    assert (alpha["id"], alpha["owned_by"], alpha["created"]) == ("alpha", "herma", 1_800_000_000)
    assert {key: alpha[key] for key in NUMBERS if key in alpha} == {
        "max_model_len": 65_536,
        "context_length": 65_536,
    }
    assert not [key for key in NUMBERS if key in beta]
    assert [one["root"] for one in (alpha, beta, default)] == ["alpha", "org/beta", "alpha"]
    assert default == {**alpha, "id": "default"}


async def test_a_model_may_be_owned_by_another_name() -> None:
    """Some clients read windows only from servers that they know by it."""
    models = (model_view("alpha", owned_by="vllm"),)
    listing = (await _get(edge_app(scripted_edge(Script(), models=models)), "/v1/models")).json
    assert [one["owned_by"] for one in listing["data"]] == ["vllm"]
    assert listing["models"] == []


async def test_a_model_is_found_by_name_alias_and_with_slashes() -> None:
    """GET of one model takes every name that a request may use; others are 404."""
    app = edge_app(scripted_edge(Script(), models=MODELS))
    assert (await _get(app, "/v1/models/alpha")).json["id"] == "alpha"
    alias = (await _get(app, "/models/default")).json
    assert (alias["id"], alias["root"]) == ("default", "alpha")
    assert (await _get(app, "/v1/models/org/beta")).json["id"] == "org/beta"
    assert len((await _get(app, "/v1/models/")).json["data"]) == 3
    missing = await _get(app, "/v1/models/gamma")
    assert missing.status == 404
    assert missing.json["error"]["code"] == "model_not_found"


async def test_health_tells_each_model() -> None:
    """Health is always 200 and names the state of every model."""
    exchange = await _get(edge_app(scripted_edge(Script(), models=MODELS)), "/health")
    assert exchange.status == 200
    assert exchange.json == {
        "status": "ok",
        "models": {"alpha": "ready", "org/beta": "starting"},
    }
    cold = edge_app(scripted_edge(Script(), models=MODELS[1:]))
    assert (await _get(cold, "/health")).json["status"] == "starting"
    assert [(await _get(cold, f"/health/{name}")).status for name in PROBES] == [503, 200, 200]
    down = edge_app(scripted_edge(Script(), models=(model_view(state="down"),)))
    assert (await _get(down, "/health")).json["status"] == "down"
    away = model_view(state="down", fallback=(FallbackConfig(provider="p", model="m"),))
    covered = edge_app(scripted_edge(Script(), models=(away,)))
    health = (await _get(covered, "/health")).json
    assert health == {"status": "ok", "models": {away.name: "cloud"}}
    assert [(await _get(covered, f"/health/{name}")).status for name in PROBES] == [200, 200, 200]


async def test_probes_of_other_systems_find_their_paths() -> None:
    """Kubernetes' names, and that of vLLM and of hosts of containers, from anywhere without a key.
    What restarts a process that fails does not restart one whose workers are gone.
    """
    kept = replace(scripted_edge(Script(), models=MODELS[1:]), draining=lambda: False)
    stopping = replace(kept, draining=lambda: True)
    same = {"/livez": "/health/liveness", "/readyz": "/health/readiness"}
    same |= {"/healthz": "/health", "/ping": "/health"}
    statuses = {"/livez": (200, 200), "/readyz": (503, 503)}
    for path, known in same.items():
        for edge, status in zip((kept, stopping), statuses.get(path, (200, 503)), strict=True):
            found, meant = [
                await _get(edge_app(edge), one, client=("192.0.2.7", 40_000))
                for one in (path, known)
            ]
            assert (found.status, found.json) == (status, meant.json)
            assert meant.status == status


async def test_chat_answers_without_the_prefix_too() -> None:
    """`/chat/completions` is the same as `/v1/chat/completions`."""
    app = edge_app(scripted_edge(Script()))
    assert (await Exchange(app, path="/chat/completions", body=chat_body()).run()).status == 200


def _found_by_router(routes: Sequence[BaseRoute], scope: Scope) -> object:
    for route in routes:
        match, child = route.matches(scope)
        if match is Match.FULL:
            inner = {**scope, **child}
            is_mount = isinstance(route, Mount)
            return _found_by_router(route.routes, inner) if is_mount else inner["endpoint"]
    return None


def test_a_path_without_parameters_leads_to_what_the_router_would_find() -> None:
    app = edge_app(scripted_edge(Script()))
    by_path = endpoints_by_path(app.routes)
    assert {"/v1/chat/completions", "/chat/completions", "/health", "/v1/models"} <= by_path.keys()
    for path, endpoint in by_path.items():
        scope = {"type": "http", "method": "GET", "path": path, "root_path": "", "headers": []}
        assert _found_by_router(app.routes, scope) is endpoint, path


async def test_a_slash_behind_a_path_changes_nothing() -> None:
    """Some clients put one behind every path. Two are no path of ours, and a path that is passed on
    is passed on as it came.
    """
    script = Script()
    async with served(edge_app(scripted_edge(script))) as url:
        for path in ("/v1/chat/completions/", "/chat/completions/"):
            assert (await ask(url, "POST", path, chat_body())).status == 200
        assert (await ask(url, "GET", "/health/")).status == 200
        assert (await ask(url, "GET", "/v1/chat/completions/")).status == 405
        for path in ("/v1/chat/completions//", "/v1/rerank/", "/v1/", "/nothing/"):
            reply = await ask(url, "POST", path, chat_body())
            assert reply.status in (400, 404)
            assert path in reply.json["error"]["message"] or reply.status == 400
    assert len(script.requests) == 2


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/v1/v1/models", ": the client's base URL has one /v1 too many."),
        ("/api/tags", ": the API is OpenAI's, below /v1, not Ollama's."),
        ("/docs", ": GET /openapi.json lists the paths."),
        ("/v1/", ": GET /openapi.json lists the paths."),
    ],
)
async def test_a_path_that_leads_nowhere_says_what_was_meant(path: str, hint: str) -> None:
    """A path that leads nowhere says what was meant, for clients that take the gateway for another
    server or have a wrong base URL.
    """
    reply = await Exchange(edge_app(scripted_edge(Script())), method="GET", path=path).run()
    assert (reply.status, reply.json["error"]["type"]) == (404, "not_found_error")
    assert reply.json["error"]["message"] == f"There is nothing at {path}{hint}"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/health", "/models/a"])
async def test_a_line_break_in_a_path_is_read_as_one(path: str) -> None:
    """The pattern of a route would take it as nothing, and a provider would get it."""
    script = Script()
    async with served(edge_app(scripted_edge(script))) as url:
        assert (await ask(url, "POST", f"{path}%0A", chat_body())).status == 400
        reply = await ask(url, "GET", f"{path}%0A")
        assert (reply.status, reply.json["error"]["type"]) == (404, "not_found_error")
        assert "\n" in reply.json["error"]["message"]
    assert not script.requests


async def test_other_methods_are_told_which_a_path_takes() -> None:
    """Other methods are answered with those that a path takes, in whatever order they are routed,
    with parameters and without; pages take reads alone.
    """
    app = edge_app(scripted_edge(Script()))
    taken = {
        "/v1/chat/completions": "POST",
        "/messages": "POST",
        "/v1/models/a/b": "GET, HEAD",
        "/v1/responses/resp_1": "GET, DELETE, HEAD",
        "/conversations/c/items": "GET, POST, HEAD",
        "/health": "GET, HEAD",
        "/debug/route": "GET, POST, HEAD",
    }
    for path, methods in taken.items():
        refused = await Exchange(app, method="PATCH", path=path).run()
        assert (refused.status, refused.head["allow"]) == (405, methods)
        said = f"{path} does not take PATCH; it takes {methods}."
        assert refused.json["error"]["message"] == said
    assert (await Exchange(app, method="PATCH", path="/").run()).status == 404


async def test_a_stopping_gateway_takes_no_new_turn() -> None:
    """While it drains, a chat request is 503 with Retry-After and no turn starts."""
    script = Script()
    app = edge_app(scripted_edge(script, draining=True))
    exchange = await Exchange(app, body=chat_body()).run()
    assert exchange.status == 503
    assert int(exchange.head["retry-after"]) > 0
    assert not script.requests


async def test_metrics_count_what_happened(autojump_clock: MockClock) -> None:
    """Requests by end, tokens, times, the fleet and every counter of the gateway are shown."""
    script = Script(2.0, *ANSWER)
    gauges = FleetGauges(unready_workers=2, open_turns=3, counters={"frames_garbage": 7})
    away = model_view(
        "away",
        state="down",
        ready_workers=0,
        queued=4,
        fallback=(FallbackConfig(provider="far", model="big"),),
    )
    app = edge_app(scripted_edge(script, models=(*MODELS, away), gauges=gauges))
    await Exchange(app, body=chat_body(model="default")).run()
    script.steps = (busy("Full.", 1),)
    await Exchange(app, body=chat_body(model="gamma", stream=False)).run()
    script.steps = (Started("cloud:far", "", 0, "fallback", "alpha"), 50.0)
    leaver = Exchange(app, body=chat_body())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(leaver.run)
        await trio.sleep(1.0)
        leaver.disconnect()
    lines = (await _get(app, "/metrics")).content.decode().splitlines()
    for line in (
        'herma_requests_total{model="alpha",served_by="worker",status="200"} 1.0',
        'herma_requests_total{model="unknown",served_by="none",status="429"} 1.0',
        'herma_requests_total{model="alpha",served_by="cloud:far",status="499"} 1.0',
        'herma_tokens_total{kind="prompt",model="alpha"} 70.0',
        'herma_tokens_total{kind="cached",model="alpha"} 64.0',
        'herma_first_token_seconds_bucket{le="1.0",model="alpha"} 0.0',
        'herma_first_token_seconds_bucket{le="2.5",model="alpha"} 1.0',
        'herma_request_seconds_count{model="alpha"} 2.0',
        'herma_workers{model="alpha",state="ready"} 1.0',
        'herma_queue_length{model="away"} 4.0',
        'herma_fallback{model="alpha"} 0.0',
        'herma_fallback{model="away"} 1.0',
        "herma_workers_unready 2.0",
        "herma_requests_in_flight 3.0",
        "herma_frames_garbage_total 7.0",
    ):
        assert line in lines, line


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_an_answer_without_words_has_a_first_token_too(
    is_streamed: bool, autojump_clock: MockClock
) -> None:
    """An answer without words, of which the end is the only token, has a first token too."""
    script = Script(STARTED, 2.0, ChoiceFinished(0, "stop"), USAGE)
    app = edge_app(scripted_edge(script))
    await Exchange(app, body=chat_body(stream=is_streamed)).run()
    lines = (await _get(app, "/metrics")).content.decode().splitlines()
    assert 'herma_first_token_seconds_bucket{le="2.5",model="alpha"} 1.0' in lines


def test_header_values_cannot_break_a_response() -> None:
    """Line breaks and letters that headers cannot hold become question marks."""
    assert header(b"x-herma-route", "a\r\nset-cookie: b\u20ac") == (
        b"x-herma-route",
        b"a??set-cookie: b?",
    )


async def test_the_official_client_is_content() -> None:
    """The openai client lists, completes, streams with usage, and gets its own exceptions."""
    script = Script()
    async with served(edge_app(scripted_edge(script, models=MODELS))) as url:
        await trio.to_thread.run_sync(_use_official_client, f"{url}/v1", script)


def _use_official_client(base_url: str, script: Script) -> None:
    http = checked_sdk_client()
    with openai.OpenAI(base_url=base_url, api_key="any", max_retries=0, http_client=http) as client:
        assert [model.id for model in client.models.list()] == ["alpha", "org/beta", "default"]
        answer = client.chat.completions.create(model="alpha", messages=[HI])
        assert answer.choices[0].message.content == "Hello you"
        stream = client.chat.completions.create(
            model="alpha", messages=[HI], stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.total_tokens == 72
        texts = [chunk.choices[0].delta.content or "" for chunk in chunks[:-1]]
        assert "".join(texts) == "Hello you"
        script.steps = (ApiError(404, "No.", code="model_not_found"),)
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="gone", messages=[HI])


@pytest.mark.parametrize("refuses", [False, True])
async def test_no_surface_says_that_providers_answer_behind_a_spending_limit(
    refuses: bool, autojump_clock: MockClock
) -> None:
    """The gauge and the health say so only while a limit lets them."""
    chain = (FallbackConfig(provider="far", model="big"),)
    away = model_view("away", state="down", ready_workers=0, fallback=chain)
    edge = scripted_edge(Script(), models=(*MODELS, away))
    asked: list[object] = []

    def refuses_all(chain: tuple[FallbackConfig, ...]) -> bool:
        asked.append(chain)
        return refuses

    app = edge_app(replace(edge, refuses=refuses_all))
    lines = (await _get(app, "/metrics")).content.decode().splitlines()
    assert f'herma_fallback{{model="away"}} {float(not refuses)}' in lines
    health = (await _get(app, "/health")).json
    assert health["models"]["away"] == ("down" if refuses else "cloud")
    assert asked
    assert all(one == chain for one in asked)
