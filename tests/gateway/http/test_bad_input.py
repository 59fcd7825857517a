"""Bad input through real HTTP: one clear error each, and nothing is lost for others."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio

from config import KeyConfig, hash_api_key
from gateway.api.events import TextDelta
from gateway.http.edge import Emit
from gateway.http.routes import edge_app
from gateway.http.server.read_deadlines import Deadlines
from tests.fakes.asgi import ANSWER, STARTED, Script, chat_body, scripted_edge
from tests.fakes.served import PATIENCE_S, Reply, ask, connected, served

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "Hi"}]


def _body(**fields: Any) -> bytes:
    return msgspec.json.encode({"model": "alpha", "messages": USER, **fields})


BAD_REQUESTS: dict[str, bytes] = {
    "no body": b"",
    "cut JSON": b'{"model": "alpha", "messages": [',
    "not an object": b"[1, 2]",
    "a bare word": b"hello",
    "two values": b"{} {}",
    "NaN": b'{"model":"alpha","messages":[{"role":"user","content":"a"}],"temperature":NaN}',
    "infinity": b'{"model":"alpha","messages":[{"role":"user","content":"a"}],"top_p":1e999}',
    "invalid UTF-8": b'{"model":"alpha","messages":[{"role":"user","content":"\xff\xfe"}]}',
    "deep nesting": b'{"model":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "model of a wrong type": _body(model=7),
    "no model": msgspec.json.encode({"messages": USER}),
    "no messages": msgspec.json.encode({"model": "alpha"}),
    "empty messages": _body(messages=[]),
    "messages of a wrong type": _body(messages="Hi"),
    "unknown role": _body(messages=[{"role": "wizard", "content": "Hi"}]),
    "content of a wrong type": _body(messages=[{"role": "user", "content": 7}]),
    "negative temperature": _body(temperature=-1),
    "temperature as text": _body(temperature="hot"),
    "negative max_tokens": _body(max_tokens=-5),
    "top_p over one": _body(top_p=1.5),
    "stop list over 16": _body(stop=[str(i) for i in range(17)]),
    "stop of a wrong type": _body(stop=[1]),
    "n over 16": _body(n=17),
    "n of zero": _body(n=0),
    "tools of a wrong type": _body(tools="hammer"),
    "stream_options without stream": _body(stream_options={"include_usage": True}),
    "stream of a wrong type": _body(stream="yes"),
}


@asynccontextmanager
async def _running_stream(url: str, go_on: trio.Event) -> AsyncIterator[None]:
    """A stream of somebody else that must come to its end undisturbed."""
    replies: list[Reply] = []

    async def stream() -> None:
        replies.append(await ask(url, "POST", CHAT, chat_body()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream)
        yield
        go_on.set()
    assert replies[0].body.endswith(b"[DONE]\n\n")


async def test_every_bad_request_is_one_clear_error() -> None:
    """Each bad body is a 400 in the OpenAI shape, on one connection, beside a running stream."""
    go_on = trio.Event()

    async def wait(_emit: Emit) -> None:
        await go_on.wait()

    script = Script(STARTED, TextDelta(0, "Hello"), wait, *ANSWER[2:])
    async with (
        served(edge_app(scripted_edge(script))) as url,
        connected(url) as client,
        _running_stream(url, go_on),
    ):
        await script.started.wait()
        for name, body in BAD_REQUESTS.items():
            reply = await client.ask("POST", CHAT, body, content_length=str(len(body)))
            assert reply.status == 400, (name, reply)
            assert set(reply.json) == {"error"}, name
            error = reply.json["error"]
            assert set(error) == {"message", "type", "param", "code"}, name
            assert error["message"], name
            assert "Traceback" not in error["message"]
    assert len(script.requests) == 1


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_of_forty_megabytes_is_413(declared: bool) -> None:
    """A body over the bound is refused with an answer that the client can read, whether or not
    Content-Length tells its size, and the server stays well. It reads and drops the rest for as
    long as the client here may take for forty megabytes.
    """
    script = Script()
    deadlines = Deadlines(linger_s=PATIENCE_S)
    async with served(edge_app(scripted_edge(script)), deadlines=deadlines) as url:
        body = _body(messages=[{"role": "user", "content": "x" * 40_000_000}])
        for _ in range(3):
            async with connected(url) as client:
                if declared:
                    reply = await client.ask("POST", CHAT, body)
                else:
                    reply = await client.ask("POST", CHAT, body, transfer_encoding="chunked")
                assert reply.status == 413
                assert "33554432 bytes" in reply.json["error"]["message"]
        assert (await ask(url, "POST", CHAT, chat_body())).status == 200
    assert len(script.requests) == 1


async def test_an_early_refusal_of_a_large_body_is_readable() -> None:
    """A 401, 404 or 405 that comes while the body is on its way reaches the client, and the
    connection does not stay behind.
    """
    keys = (KeyConfig(name="agents", hash=hash_api_key("secret")),)
    body, deadlines = b"x" * 5_000_000, Deadlines(linger_s=PATIENCE_S)
    app = edge_app(scripted_edge(Script(), keys=keys))
    async with served(app, deadlines=deadlines) as url:
        for path, status in ((CHAT, 401), ("/nothing", 404), ("/v1/models", 405)):
            for _ in range(3):
                assert (await ask(url, "POST", path, body)).status == status
        assert (await ask(url, "GET", "/version")).status == 200


async def test_a_declared_giant_is_refused_before_it_is_sent() -> None:
    """With Content-Length over the bound the 413 comes before the first byte of the body."""
    async with served(edge_app(scripted_edge(Script()))) as url, connected(url) as client:
        await client.send(b"POST %s HTTP/1.1\r\nhost: localhost\r\n" % CHAT.encode())
        await client.send(b"content-length: 999999999999\r\n\r\n")
        await client.expect()
        while True:
            event = await client.event()
            if hasattr(event, "status_code"):
                assert event.status_code == 413
                return


@pytest.mark.parametrize("length", [b"ten", b"-1", b"1,2", b"0x10"])
async def test_an_invalid_length_is_400(length: bytes) -> None:
    """A Content-Length that is no number ends the connection with a 400."""
    async with served(edge_app(scripted_edge(Script()))) as url:
        async with connected(url) as client:
            await client.send(b"POST %s HTTP/1.1\r\nhost: localhost\r\n" % CHAT.encode())
            await client.send(b"content-length: %s\r\n\r\n{}" % length)
            await client.expect()
            assert (await client.reply()).status == 400
        assert (await ask(url, "GET", "/version")).status == 200


async def test_what_is_not_http_harms_nobody() -> None:
    """Garbage, a giant head and a half request leave the server well."""
    garbage = [
        b"\x00\xff" * 100 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nx: " + b"y" * 200_000,
        b"POST",
        b"GET /%ff%fe HTTP/1.1\r\nhost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 1000,
        b"GET / HTTP/1.1\r\nhost: x\r\nupgrade: h2c\r\nhttp2-settings: ???\r\n\r\n",
    ]
    async with served(edge_app(scripted_edge(Script()))) as url:
        for data in garbage:
            async with connected(url) as client:
                try:
                    await client.send(data)
                    await client.stream.send_eof()
                    while await client.stream.receive_some(65_536):
                        pass
                except trio.BrokenResourceError:
                    pass  # The server may have reset the connection already.
        assert (await ask(url, "GET", "/version")).status == 200


@pytest.mark.parametrize(
    "path", ["/", "/api/v1/models", "/api/tags", "/api/show", "/props", "/v1/props", "/v1/"]
)
async def test_probes_for_other_servers_find_nothing(path: str) -> None:
    """Paths of other servers are a JSON 404, so that nobody takes Herma for one of them."""
    async with served(edge_app(scripted_edge(Script()))) as url:
        for method in ("GET", "POST"):
            reply = await ask(url, method, path)
            assert reply.status == 404
            assert reply.headers["content-type"] == "application/json"
            assert reply.json["error"]["type"] == "not_found_error"


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", CHAT, "POST"),
        ("HEAD", CHAT, "POST"),
        ("DELETE", "/v1/models/alpha", "GET, HEAD"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("OPTIONS", CHAT, "POST"),
    ],
)
async def test_a_wrong_method_is_405(method: str, path: str, allow: str) -> None:
    """A known path with another method says which ones it takes."""
    async with served(edge_app(scripted_edge(Script()))) as url:
        reply = await ask(url, method, path)
    assert reply.status == 405
    assert reply.headers["allow"] == allow
    assert method == "HEAD" or method in reply.json["error"]["message"]


async def test_a_compressed_body_is_415() -> None:
    """Content-Encoding is refused instead of being taken for JSON."""
    async with served(edge_app(scripted_edge(Script()))) as url:
        reply = await ask(url, "POST", CHAT, b"\x1f\x8b", content_encoding="gzip")
    assert reply.status == 415
    assert reply.json["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("no body", "The body is empty; send a JSON object."),
        ("no model", "'model' is missing."),
        ("no messages", "'messages' is missing."),
    ],
)
async def test_what_is_missing_is_called_missing(case: str, says: str) -> None:
    """The commonest slips are told in plain words."""
    async with served(edge_app(scripted_edge(Script()))) as url:
        reply = await ask(url, "POST", CHAT, BAD_REQUESTS[case])
    assert reply.status == 400
    assert reply.json["error"]["message"] == says
