"""Stops and thoughts over real HTTP: in each API that has stops, streamed and whole."""

from typing import Any

import pytest

from protocol.messages import Submit
from tests.fakes.messages_checker import check_messages
from tests.fakes.text_files import make_tokenizer
from tests.fakes.whole_gateway import WholeGateway, whole_gateway
from tests.fakes.worker import FakeWorker

TEXT = "<think>12 + 7 = 19</think>\n\nIt is 19. 1 + 1 is 2."
USER = [{"role": "user", "content": "12 + 7?"}]
TOKENIZER = make_tokenizer()
COUNTED = len(TOKENIZER.encode(TEXT, add_special_tokens=False).ids) - len(
    TOKENIZER.encode(" 1 is 2.", add_special_tokens=False).ids
)


async def _chat(whole: WholeGateway, **fields: Any) -> tuple[str, str, Any, int]:
    asked = {"model": "alpha", "messages": USER, **fields}
    choice = (reply := await whole.post("/v1/chat/completions", **asked)).json["choices"][0]
    message = choice["message"]
    events = await whole.stream(
        "/v1/chat/completions", **asked, stream_options={"include_usage": True}
    )
    deltas = [one["choices"][0]["delta"] for one in events[:-1] if one["choices"]]
    text = "".join(delta.get("content") or "" for delta in deltas)
    thoughts = "".join(delta.get("reasoning") or "" for delta in deltas)
    assert (thoughts, text) == (message["reasoning"], message["content"])
    usage = reply.json["usage"]["completion_tokens"]
    assert events[-2]["usage"]["completion_tokens"] == usage
    return thoughts, text, choice["finish_reason"], usage


async def _messages(whole: WholeGateway, **fields: Any) -> tuple[str, str, Any, int]:
    asked = {
        "model": "alpha",
        "max_tokens": 500,
        "messages": USER,
        "thinking": {"type": "enabled"},
        **fields,
    }
    body = (await whole.post("/v1/messages", **asked)).json
    reply = await whole.post("/v1/messages", stream=True, **asked)
    message = check_messages(reply.body).message
    assert message is not None
    for one in (body, message):
        assert [block["type"] for block in one["content"]] == ["thinking", "text"]
    assert message["content"][1]["text"] == body["content"][1]["text"]
    assert message["usage"]["output_tokens"] == body["usage"]["output_tokens"]
    thinking, text = body["content"]
    usage = body["usage"]["output_tokens"]
    return thinking["thinking"], text["text"], body["stop_sequence"], usage


@pytest.mark.parametrize("is_messages", [False, True])
async def test_a_stop_string_ends_the_answer_and_not_the_thoughts(is_messages: bool) -> None:
    """A sum is thought about before it is written; usage counts through the stop."""
    async with whole_gateway(FakeWorker(text=TEXT)) as whole:
        if is_messages:
            seen = await _messages(whole, stop_sequences=["+"])
        else:
            seen = await _chat(whole, stop=["+"])
    assert seen == ("12 + 7 = 19", "It is 19. 1 ", "+" if is_messages else "stop", COUNTED)


async def test_a_stop_token_ends_the_answer_and_not_the_thoughts() -> None:
    """One of text is not told to the engine, which cannot know where the thoughts end; the end of
    a turn is.
    """
    plus = TOKENIZER.encode(" +", add_special_tokens=False).ids[-1]
    end = TOKENIZER.token_to_id("<|im_start|>")
    async with whole_gateway(FakeWorker(text=TEXT)) as whole:
        seen = await _chat(whole, stop_token_ids=[plus, end])
        submit = await whole.worker.wait(Submit)
    assert submit.sampling.stop_token_ids == (end,)
    assert seen[:3] == ("12 + 7 = 19", seen[1], "stop")
    assert seen[1].rstrip() == "It is 19. 1"
