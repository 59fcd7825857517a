"""A dead engine: requests go to the provider and come back, or wait for the restart."""

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
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
TOKENS = 250
"""The length of a streamed answer, at 10 ms a token: enough time to kill its engine in the
middle.
"""

Texts = dict["Read", str]

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


Read = Callable[[httpx.AsyncClient, Callable[[], None]], Awaitable[str]]
"""Reads an answer by one of the APIs, calls back at each part that has text, returns the text."""


async def _resumed_mid_stream(herma: HermaProcess, client: httpx.AsyncClient) -> None:
    """In each API, what the client of a resumed stream reads neither repeats nor lacks anything."""
    undisturbed = await _read_all(client, lambda: None)
    disturbed = await _read_all(client, lambda: _kill_engine(herma, "s1"))
    assert all(len(text) > 100 for text in undisturbed.values())
    assert disturbed == undisturbed


async def _read_all(client: httpx.AsyncClient, once_all_have_text: Callable[[], None]) -> Texts:
    texts: Texts = {}
    begun: set[Read] = set()
    reads: tuple[Read, ...] = (_read_chat, _read_message, _read_response)

    async def one(read: Read) -> None:
        def note_text() -> None:
            if read not in begun:
                begun.add(read)
                if len(begun) == len(reads):
                    once_all_have_text()

        texts[read] = await read(client, note_text)

    async with trio.open_nursery() as nursery:
        for read in reads:
            nursery.start_soon(one, read)
    assert len(begun) == len(reads)
    return texts


async def _read_chat(client: httpx.AsyncClient, note_text: Callable[[], None]) -> str:
    body = _body("alone", max_tokens=TOKENS, seed=1, ignore_eos=True, stream=True)
    text = ""
    async with client.stream("POST", "/chat/completions", json=body) as reply:
        async for line in reply.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = httpx.Response(200, content=line[6:]).json()
            text += "".join(c["delta"].get("content") or "" for c in event["choices"])
            if text:
                note_text()
    return text


async def _read_message(client: httpx.AsyncClient, note_text: Callable[[], None]) -> str:
    """The stream's checker sees one message."""
    messages = [{"role": "user", "content": "Hello?"}]
    body = {"model": "alone", "max_tokens": TOKENS, "messages": messages, "seed": 1}
    checker = MessagesChecker()
    async with client.stream("POST", "/messages", json={**body, "stream": True}) as reply:
        async for data in reply.aiter_bytes():
            checker.feed(data)
            if checker.message and checker.message["content"]:
                note_text()
    checker.end()
    assert checker.error is None
    assert checker.message is not None
    (block,) = checker.message["content"]
    text: str = block["text"]
    return text


async def _read_response(client: httpx.AsyncClient, note_text: Callable[[], None]) -> str:
    """Ids and numbers go on as if nothing had happened."""
    body = {"model": "alone", "max_output_tokens": TOKENS, "input": "Hello?", "seed": 1}
    checker = ResponsesChecker()
    async with client.stream("POST", "/responses", json={**body, "stream": True}) as reply:
        async for data in reply.aiter_bytes():
            checker.feed(data)
            if checker.text:
                note_text()
    checker.end()
    assert checker.error is None
    return checker.text


async def _ask(client: httpx.AsyncClient, model: str) -> httpx.Response:
    reply = await client.post("/chat/completions", json=_body(model, max_tokens=4))
    assert reply.status_code == 200, reply.text
    return reply


def _body(model: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "Hello?"}], **fields}


def _kill_engine(herma: HermaProcess, worker: str) -> None:
    (pid,) = herma.pids(f"herma engine {worker}")
    os.kill(pid, signal.SIGKILL)
