"""The app is an ASGI app: test clients call it without our server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import trio
from starlette.testclient import TestClient
from starlette.types import Message
from trio.testing import MockClock

from gateway.api.errors import ApiError
from gateway.api.events import TextDelta
from gateway.http.response_writer import MAX_PENDING_BYTES
from gateway.http.routes import edge_app
from tests.fakes.asgi import ANSWER, STARTED, Script, chat_body, decode_events, scripted_edge

CHAT = "/v1/chat/completions"
PAGE = {"origin": "http://good.example"}


@asynccontextmanager
async def client_of(script: Script, **config: Any) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(edge_app(scripted_edge(script, **config)))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_transport_gets_answers(is_streamed: bool) -> None:
    """A transport gets answers in one piece and as a stream, with the headers that the edge
    adds.
    """
    origins = ("http://good.example",)
    async with client_of(Script(), allowed_origins=origins) as client:
        body = chat_body(stream=is_streamed)
        reply = await client.post(CHAT, content=body, headers=PAGE)
    assert reply.status_code == 200
    assert reply.headers["access-control-allow-origin"] == "http://good.example"
    assert reply.headers["x-herma-worker"] == STARTED.worker
    if is_streamed:
        *chunks, done = decode_events(reply.content)
        assert done == "[DONE]"
        said = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]
        assert "".join(said) == "Hello you"
    else:
        assert reply.json()["choices"][0]["message"]["content"] == "Hello you"


async def test_a_transport_gets_errors() -> None:
    """A transport gets the errors of the edge, of a turn and of the router, in the shape of each
    API.
    """
    script = Script(ApiError(429, "Full.", code="busy"))
    async with client_of(script, max_body_bytes=400) as client:
        full = await client.post(CHAT, content=chat_body())
        assert (full.status_code, full.json()["error"]["code"]) == (429, "busy")
        assert (await client.post(CHAT, content=bytes(500))).status_code == 413
        message = await client.post("/v1/messages", content=b"{}")
        assert (message.status_code, message.json()["type"]) == (400, "error")
        assert message.headers["request-id"]
        refused = await client.get("/v1/messages", headers={"origin": "http://evil.example"})
        assert refused.status_code == 403
        wrong = await client.put("/v1/models")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, HEAD")
        assert "does not take PUT" in wrong.json()["error"]["message"]
        assert (await client.get("/nothing")).json()["error"]["type"] == "not_found_error"


def test_starlettes_own_client_is_content() -> None:
    """Starlette's own client works with the app, its start and end included."""
    app = edge_app(scripted_edge(Script()))
    with TestClient(app, base_url="http://localhost", client=("127.0.0.1", 1), backend="trio") as c:
        assert c.get("/health").json()["status"] == "ok"
        assert c.head("/v1/models").text == ""
        stored = c.post("/v1/responses", json={"model": "alpha", "input": "Hi", "store": False})
        assert stored.json()["status"] == "completed"


def _request(body: bytes) -> tuple[dict[str, Any], Any]:
    """The scope of a POST, and its `receive`."""
    scope = {
        "type": "http",
        "method": "POST",
        "path": CHAT,
        "raw_path": CHAT.encode(),
        "query_string": b"",
        "headers": [],
        "client": ("127.0.0.1", 1),
        "server": None,
    }
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if not parts:
            await trio.sleep_forever()
        return parts.pop()

    return scope, receive


async def test_a_silence_gets_its_keep_alive(autojump_clock: MockClock) -> None:
    """A silence gets its keep-alive as on our own server: the head after `head_hold_s`, then
    comments.
    """
    edge = scripted_edge(Script(60.0, *ANSWER), head_hold_s=5.0, keep_alive_s=20.0)
    scope, receive = _request(chat_body())
    sent: list[tuple[float, Message]] = []
    began = trio.current_time()

    async def send(message: Message) -> None:
        sent.append((trio.current_time() - began, message))

    await edge_app(edge)(scope, receive, send)
    assert [round(at) for at, _ in sent[:5]] == [5, 5, 25, 45, 60]
    assert not sent[-1][1]["more_body"]
    assert trio.current_time() - began < 61


async def test_a_client_that_reads_nothing_is_given_up(autojump_clock: MockClock) -> None:
    """What waits for it is bounded."""
    part = TextDelta(0, "x" * 2**16)
    edge = scripted_edge(Script(STARTED, *[part] * 40, 1.0, *ANSWER[1:]))
    scope, receive = _request(chat_body())
    read, sent = trio.Event(), bytearray()

    async def send(message: Message) -> None:
        await read.wait()
        sent.extend(message.get("body", b""))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(edge_app(edge), scope, receive, send)
        await trio.sleep(10.0)
        read.set()
    assert len(sent) < 2 * MAX_PENDING_BYTES
    *_, last = decode_events(bytes(sent))
    assert last["error"]["code"] == "client_too_slow"
