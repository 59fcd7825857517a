"""What is done with a request before it has a place."""

from typing import Any

import msgspec
import pytest

from gateway.api.chat_parser import parse_chat_request
from gateway.api.request import ChatRequest
from gateway.turn.preparation import RENDER_CHARS, is_quickly_rendered

LONG = "x" * (RENDER_CHARS + 1)


def asked(*messages: dict[str, Any], **fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": messages or ({"role": "user", "content": "Hi"},), **fields}
    return parse_chat_request(msgspec.json.encode(body))


def call(name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "1", "function": function}]}


@pytest.mark.parametrize(
    "request_",
    [
        asked({"role": "user", "content": LONG}),
        asked({"role": "user", "content": "Hi", "name": LONG}),
        asked({"role": "assistant", "reasoning_content": LONG}),
        asked({"role": "tool", "content": "1", "tool_call_id": LONG}),
        asked(call(LONG, "{}")),
        asked(call("f", LONG)),
        asked(*[{"role": "user", "content": ""}] * 1000),
        asked(chat_template_kwargs={"x": LONG}),
        asked(chat_template_kwargs={"x": [[0] * 9] * 9}),
    ],
)
def test_whatever_makes_a_prompt_long_is_rendered_in_a_thread(request_: ChatRequest) -> None:
    """No field of a request can hold up the loop, on which all other streams run."""
    assert not is_quickly_rendered(request_)


def test_a_short_chat_is_rendered_at_once() -> None:
    """A thread would cost more than the work."""
    assert is_quickly_rendered(asked())
    assert is_quickly_rendered(
        asked(chat_template_kwargs={"enable_thinking": False}, reasoning_effort="low")
    )
