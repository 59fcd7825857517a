"""The description of the API says what the gateway does."""

from typing import Any, TypeVar

import msgspec
import pytest

from gateway.api.chat_formatter import ChatChunk, ChatCompletion
from gateway.api.completions_formatter import TextCompletion
from gateway.api.errors import ErrorBody
from gateway.api.utility_bodies import (
    Detokenized,
    Health,
    ModelList,
    ModelObject,
    Tokenized,
    Version,
)
from gateway.http.routes import edge_app
from tests.fakes.asgi import Script, chat_body, scripted_edge
from tests.fakes.routed import endpoints_of
from tests.fakes.served import Reply, ask, served
from tests.fakes.whole_gateway import WholeGateway, whole_gateway
from tests.fakes.worker import FakeWorker

T = TypeVar("T")
USER = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
CALL = '<think>Hm.</think>Look:<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>'


def exactly(value: Any, kind: type[T]) -> T:
    """`value` as a `kind`; fails for a field that the kind does not have."""
    read = msgspec.convert(value, kind)
    assert msgspec.json.decode(msgspec.json.encode(read)) == value
    return read


async def document() -> dict[str, Any]:
    async with served(edge_app(scripted_edge(Script()))) as url:
        reply = await ask(url, "GET", "/openapi.json")
    assert reply.status == 200
    found: dict[str, Any] = reply.json
    return found


async def test_every_route_is_described_and_no_other() -> None:
    """Paths and methods are those of the router; every reference leads somewhere."""
    described = await document()
    app = edge_app(scripted_edge(Script()))
    routes = {
        path: {method.lower() for method in endpoint.handlers}
        for path, endpoint in endpoints_of(app.routes).items()
        if not path.startswith("/debug")
    }
    paths = described["paths"]
    assert {
        path: operations.keys() - {"parameters"} for path, operations in paths.items()
    } == routes
    schemas = described["components"]["schemas"]
    assert all(name in schemas for name in _references(described))


def _references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"].rpartition("/")[2]} if "$ref" in value else set()
        return own.union(*map(_references, value.values()))
    return set().union(*map(_references, value)) if isinstance(value, list) else set()


@pytest.mark.parametrize("text", ["Hello there.", CALL])
async def test_answers_have_the_shapes_that_are_described(text: str) -> None:
    """Chats, raw completions, their streams, and all the rest, to the last field."""
    async with whole_gateway(FakeWorker(text=text)) as whole:
        await _check_chats(whole)
        await _check_texts(whole)
        await _check_pages(whole)


async def _check_chats(whole: WholeGateway) -> None:
    asked: dict[str, Any] = {"model": "alpha", "messages": USER, "tools": [TOOL], "n": 2}
    for logprobs in (False, True):
        fields = {**asked, "logprobs": logprobs, "top_logprobs": 2 if logprobs else None}
        body = (await whole.post("/v1/chat/completions", **fields)).json
        assert len(exactly(body, ChatCompletion).choices) == 2
        options = {"include_usage": True}
        path = "/v1/chat/completions"
        *chunks, done = await whole.stream(path, **fields, stream_options=options)
        assert done == "[DONE]"
        assert chunks[-1]["usage"]["total_tokens"] == body["usage"]["total_tokens"]
        for chunk in chunks:
            exactly(chunk, ChatChunk)


async def _check_texts(whole: WholeGateway) -> None:
    asked: dict[str, Any] = {"model": "alpha", "prompt": ["a", "b"], "logprobs": 1}
    body = (await whole.post("/v1/completions", **asked)).json
    assert len(exactly(body, TextCompletion).choices) == 2
    *chunks, _ = await whole.stream("/v1/completions", **asked)
    for chunk in chunks:
        exactly(chunk, TextCompletion)
    exactly((await whole.post("/tokenize", prompt="a")).json, Tokenized)
    exactly((await whole.post("/detokenize", tokens=[1])).json, Detokenized)


async def _check_pages(whole: WholeGateway) -> None:
    for path, kind in (
        ("/v1/models", ModelList),
        ("/models/alpha", ModelObject),
        ("/health", Health),
        ("/version", Version),
        ("/v1/models/none", ErrorBody),
        ("/nothing", ErrorBody),
    ):
        exactly((await whole.get(path)).json, kind)


def _described_errors(described: dict[str, Any], path: str, method: str) -> set[int]:
    return {int(status) for status in described["paths"][path][method]["responses"]}


async def test_statuses_are_among_the_described() -> None:
    """What the edge itself refuses is in the description of that path."""
    described = await document()
    script = Script()
    async with served(edge_app(scripted_edge(script, max_body_bytes=1000))) as url:

        async def status(path: str, body: bytes, **headers: str) -> Reply:
            return await ask(url, "POST", path, body, **headers)

        for path in ("/v1/chat/completions", "/completions", "/tokenize", "/v1/detokenize"):
            for body, headers, expected in (
                (b"", {}, 400),
                (b"x" * 2000, {}, 413),
                (b"x", {"content_encoding": "gzip"}, 415),
                (chat_body(), {"x_forwarded_for": "1.2.3.4"}, 401),
                (chat_body(), {"origin": "http://evil.example"}, 403),
            ):
                reply = await status(path, body, **headers)
                assert reply.status == expected
                assert expected in _described_errors(described, path, "post")
                exactly(reply.json, ErrorBody)
