"""Values of any type in any place of a body: read, or refused with 400, never an error of ours."""

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.api import Signer
from gateway.api.chat_as_responses import parse_any_chat
from gateway.api.completions_parser import parse_completions
from gateway.api.errors import ApiError
from gateway.api.messages_parser import parse_messages
from gateway.api.responses_parser import parse_responses

SIGNER = Signer(b"k" * 32)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
PICTURE = "data:image/png;base64,AAAA"
VALUES: tuple[Any, ...] = ([1], {"a": 1}, 7, True, None, "zzz", [], {}, [None], [[]], -1e308)
NESTED: tuple[Any, ...] = ({"type": [1]}, {"type": {}}, {"role": [1]}, {"name": {}}, {"id": []})

CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "developer", "content": [{"type": "text", "text": "Be."}]},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Hi"},
                {"type": "image_url", "image_url": {"url": PICTURE, "detail": "low"}},
                {"type": "file", "file": {"filename": "a.txt", "file_data": "aGk="}},
                {"type": "input_text", "text": "more"},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Hm.",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "get", "arguments": "{}"}},
                {"id": "b", "type": "custom", "custom": {"name": "exec", "input": "ls"}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "r"}]},
    ],
    "tools": [
        {"type": "function", "function": {"name": "get", "parameters": SCHEMA, "strict": True}},
        {"type": "custom", "custom": {"name": "exec", "format": {"type": "text"}}},
    ],
    "tool_choice": {"type": "function", "function": {"name": "get"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
    "stop": ["a"],
    "stream": True,
    "stream_options": {"include_usage": True},
    "chat_template_kwargs": {"enable_thinking": False},
    "metadata": {"a": "b"},
}
MESSAGES: dict[str, Any] = {
    "model": "m",
    "max_tokens": 9,
    "system": [{"type": "text", "text": "Be.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Hi"},
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"},
                },
                {
                    "type": "document",
                    "source": {"type": "text", "media_type": "text/plain", "data": "d"},
                },
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "tool_use", "id": "toolu_1", "name": "get", "input": {"city": "x"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "content": [{"type": "text", "text": "r"}],
                    "is_error": True,
                }
            ],
        },
    ],
    "tools": [
        {"name": "get", "description": "d", "input_schema": SCHEMA},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "web_search_20250305", "name": "web_search"},
    ],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "context_management": {
        "edits": [
            {
                "type": "clear_tool_uses_20250919",
                "trigger": {"type": "input_tokens", "value": 10},
                "keep": {"type": "tool_uses", "value": 1},
            }
        ]
    },
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
    "metadata": {"user_id": "u"},
}
RESPONSES: dict[str, Any] = {
    "model": "m",
    "input": [
        {"role": "developer", "content": [{"type": "input_text", "text": "Be."}]},
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "Hi"},
                {"type": "input_image", "image_url": PICTURE, "detail": "auto"},
                {"type": "input_file", "filename": "a.txt", "file_data": "aGk="},
            ],
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "s"}],
            "content": [{"type": "reasoning_text", "text": "t"}],
        },
        {"type": "function_call", "call_id": "c1", "name": "get", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "r"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "exec", "input": "ls"},
        {
            "type": "custom_tool_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "ok"}],
        },
        {"type": "local_shell_call", "call_id": "c3", "action": {"command": ["ls"]}},
        {"type": "local_shell_call_output", "id": "c3", "output": "x"},
        {"type": "additional_tools", "tools": [{"type": "function", "name": "more"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "n"}]},
    ],
    "tools": [
        {"type": "function", "name": "get", "parameters": SCHEMA},
        {"type": "custom", "name": "exec", "format": {"type": "text"}},
        {"type": "web_search"},
        {"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "q"}]},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "get"}]},
    "reasoning": {"effort": "low", "summary": "auto"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
    "include": ["reasoning.encrypted_content"],
}
COMPLETION: dict[str, Any] = {"model": "m", "prompt": ["Hi"], "stop": ["a"], "echo": True, "n": 1}

PARSERS: dict[str, tuple[dict[str, Any], Callable[[bytes], object]]] = {
    "chat": (CHAT, lambda body: parse_any_chat(body, SIGNER)),
    "messages": (MESSAGES, lambda body: parse_messages(body, SIGNER)),
    "responses": (RESPONSES, lambda body: parse_responses(body, SIGNER)),
    "completions": (COMPLETION, parse_completions),
}


def places(value: object, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The way to each value within `value`."""
    inner = value.items() if isinstance(value, dict) else ()
    for key, one in enumerate(value) if isinstance(value, list) else inner:
        yield (*at, key)
        yield from places(one, (*at, key))


def changed(body: dict[str, Any], at: tuple[str | int, ...], value: object) -> bytes:
    body = copy.deepcopy(body)
    holder: Any = body
    for key in at[:-1]:
        holder = holder[key]
    holder[at[-1]] = value
    return json.dumps(body).encode()


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_a_value_of_any_type_is_read_or_refused(name: str) -> None:
    """A value of any type is read or refused at every place, also of the type that selects how the
    rest is read.
    """
    body, parse = PARSERS[name]
    parse(json.dumps(body).encode())
    statuses = set()
    for at in places(body):
        for value in (*VALUES, *NESTED, *([one] for one in NESTED)):
            try:
                parse(changed(body, at, value))
            except ApiError as error:
                statuses.add(error.status)
    assert statuses == {400}
