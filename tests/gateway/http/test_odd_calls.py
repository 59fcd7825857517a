"""Calls of providers in odd parts: each gets its own arguments, through three APIs."""

from typing import Any

import pytest

from tests.gateway.http.test_ends_of_others import each_api
from tests.gateway.http.test_odd_answers import (
    ARGUMENTS,
    TOOLS,
    OddProvider,
    asked,
    calls_in,
    is_called,
    said_of,
    whole,
)

EMPTY_FIRST: dict[str, list[dict[str, Any]]] = {
    "with the name": [
        {"index": 0, "id": "a", "function": {"name": "get", "arguments": "{}"}},
        {"index": 0, "function": {"arguments": ARGUMENTS[:4]}},
        {"index": 0, "function": {"arguments": ARGUMENTS[4:]}},
    ],
    "alone": [
        {"index": 0, "id": "a", "function": {"name": "get", "arguments": ""}},
        {"index": 0, "function": {"arguments": "{}"}},
        {"index": 0, "function": {"arguments": ARGUMENTS}},
    ],
    "in one": [{"index": 0, "id": "a", "function": {"name": "get", "arguments": "{}" + ARGUMENTS}}],
    "repeated": [
        {"index": 0, "id": "a", "function": {"name": "get", "arguments": "{}"}},
        {"index": 0, "id": "a", "function": {"name": "get", "arguments": ARGUMENTS}},
    ],
}


@each_api
@pytest.mark.parametrize("name", sorted(EMPTY_FIRST))
async def test_an_empty_object_in_front_of_arguments_is_none(api: str, name: str) -> None:
    """Anthropic's streams begin a call with one, and some proxies pass it on."""
    reply = await asked(
        api, OddProvider(streamed=calls_in(*EMPTY_FIRST[name])), stream=True, tools=TOOLS[api]
    )
    assert said_of(api, reply, stream=True)["calls"] == [("get", ARGUMENTS)]
    function = {"name": "get", "arguments": "{}" + ARGUMENTS}
    message = {"role": "assistant", "content": None, "tool_calls": [{"function": function}]}
    fake = OddProvider(body=whole(message, "tool_calls"))
    reply = await asked(api, fake, stream=False, tools=TOOLS[api])
    assert is_called(said_of(api, reply, stream=False)["calls"], ("get", {"city": "x"}))


@each_api
async def test_an_empty_object_alone_is_the_arguments(api: str) -> None:
    """An empty object alone is the arguments of its call, also of each of several calls before the
    next one begins.
    """
    first = {"index": 0, "id": "a", "function": {"name": "get", "arguments": "{}"}}
    second = {"index": 1, "id": "b", "function": {"name": "get_weather", "arguments": "{}"}}
    third = {"index": 2, "id": "c", "function": {"name": "get", "arguments": ARGUMENTS}}
    told = calls_in(first, second, third)
    reply = await asked(api, OddProvider(streamed=told), stream=True, tools=TOOLS[api])
    made = said_of(api, reply, stream=True)["calls"]
    assert is_called(made, ("get", {}), ("get_weather", {}), ("get", {"city": "x"}))


@each_api
async def test_the_index_of_a_call_may_be_a_text(api: str) -> None:
    """Parts that alternate stay those of their call."""
    told = calls_in(
        {"index": "0", "id": "a", "function": {"name": "get", "arguments": ""}},
        {"index": "1", "id": "b", "function": {"name": "get_weather", "arguments": ""}},
        {"index": "0", "function": {"arguments": ARGUMENTS}},
        {"index": "1", "function": {"arguments": '{"city":"y"}'}},
    )
    reply = await asked(api, OddProvider(streamed=told), stream=True, tools=TOOLS[api])
    made = said_of(api, reply, stream=True)["calls"]
    assert is_called(made, ("get", {"city": "x"}), ("get_weather", {"city": "y"}))
