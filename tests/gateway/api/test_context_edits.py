"""Edits of the context in Anthropic's API: what is cleared, and what is said about it."""

import json
from typing import Any

import pytest

from gateway.api import ApiError, ChatRequest, Signer, parse_messages
from gateway.api.context_edits import CLEARED

SIGNER = Signer(b"k" * 32)
USER: dict[str, Any] = {"role": "user", "content": "Look."}


def turn(at: int, name: str = "look") -> list[dict[str, Any]]:
    """A thought, a call and a result of 400 characters."""
    thought = f"I think {at}."
    thinking = {"type": "thinking", "thinking": thought, "signature": SIGNER.signature(thought)}
    call = {"type": "tool_use", "id": f"toolu_{at}", "name": name, "input": {"path": f"f{at}"}}
    result = {"type": "tool_result", "tool_use_id": f"toolu_{at}", "content": f"r{at} " * 100}
    return [
        {"role": "assistant", "content": [thinking, call]},
        {"role": "user", "content": [result]},
    ]


def edited(*edits: dict[str, Any], names: tuple[str, ...] = ("look",) * 5) -> ChatRequest:
    said = [USER]
    for at, name in enumerate(names):
        said += turn(at, name)
    body = {"model": "m", "max_tokens": 9, "messages": said}
    return parse_messages(
        json.dumps({**body, "context_management": {"edits": list(edits)}}).encode(), SIGNER
    )


def results(request: ChatRequest) -> list[bool]:
    """Which results are there."""
    return [m.content != CLEARED for m in request.messages if m.role == "tool"]


def uses(**fields: Any) -> dict[str, Any]:
    trigger = {"type": "tool_uses", "value": 2}
    return {"type": "clear_tool_uses_20250919", "trigger": trigger, **fields}


def test_old_results_are_cleared() -> None:
    """All but the last three, unless told otherwise, once there are more than the trigger."""
    request = edited(uses())
    assert results(request) == [False, False, True, True, True]
    (applied,) = request.context_edits or ()
    assert applied["type"] == "clear_tool_uses_20250919"
    assert applied["cleared_tool_uses"] == 2
    assert applied["cleared_input_tokens"] > 50
    assert request.raw["messages"][2]["content"] == CLEARED
    assert results(edited(uses(keep={"type": "tool_uses", "value": 0}))) == [False] * 5


@pytest.mark.parametrize(
    "fields",
    [
        {"trigger": {"type": "input_tokens", "value": 100_000}},
        {"trigger": None},
        {"trigger": {"type": "tool_uses", "value": 5}},
        {"clear_at_least": {"type": "input_tokens", "value": 10_000}},
        {"exclude_tools": ["look"]},
    ],
)
def test_nothing_is_cleared_before_its_time(fields: dict[str, Any]) -> None:
    """Nothing is cleared before its time; the report is empty then, but present."""
    request = edited(uses(**fields))
    assert results(request) == [True] * 5
    assert request.context_edits == ()


def test_some_tools_are_kept_and_inputs_go_too() -> None:
    """Some tools are kept and inputs are cleared too, as the edit says."""
    names = ("look", "keep", "look", "look", "look", "look")
    request = edited(uses(exclude_tools=["keep"], clear_tool_inputs=True), names=names)
    assert results(request) == [False, True, False, True, True, True]
    arguments = [m.tool_calls[0].arguments for m in request.messages if m.tool_calls]
    assert [text == "{}" for text in arguments] == [True, False, True, False, False, False]


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        (None, 1),
        ({"type": "thinking_turns", "value": 2}, 2),
        ("all", 5),
        ({"type": "all"}, 5),
    ],
)
def test_old_thoughts_are_cleared(keep: Any, left: int) -> None:
    """The last ones stay."""
    edit = {"type": "clear_thinking_20251015"} | ({} if keep is None else {"keep": keep})
    request = edited(edit)
    thoughts = [bool(m.reasoning_content) for m in request.messages if m.role == "assistant"]
    assert thoughts == [False] * (5 - left) + [True] * left
    cleared = [edit["cleared_thinking_turns"] for edit in request.context_edits or ()]
    assert cleared == ([5 - left] if left < 5 else [])


def test_what_is_not_applied_is_named() -> None:
    """A compaction by the server, and edits that nobody knows."""
    request = edited({"type": "compact_20260112"}, {"type": "other_1"}, uses())
    assert request.ignored == (
        "context_management (compact_20260112)",
        "context_management (other_1)",
    )
    assert len(request.context_edits or ()) == 1


@pytest.mark.parametrize(
    "edits",
    [
        {"edits": 7},
        {"edits": ["x"]},
        {"edits": [uses(keep={"type": "tool_uses"})]},
        {"edits": [uses(keep={"type": "tool_uses", "value": -1})]},
        {"edits": [uses(trigger=7)]},
    ],
)
def test_a_broken_edit_is_refused_by_name(edits: dict[str, Any]) -> None:
    """A broken edit is refused by name, with its place."""
    body = {"model": "m", "messages": [USER], "context_management": edits}
    with pytest.raises(ApiError) as refused:
        parse_messages(json.dumps(body).encode(), SIGNER)
    assert str(refused.value.param).startswith("context_management.edits")


def test_a_compaction_of_another_server_replaces_what_was_before() -> None:
    """A compaction of another server, whose text can be read, replaces all before it."""
    block = {"type": "compaction", "content": "They looked."}
    said = [USER, *turn(0), {"role": "assistant", "content": [block]}, {**USER, "content": "Go on"}]
    request = parse_messages(
        json.dumps({"model": "m", "system": "Be kind.", "messages": said}).encode(), SIGNER
    )
    assert [m.role for m in request.messages] == ["system", "user", "assistant", "user"]
    assert "They looked." in (request.messages[1].content or "")
