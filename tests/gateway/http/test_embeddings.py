"""POST /v1/embeddings over real HTTP, by workers over real links."""

import base64
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import openai
import pytest
import trio

from gateway.app import edge_of
from gateway.http.routes import edge_app
from protocol.messages import Embed
from tests.fakes.running_gateway import open_gateway, wait_until
from tests.fakes.served import Reply, ask, served
from tests.fakes.text_files import make_tokenizer
from tests.fakes.whole_gateway import WholeGateway, whole_gateway
from tests.fakes.worker import FakeWorker, open_worker

PATH = "/v1/embeddings"


def _embedder(name: str = "w1") -> FakeWorker:
    worker = FakeWorker(name)
    worker.facts = msgspec.structs.replace(worker.facts, embedding_size=4)
    return worker


@asynccontextmanager
async def _gateway() -> AsyncIterator[WholeGateway]:
    async with whole_gateway(_embedder()) as whole:
        yield whole


async def test_each_input_has_its_embedding_in_order() -> None:
    """Texts, ids and lists of ids; numbers or base64; the usage is that of all inputs."""
    texts = ["word " * at for at in (3, 1, 9, 2, 5, 1, 1, 1, 1, 7)]
    encode = make_tokenizer().encode
    lengths = [len(encode(text).ids) for text in texts]
    async with _gateway() as whole:
        reply = await whole.post(PATH, model="alpha", input=texts)
        body = reply.json
        assert reply.headers["x-herma-worker"] == "w1"
        assert [one["index"] for one in body["data"]] == list(range(10))
        assert [one["embedding"] for one in body["data"]] == [[n, 0.0, 0.0, 0.0] for n in lengths]
        assert body["usage"] == {"prompt_tokens": sum(lengths), "total_tokens": sum(lengths)}
        for given, sizes in (([1, 2, 3], [3]), ([[1], [1, 2]], [1, 2])):
            fields: dict[str, Any] = {"input": given, "encoding_format": "base64"}
            found = (await whole.post(PATH, model="alpha", dimensions=2, **fields)).json["data"]
            values = [struct.unpack("<2f", base64.b64decode(one["embedding"])) for one in found]
            assert values == [(size, 0.0) for size in sizes]


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"input": []}, 400, "input"),
        ({"input": ""}, 400, "input"),
        ({"input": ["a", ""]}, 400, "input[1]"),
        ({"input": ["a", 1]}, 400, "input"),
        ({"input": "a", "dimensions": 5}, 400, "dimensions"),
        ({"input": "a", "dimensions": 0}, 400, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, 400, "encoding_format"),
        ({"input": [10**6]}, 400, None),
        ({"input": "word " * 6000}, 400, None),
        ({"input": "a", "model": "beta"}, 404, None),
    ],
)
async def test_mistakes_are_named(fields: dict[str, Any], status: int, param: str | None) -> None:
    """One clear error for all inputs."""
    async with _gateway() as whole:
        reply = await whole.post(PATH, **{"model": "alpha", **fields})
    assert reply.status == status, reply
    if param is not None:
        assert reply.json["error"]["param"] == param


async def test_a_model_for_answers_gives_none() -> None:
    """A clear 404."""
    async with whole_gateway() as whole:
        reply = await whole.post(PATH, model="alpha", input="a")
        twice = await whole.post(f"/v1{PATH}", model="alpha", input="a")
    assert (reply.status, reply.json["error"]["code"]) == (404, "path_not_served")
    assert "has one /v1 too many" in twice.json["error"]["message"]


async def test_another_worker_goes_on_where_one_dies() -> None:
    """The client sees nothing of it."""
    first, second = _embedder("w1"), _embedder("w2")
    first.pause_after = 0
    replies: list[Reply] = []
    async with (
        open_gateway() as gateway,
        served(edge_app(edge_of(gateway.services))) as url,
        open_worker(gateway.address, first),
        trio.open_nursery() as nursery,
    ):
        await gateway.wait_state("ready")

        async def post() -> None:
            body = msgspec.json.encode({"model": "alpha", "input": ["a", "b c"]})
            replies.append(await ask(url, "POST", PATH, body))

        nursery.start_soon(post)
        await first.wait(Embed)
        async with open_worker(gateway.address, second):
            await gateway.wait_workers(2)
            first.die()
            await second.wait(Embed, count=2)
            await wait_until(lambda: bool(replies))
    assert replies[0].status == 200
    assert replies[0].headers["x-herma-worker"] in {"w1", "w2"}
    assert len(replies[0].json["data"]) == 2


async def test_the_official_client_reads_them() -> None:
    """The official client, which asks for base64 by itself, reads embeddings."""

    def act(url: str) -> list[list[float]]:
        with openai.OpenAI(base_url=url + "/v1", api_key="x", max_retries=0) as client:
            made = client.embeddings.create(model="alpha", input=["one", "one two"], dimensions=3)
        return [one.embedding for one in made.data]

    async with _gateway() as whole:
        found = await trio.to_thread.run_sync(act, whole.url)
    assert [len(one) for one in found] == [3, 3]
    assert found[0][0] < found[1][0]


async def test_what_would_change_the_numbers_is_named() -> None:
    """Fields of other servers; values that change nothing are none."""
    async with _gateway() as whole:
        asked = {"truncate_prompt_tokens": 5, "input_type": "query", "normalize": False}
        reply = await whole.post(PATH, model="alpha", input=["a", "b"], **asked)
        assert reply.headers["x-herma-ignored"] == "input_type, normalize, truncate_prompt_tokens"
        usual = {"normalize": True, "input_type": None, "embedding_types": ["float"], "user": "u"}
        reply = await whole.post(PATH, model="alpha", input="a", **usual)
        assert "x-herma-ignored" not in reply.headers
