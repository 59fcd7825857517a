"""A dead engine: requests go to the provider and come back, or wait for the restart."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from tests.fakes.checked_http import checked_async_client
from tests.fakes.herma_process import HermaProcess, herma_up, wait_until
from tests.fakes.messages_checker import MessagesChecker
from tests.fakes.provider import FakeProvider, open_provider
from tests.fakes.responses_checker import ResponsesChecker

BOUND_S = 120.0

TWO_MODELS = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"

[[models]]
name = "insured"
fallback = [{{ provider = "cloud", model = "vendor/big" }}]

[[models]]
name = "alone"

[[workers]]
name = "i1"
model = "builtin:herma-tiny"
engine = "synthetic"
serves = "insured"

[[workers]]
name = "s1"
model = "builtin:herma-tiny"
engine = "synthetic"
step_ms = 10
serves = "alone"

[providers.cloud]
base_url = "{provider}"
"""


@pytest.fixture
async def provider() -> AsyncIterator[FakeProvider]:
    """A real HTTP server in the shape of the API."""
    async with open_provider() as fake:
        yield fake


async def test_a_killed_engine_is_covered_by_the_provider_and_comes_back(
    tmp_path: Path, provider: FakeProvider
) -> None:
    """kill -9 of the only engine: the provider answers and is named; then it is local again. A
    model without a provider holds its requests and streams over the restart instead.
    """
    config = tmp_path / "herma.toml"
    config.write_text(TWO_MODELS.format(folder=tmp_path, provider=provider.base_url))
    manager = herma_up(config)
    herma = await trio.to_thread.run_sync(manager.__enter__)
    try:
        await trio.to_thread.run_sync(herma.wait_models_ready, {"insured": 1, "alone": 1})
        async with checked_async_client(herma.base_url, timeout_s=BOUND_S) as client:
            with trio.fail_after(BOUND_S):
                await _covered_and_back(herma, client, provider)
                await _held_over_the_restart(herma, client)
                await _resumed_mid_stream(herma, client)
                await _resumed_message(herma, client)
                await _resumed_response(herma, client)
    finally:
        await trio.to_thread.run_sync(manager.__exit__, None, None, None)


async def _covered_and_back(
    herma: HermaProcess, client: httpx.AsyncClient, provider: FakeProvider
) -> None:
    assert (await _ask(client, "insured")).headers["x-herma-worker"] == "i1"
    _kill_engine(herma, "i1")
    while not provider.requests:
        covered = await _ask(client, "insured")
    assert covered.headers["x-herma-served-by"] == "cloud:cloud"
    assert covered.json()["choices"][0]["message"]["content"] == "Hello from afar"
    assert covered.json()["x_provider"] == {"shard": 7}
    assert provider.requests[0].body["model"] == "vendor/big"
    await trio.to_thread.run_sync(_wait_local, herma)
    back = await _ask(client, "insured")
    assert back.headers["x-herma-worker"] == "i1"
    num_covered = len(provider.requests)
    assert (await _ask(client, "insured")).headers["x-herma-served-by"] == "worker"
    assert len(provider.requests) == num_covered


def _wait_local(herma: HermaProcess) -> None:
    """Return once health probes have brought the model back to its worker."""
    away = 'herma_fallback{model="insured"}'
    wait_until(lambda: herma.metrics()[away] == 0, "the end of the fallback")


async def _held_over_the_restart(herma: HermaProcess, client: httpx.AsyncClient) -> None:
    _kill_engine(herma, "s1")
    held = await _ask(client, "alone")
    assert held.headers["x-herma-worker"] == "s1"
    assert held.json()["usage"]["completion_tokens"] >= 1


async def _resumed_mid_stream(herma: HermaProcess, client: httpx.AsyncClient) -> None:
    body = _body("alone", max_tokens=400, seed=1, ignore_eos=True)
    undisturbed = (await client.post("/chat/completions", json=body)).json()
    text, is_killed = "", False
    async with client.stream("POST", "/chat/completions", json={**body, "stream": True}) as reply:
        async for line in reply.aiter_lines():
            if not line.startswith("data: {"):
                continue
            if text and not is_killed:
                _kill_engine(herma, "s1")
                is_killed = True
            event = httpx.Response(200, content=line[6:]).json()
            text += "".join(c["delta"].get("content") or "" for c in event["choices"])
    assert text == undisturbed["choices"][0]["message"]["content"]


async def _resumed_message(herma: HermaProcess, client: httpx.AsyncClient) -> None:
    """The stream's checker sees one message, whose blocks neither repeat nor lack anything."""
    messages = [{"role": "user", "content": "Hello?"}]
    body = {"model": "alone", "max_tokens": 400, "messages": messages}
    body |= {"seed": 1, "stream": True}

    async def read(*, kills: bool) -> MessagesChecker:
        checker, is_killed = MessagesChecker(), not kills
        async with client.stream("POST", "/messages", json=body) as reply:
            async for data in reply.aiter_bytes():
                checker.feed(data)
                if not is_killed and checker.message and checker.message["content"]:
                    _kill_engine(herma, "s1")
                    is_killed = True
        checker.end()
        assert checker.error is None
        assert is_killed
        return checker

    disturbed, undisturbed = await read(kills=True), await read(kills=False)
    assert disturbed.message is not None
    assert undisturbed.message is not None
    assert len(disturbed.message["content"][0]["text"]) > 100
    assert disturbed.message["content"] == undisturbed.message["content"]


async def _resumed_response(herma: HermaProcess, client: httpx.AsyncClient) -> None:
    """The same by the Responses API: ids and numbers go on as if nothing had happened."""
    body = {"model": "alone", "max_output_tokens": 400, "input": "Hello?", "seed": 1}

    async def read(*, kills: bool) -> ResponsesChecker:
        checker, is_killed = ResponsesChecker(), not kills
        async with client.stream("POST", "/responses", json={**body, "stream": True}) as reply:
            async for data in reply.aiter_bytes():
                checker.feed(data)
                if checker.text and not is_killed:
                    _kill_engine(herma, "s1")
                    is_killed = True
        checker.end()
        assert checker.error is None
        assert is_killed
        return checker

    disturbed, undisturbed = await read(kills=True), await read(kills=False)
    assert len(disturbed.text) > 100
    assert disturbed.text == undisturbed.text


async def _ask(client: httpx.AsyncClient, model: str) -> httpx.Response:
    reply = await client.post("/chat/completions", json=_body(model, max_tokens=4))
    assert reply.status_code == 200, reply.text
    return reply


def _body(model: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "Hello?"}], **fields}


def _kill_engine(herma: HermaProcess, worker: str) -> None:
    (pid,) = herma.pids(f"herma engine {worker}")
    os.kill(pid, signal.SIGKILL)
