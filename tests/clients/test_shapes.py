"""Requests that real clients sent, replayed: nothing is refused, each turn finds the last one in
the cache, and the gateway sees one conversation that is no loop and whose prefix nothing breaks.

They are kept in shapes/, with every text replaced. Each is from a turn of 21 calls of a tool, by

    make test-clients
    python -m tests.clients.record ~/.cache/herma-clients NAME ...

with the versions of clients.toml.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
import pytest

from tests.clients.shapes import SHAPES, Shape, own, read
from tests.clients.turns import scripted_gateway
from tests.fakes.herma_process import HermaProcess

MIN_REQUESTS: Final = 20
MIN_CACHED: Final = 0.95
"""The least cached share of the previous prompt, which the client sends again."""

BLOCK_TOKENS: Final = 32
"""The cache keeps whole blocks of tokens, and the prompt's end differs from the text before a
call by the marks of an answer: more than 5 % of a prompt of 241 tokens.
"""

FILES: Final = sorted(SHAPES.glob("*.json.xz"))


@pytest.fixture(scope="module", name="herma")
def _herma(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HermaProcess]:
    with scripted_gateway(tmp_path_factory.mktemp("gateway"), rules=[{"answer": "Done."}]) as herma:
        yield herma


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.partition(".")[0])
def test_a_client_s_requests_are_taken_and_cached(path: Path, herma: HermaProcess) -> None:
    """No request is refused, and each turn finds the last one by the ids of the prompts, with the
    tokenizer and template of the built-in model.
    """
    shapes = read(path)
    assert len(shapes) >= MIN_REQUESTS
    with httpx.Client(base_url=herma.root_url, timeout=300) as client:
        before = _seen(client)
        counts = [_counts(client, _own(shape, FILES.index(path))) for shape in shapes]
        after = _seen(client)
    (name,) = after.keys() - before.keys()
    assert after[name] == (len(shapes), 0, "")
    for (before, _), (now, cached) in pairwise(counts):
        sent_again = min(before, now)
        assert cached >= min(MIN_CACHED * sent_again, sent_again - BLOCK_TOKENS), counts


def _own(shape: Shape, number: int) -> Shape:
    """With other ids than those of the other clients."""
    return msgspec.json.decode(own(msgspec.json.encode(shape), number), type=Shape)


def _seen(client: httpx.Client) -> dict[str, tuple[int, int, str]]:
    """The turns, the breaks of the prefix, and the loop of each conversation."""
    rows = client.get("/admin/conversations").json()["conversations"]
    return {row["name"]: (row["turns"], row["breaks"], row["loop"]) for row in rows}


def _counts(client: httpx.Client, shape: Shape) -> tuple[int, int]:
    """Tokens of the prompt, and how many of them were cached; the answer comes in one piece."""
    body = {name: value for name, value in shape.body.items() if name != "stream_options"}
    reply = client.post(shape.path, json={**body, "stream": False}, headers=shape.headers)
    assert reply.status_code == 200, reply.text[:1000]
    assert "x-herma-loop" not in reply.headers
    usage: dict[str, Any] = reply.json()["usage"]
    if "cache_read_input_tokens" in usage:
        cached = usage["cache_read_input_tokens"]
        return usage["input_tokens"] + cached, cached
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return usage.get("prompt_tokens") or usage["input_tokens"], details["cached_tokens"]
