"""Answers to raw prompts, which pass as bytes: held to their ends as chats are."""

import json
from contextlib import nullcontext
from typing import Any

import msgspec
import pytest

from gateway.app import edge_of
from gateway.http.routes import edge_app
from gateway.upstream.checked_completions import CheckedStream
from protocol.errors import ReadError
from protocol.transport import Body
from tests.fakes.provider import FakeProvider, open_provider
from tests.fakes.running_gateway import chain_of, open_gateway
from tests.fakes.served import Reply, ask, served
from tests.gateway.http.test_odd_answers import OddProvider

DONE = b"data: [DONE]\n\n"


def chunk(text: str, finish: str | None = None, index: int = 0) -> bytes:
    choice = {"index": index, "text": text, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "x", "choices": [choice]}).encode() + b"\n\n"


def whole(finish: str) -> bytes:
    return json.dumps({"choices": [{"index": 0, "text": "a b", "finish_reason": finish}]}).encode()


async def asked(*answers: list[bytes] | bytes, **fields: Any) -> Reply:
    """The reply of providers with these answers, in their order: events, or a body."""

    def fake_of(answer: list[bytes] | bytes) -> FakeProvider:
        fake = FakeProvider()
        if isinstance(answer, bytes):
            fake.whole = lambda _: answer  # type: ignore[method-assign]
        else:
            fake.events = lambda *_: answer  # type: ignore[method-assign]
        return fake

    stream = isinstance(answers[0], list)
    first, last = fake_of(answers[0]), fake_of(answers[-1])
    async with open_provider(first), open_provider(last):
        model, tables = chain_of({"p0": first, "p1": last} if answers[1:] else {"p0": first})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            served(edge_app(edge_of(gateway.services))) as url,
        ):
            body = {"model": "alpha", "prompt": "Hi", "stream": stream, **fields}
            return await ask(url, "POST", "/v1/completions", msgspec.json.encode(body))


GOOD = [chunk("a"), chunk(" b", "stop"), DONE]


async def test_a_sound_stream_passes_unchanged() -> None:
    """A sound stream passes unchanged, and nothing behind its end is passed on."""
    assert (await asked(GOOD)).body == b"".join(GOOD)
    assert (await asked([*GOOD, chunk("c"), b"data: {\n\n"])).body == b"".join(GOOD)


async def test_an_answer_is_whole_when_it_has_said_why_it_ended() -> None:
    """One prompt has one answer, as in chats: no `[DONE]` is needed, nor an orderly end."""
    reply = await asked(GOOD[:2])
    assert reply.body == b"".join(GOOD)
    assert b'"error"' in (await asked(GOOD[:2], prompt=["Hi", "Ho"])).body


@pytest.mark.parametrize(
    ("asks_one", "breaks", "is_whole"),
    [(False, False, True), (False, True, False), (True, True, True)],
)
async def test_an_engine_that_dies_leaves_prompts_without_an_answer(
    asks_one: bool, breaks: bool, is_whole: bool
) -> None:
    """The end of the first of several is not that of the answer, if the exchange broke off."""

    class Engine(Body):
        def __init__(self) -> None:
            self.rest = [*GOOD[:2]]

        async def __anext__(self) -> bytes:
            if self.rest:
                return self.rest.pop(0)
            raise ReadError("gone") if breaks else StopAsyncIteration

    stream = CheckedStream(Engine(), asks_one=asks_one, tells_end=True)
    passed = b""
    with nullcontext() if is_whole else pytest.raises(ReadError):
        async for data in stream:
            passed += data
    assert passed == b"".join(GOOD if is_whole else GOOD[:2])


@pytest.mark.parametrize(
    "end",
    [
        [chunk("", "error")],
        [chunk("", "banana"), DONE],
        [DONE],
        [],
        [b'data: {"error": {"message": "hot"}}\n\n'],
        [chunk("", "stop"), chunk("x", index=1), DONE],
    ],
)
async def test_an_end_that_is_none_is_an_error(end: list[bytes]) -> None:
    """An end that is none is an error after what has come; no [DONE] follows."""
    reply = await asked([chunk("a"), *end])
    assert reply.status == 200
    assert reply.body.startswith(chunk("a"))
    last = json.loads(reply.body.rstrip().rpartition(b"data: ")[2])
    assert "upstream connection lost" in last["error"]["message"]
    assert DONE not in reply.body


@pytest.mark.parametrize(
    "bad", [[chunk("", "error"), DONE], [DONE], [b'data: {"error": "hot"}\n\n'], whole("abort")]
)
async def test_where_nothing_was_sent_the_next_one_answers(bad: list[bytes] | bytes) -> None:
    """Streamed and whole."""
    reply = await asked(bad, whole("stop") if isinstance(bad, bytes) else GOOD)
    assert (reply.status, reply.headers["x-herma-served-by"]) == (200, "cloud:p1")


async def test_a_stream_in_the_place_of_a_whole_answer_is_one() -> None:
    """A stream in the place of a whole answer is one, with all texts and scores of its choices."""
    scored = {"tokens": ["c"], "token_logprobs": [-0.5]}
    choice = {"index": 1, "text": "c", "finish_reason": "stop", "logprobs": scored}
    other = b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"
    reply = await asked(b"".join([chunk("a"), other, *GOOD[1:]]))
    assert (reply.status, reply.json["object"]) == (200, "text_completion")
    first, second = reply.json["choices"]
    assert (first["text"], first["finish_reason"]) == ("a b", "stop")
    assert (second["text"], second["logprobs"]) == ("c", scored)
    assert (await asked(chunk("a") + DONE)).status == 502


@pytest.mark.parametrize("kind", ["text/plain", ""])
async def test_a_stream_of_another_type_is_one(kind: str) -> None:
    """A client that asked for a stream gets the stream as the provider sends it."""
    fake = OddProvider(body=b"".join(GOOD), kind=kind)
    async with open_provider(fake):
        model, tables = chain_of({"p0": fake})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            served(edge_app(edge_of(gateway.services))) as url,
        ):
            body = msgspec.json.encode({"model": "alpha", "prompt": "Hi", "stream": True})
            reply = await ask(url, "POST", "/v1/completions", body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.body == b"".join(GOOD)


async def test_a_refusal_is_in_the_api_s_form() -> None:
    """A refusal has the form of the API, on any path and within a stream too."""
    refused = [b'data: {"error": {"message": "No such thing.", "code": 400}}\n\n', DONE]
    reply = await asked(refused, GOOD)
    assert (reply.status, reply.json["error"]["message"]) == (400, "No such thing.")
    fake = FakeProvider(
        status=422, error_body=b'{"detail": [{"loc": ["body", "x"], "msg": "No."}]}'
    )
    async with open_provider(fake):
        model, tables = chain_of({"p0": fake})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            served(edge_app(edge_of(gateway.services))) as url,
        ):
            body = msgspec.json.encode({"model": "alpha", "input": "x"})
            reply = await ask(url, "POST", "/v1/embeddings", body)
    assert (reply.status, reply.json["error"]["message"]) == (422, "x: No.")


CHATTED = {
    "delta": [{"delta": {"content": "a"}}, {"delta": {"content": " b"}, "finish_reason": "stop"}],
    "message": [{"message": {"role": "assistant", "content": "a b"}, "finish_reason": "stop"}],
}


def texts_in(reply: Reply) -> str:
    datas = [line[6:] for line in reply.body.split(b"\n") if line.startswith(b"data: {")]
    return "".join(one["text"] for data in datas for one in json.loads(data)["choices"])


@pytest.mark.parametrize("form", sorted(CHATTED))
async def test_a_raw_prompt_that_is_answered_as_a_chat_has_a_text(form: str) -> None:
    """Clients of completions read nothing else."""
    events = [
        b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n" for choice in CHATTED[form]
    ]
    assert texts_in(await asked([*events, DONE])) == "a b"
    (choice,) = CHATTED["message"]
    reply = await asked(json.dumps({"choices": [choice]}).encode())
    assert reply.json["choices"][0]["text"] == "a b"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("asks", [True, False])
async def test_an_answer_in_the_other_form_is_one(stream: bool, asks: bool) -> None:
    """An answer in the other form is one, as in chats. The usage is in no chunk without a choice
    unless the client asks for it.
    """
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    body = json.dumps({**json.loads(whole("length")), "usage": usage}).encode()
    if not stream:
        body = b"".join(GOOD)
    options = {"stream_options": {"include_usage": asks}} if stream else {}
    async with open_provider(OddProvider(body=body)) as fake:
        model, tables = chain_of({"p0": fake})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            served(edge_app(edge_of(gateway.services))) as url,
        ):
            given = {"model": "alpha", "prompt": "Hi", "stream": stream, **options}
            reply = await ask(url, "POST", "/v1/completions", msgspec.json.encode(given))
    if not stream:
        (choice,) = reply.json["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("a b", "stop")
        return
    assert reply.headers["content-type"] == "text/event-stream"
    assert texts_in(reply) == "a b"
    assert reply.body.endswith(DONE)
    assert b'"finish_reason":"length"' in reply.body
    assert (b'"choices":[]' in reply.body) is asks
    assert b'"completion_tokens":2' in reply.body


async def test_what_a_filter_ended_is_the_client_s_if_no_other_answers() -> None:
    """In one piece; as in chats, another provider is asked first."""
    filtered = whole("content_filter")
    reply = await asked(filtered)
    assert (reply.status, reply.headers["x-herma-served-by"]) == (200, "cloud:p0")
    assert reply.json == json.loads(filtered)
    assert (await asked(filtered, whole("stop"))).headers["x-herma-served-by"] == "cloud:p1"
    assert (await asked(filtered, whole("abort"))).json == json.loads(filtered)


async def test_embeddings_that_are_none_are_no_answer() -> None:
    """Clients fail at an empty list; the next provider may have some."""
    empty = OddProvider(body=b'{"object": "list", "data": []}')
    full = OddProvider(body=b'{"object": "list", "data": [{"index": 0, "embedding": [0.5]}]}')
    async with open_provider(empty), open_provider(full):
        for fakes, status in (({"p0": empty, "p1": full}, 200), ({"p0": empty}, 502)):
            model, tables = chain_of(fakes)
            async with (
                open_gateway(models=[model], providers=tables) as gateway,
                served(edge_app(edge_of(gateway.services))) as url,
            ):
                body = msgspec.json.encode({"model": "alpha", "input": "x"})
                reply = await ask(url, "POST", "/v1/embeddings", body)
            assert reply.status == status
            assert (b"embedding" in reply.body) or status == 200
    assert reply.json["error"]["message"] == "No provider could answer: p0 sent no embeddings."
