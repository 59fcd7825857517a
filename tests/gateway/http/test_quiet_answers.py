"""Chats whose clients ask for no reasoning: streamed and whole, with the same text and counts."""

from typing import Any

import pytest

from tests.fakes.whole_gateway import whole_gateway
from tests.fakes.worker import FakeWorker

TEXT = "<think>12 + 7 = 19</think>\n\nIt is 19."
ASKED = {"model": "alpha", "messages": [{"role": "user", "content": "12 + 7?"}]}
PATH = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("fields", "is_quiet"),
    [
        ({"include_reasoning": False}, True),
        ({"reasoning": {"exclude": True}}, True),
        ({"reasoning_format": "hidden"}, True),
        ({"include_reasoning": True}, False),
        ({"reasoning": {"effort": "high"}}, False),
        ({"reasoning_format": "parsed"}, False),
        ({"reasoning": None, "include_reasoning": None}, False),
    ],
)
async def test_who_asks_for_no_reasoning_gets_none(fields: dict[str, Any], is_quiet: bool) -> None:
    async with whole_gateway(FakeWorker(text=TEXT)) as whole:
        reply = await whole.post(PATH, **ASKED, **fields)
        options = {"include_usage": True, "continuous_usage_stats": True}
        for stream_options in ({"include_usage": True}, options):
            events = await whole.stream(PATH, **ASKED, **fields, stream_options=stream_options)
            chunks = [one for one in events if isinstance(one, dict)]
            deltas = [one["choices"][0]["delta"] for one in chunks if one["choices"]]
            assert any(delta.get("reasoning_content") for delta in deltas) != is_quiet
            assert "".join(delta.get("content") or "" for delta in deltas) == "It is 19."
            assert chunks[-1]["usage"] == reply.json["usage"]
    message = reply.json["choices"][0]["message"]
    assert ("reasoning_content" in message) != is_quiet
    assert message["content"] == "It is 19."
    assert reply.json["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
