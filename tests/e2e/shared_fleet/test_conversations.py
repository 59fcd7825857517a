"""Conversations stay on the worker that holds them; agents' own requests just work."""

import re
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
from openai import OpenAI

from tests.fakes.agent_request import after_tool_result, first_turn, title_call
from tests.fakes.checked_http import checked_client
from tests.fakes.herma_process import HermaProcess

BLOCK = 32
AGENT_OUTPUT_TOKENS = 16


def test_the_second_turn_finds_the_first_in_the_cache(client: OpenAI) -> None:
    """Turn two goes to the same worker and reports the previous prompt as cached, in blocks."""
    for number in range(4):
        history: list[dict[str, Any]] = [
            {"role": "user", "content": f"Conversation {number}. {'Tell me a story. ' * 60}"}
        ]
        first = client.chat.completions.with_raw_response.create(
            model="alpha", messages=history, max_tokens=16, temperature=0
        )
        answer = first.parse()
        assert answer.usage is not None
        history += [
            {"role": "assistant", "content": answer.choices[0].message.content},
            {"role": "user", "content": "And then?"},
        ]
        second = client.chat.completions.with_raw_response.create(
            model="alpha", messages=history, max_tokens=16, temperature=0
        )
        usage = second.parse().usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        cached = usage.prompt_tokens_details.cached_tokens
        assert cached is not None
        assert cached >= answer.usage.prompt_tokens // BLOCK * BLOCK - BLOCK
        assert second.headers["x-herma-worker"] == first.headers["x-herma-worker"]
        assert int(second.headers["x-herma-cached-tokens"]) == cached


def test_different_conversations_spread_over_the_workers(client: OpenAI) -> None:
    """Conversations that go on at the same time do not pile up on one worker: each goes where it is
    said to cost least, those that it delays counted.

    How many it takes is a matter of what the workers were seen to manage: on a machine short of
    cores one of two equal engines measures half the pace of the other, and four delayed answers
    weigh as much. One measured 2.8 times the pace, and six did not.
    """
    routes: list[str] = []
    workers: set[str] = set()
    most = 6
    with ExitStack() as stack:
        while len(workers) < 2:
            assert len(routes) < most, routes
            reply = stack.enter_context(
                client.chat.completions.with_streaming_response.create(
                    model="alpha",
                    messages=[{"role": "user", "content": f"Number {len(routes)}. " * 200}],
                    max_tokens=20_000,
                    stream=True,
                    extra_body={"ignore_eos": True},
                )
            )
            lines = reply.iter_lines()  # dropping it would close the stream
            stack.callback(lines.close)
            next(lines)
            routes.append(reply.headers["x-herma-route"])
            workers.add(reply.headers["x-herma-worker"])
            *parts, next_best = [
                int(number) for number in re.findall(r"(\d+)(?= ms| \+)", routes[-1])
            ]
            # Costs within 5 % are a tie, and each number is rounded.
            assert sum(parts) <= 1.05 * next_best + len(parts), routes
            if next_best > 2 * sum(parts):
                most = 12


@pytest.mark.parametrize("form", [first_turn, after_tool_result, title_call])
def test_an_agent_request_is_answered_with_usage(fleet: HermaProcess, form: Any) -> None:
    """Requests of the form that agents send are answered 200 with usage."""
    usage = _ask(fleet, form("alpha"))
    assert usage["prompt_tokens"] > 30
    assert usage["completion_tokens"] >= 1


def test_the_second_call_of_a_turn_reuses_the_first(fleet: HermaProcess) -> None:
    """An agent's call after a tool result finds system text and tools in the cache."""
    first = _ask(fleet, first_turn("alpha", "replay this turn"))
    body = after_tool_result("alpha")
    body["messages"][1]["content"] = "replay this turn"
    second = _ask(fleet, body)
    cached = second["prompt_tokens_details"]["cached_tokens"]
    assert cached >= first["prompt_tokens"] // BLOCK * BLOCK - BLOCK


def _ask(fleet: HermaProcess, body: dict[str, Any]) -> dict[str, Any]:
    """POST `body` as an agent's HTTP client does, and return the usage of the answer.

    The huge `max_tokens` is lowered, since any answer will do, and most tools are left out, since
    a CPU reads all sixteen for ten seconds.
    """
    body["max_tokens"] = AGENT_OUTPUT_TOKENS
    if "tools" in body:
        body["tools"] = body["tools"][:3]
    with checked_client(fleet.base_url, timeout_s=120) as client:
        reply = client.post("/chat/completions", content=msgspec.json.encode(body))
    assert reply.status_code == 200, reply.text
    if not body.get("stream"):
        usage: dict[str, Any] = reply.json()["usage"]
        return usage
    events = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    last = msgspec.json.decode(events[-2])
    assert last["choices"] == []
    streamed_usage: dict[str, Any] = last["usage"]
    return streamed_usage
