"""`stream_options.continuous_usage_stats`, over real HTTP."""

from typing import Any

import pytest

from tests.fakes.whole_gateway import whole_gateway
from tests.fakes.worker import FakeWorker

USER = [{"role": "user", "content": "Hi"}]
EVERY = {"include_usage": True, "continuous_usage_stats": True}
CALL = '<think>Hm.</think>So:<tool_call>{"name": "f", "arguments": {}}</tool_call>'
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": USER}),
        ("/v1/chat/completions", {"messages": USER, "n": 2, "tools": [TOOL], "logprobs": True}),
        ("/v1/completions", {"prompt": "a", "max_tokens": 99}),
        ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 99}),
    ],
)
async def test_every_chunk_tells_the_usage_so_far(path: str, fields: dict[str, Any]) -> None:
    """Every chunk has the usage so far, which only rises to that of the whole answer; all else in
    the stream is unchanged.
    """
    asked: dict[str, Any] = {"model": "alpha", "seed": 1, **fields}
    async with whole_gateway(FakeWorker(text=CALL)) as whole:
        *chunks, last, done = await whole.stream(path, **asked, stream_options=EVERY)
        *plain, plain_last, _ = await whole.stream(
            path, **asked, stream_options={"include_usage": True}
        )
    assert done == "[DONE]"
    assert last["choices"] == []
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks if "usage" in chunk]
    assert counts == sorted(counts)
    assert 0 < counts[0] < counts[-1] == last["usage"]["completion_tokens"]
    assert last["usage"]["total_tokens"] == plain_last["usage"]["total_tokens"]
    assert not any("usage" in chunk for chunk in plain)
    assert len(chunks) == len(plain)
    opening = fields.get("n", 1) if "messages" in fields else 0
    assert all("usage" in chunk for chunk in chunks[opening:])


async def test_without_the_last_chunk_there_is_no_count_at_all() -> None:
    """Without the last chunk there is no count at all: as in vLLM, the option is one of the usage
    that was asked for.
    """
    options = {"continuous_usage_stats": True}
    async with whole_gateway() as whole:
        events = await whole.stream(
            "/v1/chat/completions", model="alpha", messages=USER, stream_options=options
        )
    assert not any("usage" in event for event in events[:-1])
