"""What a client joins from a stream is what it gets in one piece, on the real model."""

from typing import Any

import pytest

from tests.fakes.checked_http import checked_client
from tests.fakes.herma_process import HermaProcess
from tests.fakes.stream_checker import check_stream, whole_answers

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def chat(text: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    messages = [{"role": "user", "content": text}]
    body = {"model": "alpha", "messages": messages, "temperature": 0, "max_tokens": 80, **fields}
    return "/chat/completions", body


REQUESTS = {
    "text": chat("Hello, who are you?"),
    "a call behind a thought": chat("What is the weather in Athens?", tools=[WEATHER]),
    "a call that is forced": chat("Athens, please.", tools=[WEATHER], tool_choice="required"),
    "a call that is cut": chat("What is the weather in Athens?", tools=[WEATHER], max_tokens=25),
    "no call": chat("Hello!", tools=[WEATHER], tool_choice="none"),
    "a stop": chat("Hello, who are you?", stop=["small"]),
    "three choices": chat("Tell me of it.", n=3, temperature=1, seed=5, ignore_eos=True),
    "logprobs": chat("Hello, who are you?", logprobs=True, top_logprobs=2),
    "a raw prompt": ("/completions", {"model": "alpha", "prompt": "Hello", "temperature": 0}),
    "two raw prompts": ("/completions", {"model": "alpha", "prompt": ["A", "B"], "seed": 1}),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_stream_joins_to_the_whole_answer(fleet: HermaProcess, name: str) -> None:
    """Text, thoughts, calls and reasons of every choice, and the usage."""
    path, body = REQUESTS[name]
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    with checked_client(fleet.base_url) as client:
        whole = client.post(path, json=body)
        stream = client.post(path, json={**body, **streaming})
    assert (whole.status_code, stream.status_code) == (200, 200), (whole.text, stream.text)
    checked = check_stream(stream.content)
    assert checked.answers() == whole_answers(whole.json())
    assert checked.usage is not None
    usage = whole.json()["usage"]
    assert checked.usage["completion_tokens"] == usage["completion_tokens"]
    assert checked.usage["prompt_tokens"] == usage["prompt_tokens"]
