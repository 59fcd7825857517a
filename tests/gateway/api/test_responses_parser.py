"""Bodies of the Responses API as chats."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.errors import ApiError
from gateway.api.responses_parser import Responses, parse_responses
from gateway.api.responses_tools import ToolName
from gateway.api.signatures import Signer

SIGNER = Signer(bytes(32))
BOOK = {
    "type": "function",
    "name": "book",
    "description": "Book.",
    "parameters": {"type": "object"},
}


def parsed(**fields: Any) -> Responses:
    return parse_responses(msgspec.json.encode({"model": "alpha", "input": "Hi", **fields}), SIGNER)


def chat(items: list[dict[str, Any]], **fields: Any) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = parsed(input=items, **fields).request.raw["messages"]
    return messages


def test_fields_become_those_of_a_chat() -> None:
    """Fields become those of a chat, as a provider gets them; the conversation has a name."""
    asked = parsed(
        instructions="Be kind.",
        max_output_tokens=50,
        temperature=0.5,
        reasoning={"effort": "low", "summary": "auto"},
        text={"verbosity": "low", "format": {"type": "json_schema", "name": "x", "schema": {}}},
        prompt_cache_key="conversation-1",
        store=False,
        service_tier="auto",
        client_metadata={"a": 1},
        stream=True,
    )
    schema = {"name": "x", "schema": {}}
    assert asked.request.raw == {
        "model": "alpha",
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Hi"},
        ],
        "max_tokens": 50,
        "temperature": 0.5,
        "reasoning_effort": "low",
        "stream": True,
        "stream_options": {"include_usage": True},
        "response_format": {"type": "json_schema", "json_schema": schema},
    }
    assert asked.request.session == "conversation-1"
    assert asked.echo["instructions"] == "Be kind."


def test_a_tool_turn_comes_back_as_it_was() -> None:
    """What the model wrote between two inputs is one message; results are text or parts."""
    blob = SIGNER.sealed("Hm.")
    written = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": blob},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I book."}],
        },
        {
            "type": "function_call",
            "call_id": "c1",
            "name": "look_up",
            "namespace": "mcp",
            "arguments": '{"a": ',
        },
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "*** B"},
    ]
    results = [
        {"type": "function_call_output", "call_id": "c1", "output": "done"},
        {
            "type": "custom_tool_call_output",
            "call_id": "c2",
            "output": [
                {"type": "input_text", "text": "one"},
                {"type": "input_text", "text": "two"},
                {"type": "input_image", "image_url": "data:x"},
            ],
        },
    ]
    user = {"role": "user", "content": [{"type": "input_text", "text": "Go."}]}
    messages = chat([user, *written, *results, {"type": "web_search_call", "id": "ws"}])
    calls = [
        ("c1", "mcp__look_up", '{"a": '),
        ("c2", "patch", '{"input":"*** B"}'),
    ]
    assert messages[0] == {"role": "user", "content": "Go."}
    assert messages[1] == {
        "role": "assistant",
        "content": "I book.",
        "reasoning_content": "Hm.",
        "tool_calls": [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id_, name, arguments in calls
        ],
    }
    assert messages[2:] == [
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
        {"role": "tool", "tool_call_id": "c2", "content": "one\ntwo"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]},
    ]


def test_reasoning_of_others_is_ignored_and_plain_text_is_taken() -> None:
    """A foreign blob says nothing; null content and null blob are allowed."""
    items = [
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "gAAAforeign"},
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None},
        {"role": "assistant", "content": "Yes."},
    ]
    user = {"role": "user", "content": "Hi"}
    assert chat([user, *items, user])[1] == {"role": "assistant", "content": "Yes."}
    plain = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]}
    assert chat([user, plain])[1]["reasoning_content"] == "Hm."
    summary = [{"type": "summary_text", "text": "Hm"}, {"type": "summary_text", "text": "."}]
    alone = {"type": "reasoning", "summary": summary}
    assert chat([user, alone])[1]["reasoning_content"] == "Hm."
    assert chat([user, plain | {"summary": summary}])[1]["reasoning_content"] == "Hm."
    foreign = items[0] | {"summary": summary}
    assert chat([user, foreign, items[2], user])[1] == {"role": "assistant", "content": "Yes."}


def test_tools_have_the_order_of_a_chat_and_schemas_their_own() -> None:
    """A template writes them as they are, and the model was trained on that order."""
    schema = {"required": ["b"], "properties": {"b": {"type": "string"}}, "type": "object"}
    said = {"parameters": schema, "strict": True, "description": "Look.", "name": "look"}
    asked = parsed(
        tools=[
            {"type": "function", **said},
            {"type": "namespace", "name": "mcp", "tools": [{"type": "function", **said}]},
            {"type": "tool_search", "execution": "client", **said},
        ]
    )
    tools = asked.request.raw["tools"]
    assert len(tools) == 3
    for tool in tools:
        order = [key for key in tool["function"] if key != "strict"]
        assert order == ["name", "description", "parameters"]
        assert str(tool["function"]["parameters"]) == str(schema)


def test_tools_of_every_kind() -> None:
    """Functions, namespaces and texts are functions; those that a server would run are dropped."""
    asked = parsed(
        tools=[
            BOOK,
            {"type": "web_search"},
            {"type": "code_interpreter"},
            {"type": "image_generation", "size": "big"},
            {
                "type": "custom",
                "name": "patch",
                "description": "Patch.",
                "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"},
            },
            {"type": "namespace", "name": "mcp", "tools": [{"type": "function", "name": "look"}]},
        ]
    )
    book, patch, look = (tool["function"] for tool in asked.request.raw["tools"])
    assert book == {"name": "book", "description": "Book.", "parameters": {"type": "object"}}
    assert patch["description"] == "Patch.\n\nThe input follows this lark grammar:\nstart: X"
    assert patch["parameters"]["required"] == ["input"]
    assert look["name"] == "mcp__look"
    assert asked.names == {
        "book": ToolName("function", "book"),
        "patch": ToolName("custom", "patch"),
        "mcp__look": ToolName("function", "look", "mcp"),
    }
    assert "tools" not in parsed(tools=[{"type": "web_search"}], tool_choice="auto").request.raw


@pytest.mark.parametrize(
    ("choice", "seen", "rule"),
    [
        (None, ["book", "patch"], "auto"),
        ("required", ["book", "patch"], "required"),
        ("none", [], "none"),
        ({"type": "function", "name": "book"}, ["book"], "required"),
        ({"type": "custom", "name": "patch"}, ["patch"], "required"),
        ({"type": "web_search"}, ["book", "patch"], "auto"),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"name": "patch"}]},
            ["patch"],
            "required",
        ),
    ],
)
def test_choices(choice: Any, seen: list[str], rule: str) -> None:
    """A choice decides which tools the model sees, and whether it must call one."""
    request = parsed(tools=[BOOK, {"type": "custom", "name": "patch"}], tool_choice=choice).request
    assert [tool["function"]["name"] for tool in request.tools] == seen
    assert request.tool_choice == rule


def test_a_probe_without_input_is_a_request() -> None:
    """codex asks so whether somebody is there."""
    assert chat([], max_output_tokens=1) == [{"role": "user", "content": ""}]


@pytest.mark.parametrize(
    ("fields", "session"),
    [
        ({"prompt_cache_key": "thread-1"}, "thread-1"),
        ({"prompt_cache_key": "pck_0123"}, None),
        ({"prompt_cache_key": "k", "metadata": {"session_id": "s"}}, "s"),
        ({"conversation": {"id": "conv_1"}}, "conv_1"),
    ],
)
def test_the_conversation_has_a_name(fields: dict[str, Any], session: str | None) -> None:
    """codex's thread; a hash of the prompt is none."""
    assert parsed(**fields).request.session == session


@pytest.mark.parametrize(
    ("fields", "status", "param", "code"),
    [
        (
            {"previous_response_id": "resp_0", "conversation": {"id": "conv_0"}},
            400,
            "conversation",
            "invalid_value",
        ),
        ({"background": True, "store": False}, 400, "background", "invalid_value"),
        ({"input": None}, 400, "input", "invalid_value"),
        ({"input": [{"role": "robot", "content": "x"}]}, 400, "input[0].role", "invalid_value"),
        ({"input": [{"role": "user", "content": 5}]}, 400, "input[0].content", "invalid_value"),
        ({"tools": [{"type": "function"}]}, 400, "tools[0].name", "invalid_value"),
        ({"temperature": "hot"}, 400, "temperature", "invalid_value"),
    ],
)
def test_mistakes_are_named(fields: dict[str, Any], status: int, param: str, code: str) -> None:
    """One clear error."""
    with pytest.raises(ApiError) as caught:
        parsed(**fields)
    found = caught.value
    assert (found.status, found.param, found.code) == (status, param, code)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
KINDS = [
    "message", "reasoning", "function_call", "function_call_output", "custom_tool_call",
    "custom_tool_call_output", "item_reference", "odd",
]  # fmt: skip
FIELDS = ["role", "content", "name", "arguments", "output", "call_id", "input", "namespace"]
ITEMS = st.builds(
    lambda kind, role, rest: {**rest, "type": kind, "role": role},
    st.sampled_from(KINDS),
    st.sampled_from(["user", "assistant", "developer"]),
    st.dictionaries(st.sampled_from([*FIELDS, "encrypted_content"]), ANY, max_size=5),
)


@given(st.lists(ITEMS, max_size=5))
def test_any_items_are_a_request_or_one_clear_error(items: list[dict[str, Any]]) -> None:
    """Nothing but `ApiError` 400 comes out."""
    try:
        assert parsed(input=items).request.messages
    except ApiError as error:
        assert error.status == 400
