"""Which paths are passed on to providers, and what such a request is charged by."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from config import KeyConfig, LimitsConfig, PriceConfig, hash_api_key
from gateway.app import edge_of
from gateway.http.routes import edge_app
from tests.fakes.provider import FakeProvider, open_provider
from tests.fakes.running_gateway import chain_of, open_gateway
from tests.fakes.served import Reply, ask, served
from tests.gateway.http.test_odd_answers import OddProvider

KEY = "sk-of-a-client"
STEP_UP = (
    "../../admin/keys", "..", "../models", "embeddings/../../admin", "./embeddings",
    "%2e%2e/admin", "%2E%2e/%2e./admin", ".%2e/admin", "%2e%2e%2fadmin", "..%2f..%2fadmin",
    "%252e%252e/admin", "%252fadmin", "..%255cadmin", "..%5cadmin", "..\\admin", "a\\..\\b",
    "embeddings%3Fx=1", "embeddings%23x", "embeddings#x", "admin%00", "embeddings%0d%0ax:y",
    "/admin", "images//generations", "embeddings//", "..;/admin", "embeddings;x=1", "%c0%ae./x",
    "rerank/%2e", "...", ".well-known/x", "%EF%BC%8E%EF%BC%8E/admin", "models/../../admin",
)  # fmt: skip


class Asking:
    """A gateway with one provider, asked with a key."""

    def __init__(self, url: str, provider: FakeProvider) -> None:
        self.url = url
        self.provider = provider

    async def post(self, path: str, **fields: Any) -> Reply:
        body = msgspec.json.encode({"model": "alpha", "input": "x", **fields})
        return await ask(self.url, "POST", path, body, authorization=f"Bearer {KEY}")

    def paths(self) -> list[str]:
        return [one.path for one in self.provider.requests]


@asynccontextmanager
async def asking(
    provider: FakeProvider | None = None, cloud: str = "allow", **options: Any
) -> AsyncIterator[Asking]:
    """`options` are fields of the provider's table, or `paths` of the gateway, or `limits` of the
    key.
    """
    paths, limits = options.pop("paths", ()), options.pop("limits", LimitsConfig())
    key = KeyConfig(name="k", hash=hash_api_key(KEY), cloud=cloud, limits=limits)
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    async with open_provider(provider or FakeProvider(usage=usage)) as fake:
        model, tables = chain_of({"p": fake})
        tables = {name: msgspec.structs.replace(one, **options) for name, one in tables.items()}
        async with (
            open_gateway(
                models=[model], providers=tables, keys=[key], paths=paths, rejoin_wait_s=0.01
            ) as gateway,
            served(edge_app(edge_of(gateway.services))) as url,
        ):
            yield Asking(url, fake)


@pytest.mark.parametrize("root", ["/v1/", "/", "/v1/v1/", "/images/"])
async def test_no_path_leaves_the_root(root: str) -> None:
    """A path that leaves the root is refused, so a provider never sees it."""
    async with asking(paths=("/videos",)) as gateway:
        replies = {path: (await gateway.post(root + path)).status for path in STEP_UP}
        # Below /images a name that is plain, but on no list.
        wrong = {path: status for path, status in replies.items() if status != 400}
        assert not wrong
        assert gateway.paths() == []
        assert (await gateway.post("/v1/embeddings")).status == 200
        assert gateway.paths() == ["/v1/embeddings"]


async def test_only_paths_of_the_list_are_passed_on() -> None:
    """More of them by `paths`; a query is dropped, and the key is asked for first."""
    async with asking(paths=("/videos", "/jobs/start")) as gateway:
        for path in ("/v1/fine_tuning/jobs", "/v1/files", "/v1/rerank/", "/v1/v1/embeddings"):
            refused = await gateway.post(path)
            assert (refused.status, refused.json["error"]["code"]) == (404, "path_not_served")
        assert "one /v1 too many" in refused.json["error"]["message"]
        assert (await ask(gateway.url, "POST", "/v1/files", b"{}")).status == 401
        assert gateway.paths() == []
        served_paths = ["/v1/videos", "/v1/jobs/start", "/v1/rerank", "/v1/images/generations"]
        for path in (*served_paths, "/rerank?x=../../admin"):
            assert (await gateway.post(path)).status == 200, path
        assert gateway.paths() == [*served_paths, "/v1/rerank"]


@pytest.mark.parametrize("path", ["/v1/images/generations", "/v1/audio/speech", "/v1/videos"])
async def test_what_no_token_price_covers_is_refused_under_a_limit(path: str) -> None:
    """A limit of the provider or of the key; without one it is passed on."""
    price = PriceConfig(input=1.0, output=1.0)
    for limited in ({"limits": LimitsConfig(daily=5.0)}, {}):
        async with asking(paths=("/videos",), price=price, **limited) as gateway:
            reply = await gateway.post(path)
            assert reply.status == (429 if limited else 200)
            if limited:
                assert "the price of such a request" in reply.json["error"]["message"]
            assert len(gateway.paths()) == (0 if limited else 1)


async def test_a_price_per_request_counts_pictures() -> None:
    """Each of `n` costs it; a limit stops those that no longer fit."""
    price = PriceConfig(input=0, output=0, request=0.04)
    async with asking(price=price, limits=LimitsConfig(daily=0.20)) as gateway:
        assert (await gateway.post("/v1/images/generations", n=3)).status == 200
        assert (await gateway.post("/v1/images/generations", n=3)).status == 429
        assert (await gateway.post("/v1/images/generations")).status == 200
        form = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nalpha\r\n'
        form += b'--b\r\ncontent-disposition: form-data; name="n"\r\n\r\n%s\r\n--b--\r\n'
        kind = {"content_type": "multipart/form-data; boundary=b", "x_api_key": KEY}
        edits = "/v1/images/edits"
        assert (await ask(gateway.url, "POST", edits, form % b"2", **kind)).status == 429
        assert len(gateway.paths()) == 2
        twice = form.replace(b'name="model"', b'name="n"').replace(b"alpha", b"1")
        twice = form[: form.index(b"--b", 3)] + twice
        assert (await ask(gateway.url, "POST", edits, twice % b"2", **kind)).status == 400


async def test_prompts_alone_need_no_bound_of_an_answer() -> None:
    """Embeddings have no output; a refusal of the provider costs nothing."""
    price = PriceConfig(input=100.0, output=100.0)
    async with asking(price=price, limits=LimitsConfig(daily=0.1)) as gateway:
        assert (await gateway.post("/v1/embeddings")).status == 200
    async with asking(FakeProvider(status=400), price=price) as gateway:
        assert (await gateway.post("/v1/embeddings")).status == 400


async def test_raw_completions_of_a_model_that_only_providers_have() -> None:
    """Providers answer raw completions of a model that only they serve, also with several prompts,
    each of which is charged; one that has no such path makes a final 404, and is no worse for
    chats.
    """
    price = PriceConfig(input=0.0, output=1_000.0)
    async with asking(price=price, limits=LimitsConfig(daily=1.0)) as gateway:
        assert (await gateway.post("/v1/completions", prompt="x", max_tokens=50)).status == 200
        many = {"prompt": ["x"] * 5, "n": 2, "max_tokens": 150}
        refused = await gateway.post("/v1/completions", **many)
        assert (refused.status, refused.json["error"]["code"]) == (400, "output_cap_required")
        one = {**many, "prompt": [1, 2, 3]}
        assert (await gateway.post("/v1/completions", **one)).status == 200
        assert gateway.paths() == ["/v1/completions"] * 2
    async with asking(FakeProvider(status=404)) as gateway:
        for _ in range(8):
            refused = await gateway.post("/v1/completions", prompt="x")
            assert (refused.status, refused.json["error"]["code"]) == (404, "path_not_served")
        gateway.provider.status = 200
        assert (await gateway.post("/completions", prompt="x")).status == 200
    async with asking(cloud="never") as gateway:
        assert (await gateway.post("/v1/completions", prompt="x")).status == 503
        assert gateway.paths() == []


EMBEDDED = b'{"object": "list", "data": [{"index": 0, "embedding": [0.5]}], "message": ""}'
PAGE = b"<!DOCTYPE html><p>Sign in"
NO_ANSWERS = {
    "error": b'{"error": {"message": "It is hot."}}',
    "text": b'{"error": "It is hot."}',
    "vllm": b'{"object": "error", "message": "It is hot.", "code": 500}',
    "detail": b'{"detail": "It is hot."}',
    "minimax": b'{"data": null, "base_resp": {"status_code": 1008, "status_msg": "It is hot."}}',
    "gateway": b'{"status": 500, "message": "It is hot.", "path": "/v1/embeddings"}',
    "page": PAGE,
    "nothing": b"",
    "half": EMBEDDED[:30],
}


@pytest.mark.parametrize("name", sorted(NO_ANSWERS))
async def test_a_good_status_makes_no_answer(name: str) -> None:
    """The next provider is asked, and the words reach the client if there is none."""
    body = NO_ANSWERS[name]
    odd, sound = OddProvider(body=body), OddProvider(body=EMBEDDED)
    asked = msgspec.json.encode({"model": "alpha", "input": "x"})
    for fakes in ([odd], [odd, sound]):
        async with open_provider(fakes[0]) as first, open_provider(fakes[-1]) as last:
            both = {"p0": first, "p1": last} if fakes[1:] else {"p0": first}
            model, tables = chain_of(both)
            async with (
                open_gateway(models=[model], providers=tables) as gateway,
                served(edge_app(edge_of(gateway.services))) as url,
            ):
                reply = await ask(url, "POST", "/v1/embeddings", asked)
        if fakes[1:]:
            assert (reply.status, reply.body) == (200, EMBEDDED)
        else:
            assert reply.status == 502
            assert (b"It is hot" in reply.body) is (b"hot" in body)


async def test_a_refusal_with_a_good_status_is_one() -> None:
    """A refusal with a good status ends the request, and no other provider is asked."""
    odd = OddProvider(body=b'{"error": {"message": "No such input.", "code": 400}}')
    async with asking(odd) as gateway:
        reply = await gateway.post("/v1/embeddings")
    assert (reply.status, reply.json["error"]["message"]) == (400, "No such input.")


@pytest.mark.parametrize(
    ("path", "kind", "body"),
    [
        ("/embeddings", "application/json", b"[[0.5]]"),
        ("/embeddings", "application/json", b'{"data": "' + b"A" * 200_000 + b'"}'),
        ("/audio/transcriptions", "text/plain", b""),
        ("/audio/speech", "audio/mpeg", b"\xff\xf3" * 100_000),
        ("/videos", "application/json", b'{"success": true, "message": "Queued.", "code": 200}'),
        ("/rerank", "application/json", b'{"results": [], "error": null, "detail": ""}'),
    ],
)
async def test_what_may_be_an_answer_passes_unchanged(path: str, kind: str, body: bytes) -> None:
    """A body of any type and length that may be an answer passes unchanged."""
    odd = OddProvider(body=body, kind=kind)
    async with asking(odd, paths=("/videos",)) as gateway:
        reply = await gateway.post(f"/v1{path}")
    assert (reply.status, reply.body) == (200, body)
