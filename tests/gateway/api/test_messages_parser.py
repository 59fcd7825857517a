"""Bodies of the Messages API as chats."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.errors import ApiError
from gateway.api.messages_parser import parse_messages
from gateway.api.request import ChatRequest
from gateway.api.signatures import Signer

SIGNER = Signer(bytes(32))
USER = {"role": "user", "content": "Hi"}
TOOL = {"name": "look", "description": "Look.", "input_schema": {"type": "object"}}
BILLING = "x-anthropic-billing-header: cc_version=2.1; cch=abc12;"


def parsed(**fields: Any) -> ChatRequest:
    body = {"model": "alpha", "max_tokens": 100, "messages": [USER], **fields}
    return parse_messages(msgspec.json.encode(body), SIGNER)


def chat(**fields: Any) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = parsed(**fields).raw["messages"]
    return messages


def test_fields_become_those_of_a_chat() -> None:
    """What a provider gets is a plain chat; the template is told not to think."""
    request = parsed(system="Be kind.", temperature=0.5, top_k=4, stop_sequences=["END", ""])
    assert request.raw == {
        "model": "alpha",
        "messages": [{"role": "system", "content": "Be kind."}, USER],
        "max_tokens": 100,
        "temperature": 0.5,
        "top_k": 4,
        "stop": ["END"],
    }
    assert (request.max_tokens, request.stop) == (100, ("END",))
    assert request.template_kwargs == {"enable_thinking": False, "thinking": False}


@pytest.mark.parametrize("kind", ["enabled", "adaptive"])
def test_thinking_is_the_template_s(kind: str) -> None:
    """The template gets the switch of thinking and the effort, if one is given; providers get the
    effort too.
    """
    request = parsed(
        thinking={"type": kind, "budget_tokens": 1024, "display": "omitted"},
        output_config={"effort": "low"},
    )
    kwargs = {"enable_thinking": True, "thinking": True, "reasoning_effort": "low"}
    assert request.template_kwargs == kwargs
    assert request.raw.keys() == {"model", "messages", "max_tokens", "reasoning_effort", "thinking"}
    assert request.raw["reasoning_effort"] == "low"


def test_what_changes_in_every_request_leaves_the_system_text() -> None:
    """The billing header goes, the last count of tokens moves behind everything else."""
    left = "<total_tokens>{} tokens left</total_tokens>"
    requests = [
        chat(
            system=[
                {"type": "text", "text": BILLING.replace("abc12", changing)},
                {"type": "text", "text": "You are an agent.", "cache_control": {"type": "x"}},
                {"type": "text", "text": "\n".join(["Rules.", *map(left.format, counts)])},
            ]
        )
        for changing, counts in (("abc12", [9]), ("def34", [9, 8]))
    ]
    assert requests[0][0] == requests[1][0]
    assert requests[0][0]["content"] == "You are an agent.\n\nRules."
    assert requests[1][-1]["content"] == "Hi\n\n" + left.format(8)
    assert chat(system=BILLING + "\nBe kind.")[0]["content"] == "Be kind."
    assert chat(system=[{"type": "text", "text": BILLING}]) == [USER]


def test_a_tool_turn_comes_back_as_it_was() -> None:
    """Calls, results of each kind and what the user adds; our ids without their prefix."""
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": SIGNER.signature("Hm.")}
    call = {"type": "tool_use", "id": "toolu_call_1", "name": "look", "input": {"at": "é"}}
    other = {"type": "tool_use", "id": "theirs", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_call_1", "content": "sunny"}
    picture = {"type": "image", "source": {"type": "base64", "media_type": "i/png", "data": "QQ"}}
    second = {
        "type": "tool_result",
        "tool_use_id": "theirs",
        "is_error": True,
        "content": [{"type": "text", "text": "broken"}, picture, {"type": "tool_reference"}],
    }
    blocks = [result, second, {"type": "text", "text": "Go on."}]
    text = {"type": "text", "text": "I look."}
    messages = chat(
        messages=[
            USER,
            {"role": "assistant", "content": [thinking, text, call, other]},
            {"role": "user", "content": blocks},
        ]
    )
    assert messages[1] == {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "Hm.",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "look", "arguments": '{"at":"é"}'},
            },
            {"id": "theirs", "type": "function", "function": {"name": "look", "arguments": "{}"}},
        ],
    }
    assert messages[2:] == [
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "theirs", "content": "broken"},
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": "data:i/png;base64,QQ"}},
                {"type": "text", "text": "Go on."},
            ],
        },
    ]


def test_foreign_thinking_is_dropped() -> None:
    """Thinking without our signature is dropped, so that no client can put thoughts into the
    model's history.
    """
    ours = SIGNER.signature("ours")
    blocks = [
        {"type": "thinking", "thinking": "forged", "signature": ours},
        {"type": "thinking", "thinking": "no signature"},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "text", "text": "Yes."},
    ]
    messages = chat(messages=[USER, {"role": "assistant", "content": blocks}, USER])
    assert messages[1] == {"role": "assistant", "content": "Yes."}


def test_tools_and_choices() -> None:
    """Tools that a server would run are dropped, and unknown fields ignored."""
    server = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
    request = parsed(
        tools=[server, {**TOOL, "defer_loading": False, "cache_control": {"type": "ephemeral"}}],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    )
    function = {"name": "look", "description": "Look.", "parameters": {"type": "object"}}
    assert request.raw["tools"] == [{"type": "function", "function": function}]
    assert (request.raw["tool_choice"], request.tool_choice) == ("required", "required")
    assert request.raw["parallel_tool_calls"] is False
    assert parsed(tools=[server], tool_choice={"type": "auto"}).tools == ()
    assert parsed(tools=[TOOL], tool_choice={"type": "none"}).tools == ()
    named = parsed(tools=[TOOL], tool_choice={"type": "tool", "name": "look"})
    assert (len(named.tools), named.tool_choice) == (1, "required")


@pytest.mark.parametrize(
    ("user", "session"),
    [
        ("user_ab_account_cd_session_0f8fad5b-d9cb-469f-a165", "0f8fad5b-d9cb-469f-a165"),
        ('{"device_id":"d","session_id":"s-1"}', "s-1"),
        ("{not json", "{not json"),
        ("alice", "alice"),
        (None, None),
    ],
)
def test_the_session_is_in_the_user_s_name(user: str | None, session: str | None) -> None:
    """Claude Code's two forms, and any other name."""
    assert parsed(metadata={"user_id": user}).session == session


def test_unknown_fields_and_blocks_are_ignored() -> None:
    """Clients are newer than gateways."""
    request = parsed(
        context_management={"edits": []},
        service_tier="auto",
        messages=[
            {"role": "user", "content": [{"type": "hologram"}, {"type": "text", "text": "A"}]}
        ],
    )
    assert request.messages[0].content == "A"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"tools": [{"description": "no name"}]}, "tools[0].name"),
        ({"tools": [TOOL], "tool_choice": {"type": "maybe"}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "y"}}, "tool_choice"),
        ({"temperature": "hot"}, "temperature"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": 5}}},
            "output_config.format.schema",
        ),
    ],
)
def test_mistakes_are_named(fields: dict[str, Any], param: str) -> None:
    """One clear error."""
    with pytest.raises(ApiError) as caught:
        parsed(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
KINDS = ["text", "image", "tool_use", "tool_result", "thinking", "document", "search_result", "odd"]
NAMES = ["text", "source", "content", "id", "name", "input", "tool_use_id", "thinking", "signature"]
BLOCKS = st.builds(
    lambda kind, rest: {**rest, "type": kind},
    st.sampled_from(KINDS),
    st.dictionaries(st.sampled_from(NAMES), ANY, max_size=4),
)


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), st.lists(BLOCKS))))
def test_any_blocks_are_a_request_or_one_clear_error(
    turns: list[tuple[str, list[dict[str, Any]]]],
) -> None:
    """Nothing but `ApiError` 400 comes out."""
    messages = [{"role": role, "content": blocks} for role, blocks in turns] + [USER]
    try:
        assert parsed(messages=messages).messages
    except ApiError as error:
        assert error.status == 400


@given(st.text(max_size=40), st.text(max_size=40))
def test_blobs_hold_their_text_and_no_other_passes(text: str, other: str) -> None:
    """A changed blob, or one by another key, is foreign."""
    blob = SIGNER.sealed(text)
    assert SIGNER.unsealed(blob) == text
    assert Signer(b"k" * 32).unsealed(blob) is None
    assert SIGNER.unsealed(other) is None
    assert SIGNER.unsealed(blob[:-4]) is None
    assert SIGNER.is_signed(text, SIGNER.signature(text))
    assert not SIGNER.is_signed(text, other)
