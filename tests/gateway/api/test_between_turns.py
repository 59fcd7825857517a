"""What clients of Anthropic's API put between the turns of a conversation: tools that come and go,
reminders for one turn, the effort of a turn, and what servers have left in a history.
"""

import json
from typing import Any

import pytest

from gateway.api import ApiError, ChatRequest, Signer, parse_messages
from gateway.api.errors import invalid
from gateway.api.messages_formatter import message_error
from tests.gateway.api.test_deferred_tools import SCHEMA, anthropic_tool, names, prompt_of, text_of

SIGNER = Signer(b"k" * 32)
USER: dict[str, Any] = {"role": "user", "content": "Look."}
SAID: dict[str, Any] = {"role": "assistant", "content": "I looked."}
SHOWN = anthropic_tool("shown")
LATE = anthropic_tool("late")


def parsed(*said: dict[str, Any], **fields: Any) -> ChatRequest:
    body = {"model": "m", "max_tokens": 9, "messages": said, **fields}
    return parse_messages(json.dumps(body).encode(), SIGNER)


def told(*blocks: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"role": "system", "content": list(blocks), **fields}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def added(tool: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": tool}}


def added_by_name(name: str) -> dict[str, Any]:
    return {"type": "tool_addition", "tool": {"type": "tool_reference", "name": name}}


def removed(name: str) -> dict[str, Any]:
    return {"type": "tool_removal", "tool": {"type": "tool_reference", "name": name}}


@pytest.mark.parametrize(
    ("change", "tools"),
    [
        (added(LATE), [SHOWN]),
        (added_by_name("late"), [SHOWN, {**LATE, "defer_loading": True}]),
    ],
)
@pytest.mark.parametrize("role", ["system", "user"])
def test_a_tool_that_is_added_stands_where_it_is_added(
    change: dict[str, Any], tools: list[dict[str, Any]], role: str
) -> None:
    """It can be called from there on, and all before it stays in the prefix cache."""
    message = {"role": role, "content": [text("New:"), change]}
    request = parsed(USER, SAID, message, USER, tools=tools)
    assert names(request.tools) == ["shown", "late"]
    assert names(request.prompt_tools) == ["shown"]
    content = request.messages[2].content or ""
    assert content.startswith("New:\nThis tool can be called from now on:")
    assert '"name": "late"' in content
    assert request.ignored == ()
    assert names(request.raw["tools"]) == ["shown", "late"]
    model = text_of("builtin")
    before = prompt_of(model, parsed(USER, tools=tools))
    after = prompt_of(model, request)
    same = sum(1 for one, other in zip(before, after, strict=False) if one == other)
    assert same > len(before) - 20


def test_a_tool_that_is_added_before_the_conversation_is_one_of_the_request() -> None:
    """The beginning is where a template says how a tool is called."""
    request = parsed(told(text("Be kind."), added(LATE)), USER)
    assert names(request.prompt_tools) == names(request.tools) == ["late"]
    assert [(m.role, m.content) for m in request.messages] == [
        ("system", "Be kind."),
        ("user", "Look."),
    ]


def test_a_tool_that_is_removed_stays_in_the_prompt_and_cannot_be_called() -> None:
    """A tool that is removed stays in the prompt and cannot be called until it is added again."""
    said = USER, SAID, told(removed("late"))
    request = parsed(*said, USER, tools=[SHOWN, LATE])
    assert names(request.tools) == names(request.raw["tools"]) == ["shown"]
    assert names(request.prompt_tools) == ["shown", "late"]
    assert request.messages[2].content == "The tool late can no longer be called."
    with pytest.raises(ApiError, match="not among the tools"):
        parsed(*said, USER, tools=[SHOWN, LATE], tool_choice={"type": "tool", "name": "late"})
    three = [SHOWN, anthropic_tool("third"), LATE]
    chosen = parsed(*said, tools=three, tool_choice={"type": "tool", "name": "shown"})
    assert names(chosen.prompt_tools) == ["shown"]
    again = parsed(*said, told(added_by_name("late")), USER, tools=[SHOWN, LATE])
    assert names(again.tools) == ["shown", "late"]
    none = parsed(*said, USER, tools=[LATE])
    assert (none.tools, names(none.prompt_tools)) == ((), ["late"])
    assert "tools" not in none.raw
    loaded = parsed(USER, told(added(LATE)), SAID, told(removed("late")), USER, tools=[SHOWN])
    assert names(loaded.tools) == names(loaded.prompt_tools) == ["shown"]
    assert '"name": "late"' in (loaded.messages[1].content or "")


@pytest.mark.parametrize("is_first", [True, False])
def test_a_tool_that_is_defined_again_is_one_tool(is_first: bool) -> None:
    """Servers refuse two tools with one name. The later definition holds; that at the beginning of
    the prompt stays in the prefix cache.
    """
    newer = {**SHOWN, "input_schema": {"type": "object", "properties": {"why": SCHEMA}}}
    change = told(added(newer))
    said = [change, USER] if is_first else [USER, SAID, change, USER]
    request = parsed(*said, tools=[SHOWN, LATE])
    assert sorted(names(request.raw["tools"])) == sorted(names(request.tools)) == ["late", "shown"]
    for tool in request.raw["tools"]:
        is_newer = "why" in tool["function"]["parameters"].get("properties", {})
        assert is_newer == (tool["function"]["name"] == "shown")
    assert sorted(names(request.prompt_tools)) == ["late", "shown"]
    if not is_first:
        assert request.prompt_tools == parsed(USER, tools=[SHOWN, LATE]).prompt_tools
        assert '"why"' in (request.messages[2].content or "")


def test_changes_of_tools_that_a_server_would_run_are_named() -> None:
    """They leave nothing in the prompt, not even an empty turn."""
    search = {"type": "web_search_20260318", "name": "web_search"}
    remote = {"type": "mcp_tool_reference", "server_name": "s", "name": "f"}
    changes = added(search), {"type": "tool_addition", "tool": remote}, {"type": "tool_removal"}
    request = parsed(USER, SAID, told(*changes), USER, tools=[SHOWN])
    assert [m.role for m in request.messages] == ["user", "assistant", "user"]
    assert request.ignored == (
        "messages (tool_addition: web_search_20260318)",
        "messages (tool_addition: mcp_tool_reference)",
        "messages (tool_removal: None)",
    )


def test_a_broken_definition_is_named_by_its_place() -> None:
    """A broken definition is named by its place, as one of `tools` would be."""
    broken = {"name": "", "input_schema": SCHEMA}
    with pytest.raises(ApiError) as refused:
        parsed(USER, told(added(broken)))
    assert refused.value.param == "messages[1].content[0].tool.definition.name"


def test_a_forced_call_may_be_one_of_an_added_tool() -> None:
    """Though the request itself has none."""
    request = parsed(USER, told(added(LATE)), USER, tool_choice={"type": "any"})
    assert (names(request.tools), request.tool_choice, request.ignored) == (
        ["late"],
        "required",
        (),
    )


def test_a_reminder_for_one_turn_is_gone_in_the_next() -> None:
    """Its changes of tools stay. Results of calls are the user's messages too."""
    reminder = told(text("Be brief."), added_by_name("late"), clear_at="next_user_message")
    tools = [SHOWN, {**LATE, "defer_loading": True}]
    now = parsed(USER, reminder, tools=tools)
    assert (now.messages[1].content or "").startswith("Be brief.")
    later = parsed(USER, reminder, SAID, USER, tools=tools)
    assert "Be brief." not in (later.messages[1].content or "")
    assert names(later.tools) == ["shown", "late"]
    alone = told(text("Be brief."), clear_at="next_user_message")
    assert [m.role for m in parsed(USER, alone, SAID, USER).messages] == [
        "user",
        "assistant",
        "user",
    ]
    plain = {"role": "system", "content": "Be brief.", "clear_at": "next_user_message"}
    assert "Be brief." not in [m.content for m in parsed(USER, plain, SAID, USER).messages]
    for kept in (told(text("Be brief."), clear_at="never"), told(text("Be brief."))):
        assert parsed(USER, kept, SAID, USER).messages[1].content == "Be brief."


@pytest.mark.parametrize("statement", [{}, {"content": []}])
def test_a_system_message_may_state_the_effort_of_a_turn(statement: dict[str, Any]) -> None:
    """Claude Code's have nothing else; it holds until the user speaks again."""
    low = {"role": "system", "output_config": {"effort": "low"}, **statement}
    use = {"type": "tool_use", "id": "toolu_1", "name": "shown", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "ok"}
    called = {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}
    efforts = {"output_config": {"effort": "high"}}
    for said, effort in (
        ((USER, low), "low"),
        ((USER, low, *called), "low"),
        ((USER, low, SAID, USER), "high"),
        ((USER, SAID, USER), "high"),
    ):
        request = parsed(*said, **efforts)
        assert request.template_kwargs["reasoning_effort"] == effort
        assert request.raw["reasoning_effort"] == effort
        assert all(m.role != "system" for m in request.messages)
    with pytest.raises(ApiError, match="is missing") as refused:
        parsed(USER, {"role": "assistant"})
    assert refused.value.param == "messages[1].content"


def test_what_servers_left_for_themselves_is_no_turn() -> None:
    """A boundary between two models, and a compaction that failed."""
    fallback = {"type": "fallback", "to": {"model": "x"}}
    failed = {"type": "compaction", "content": None}
    said = {"role": "assistant", "content": [fallback, text("I looked.")]}
    request = parsed({"role": "assistant", "content": [failed]}, USER, said, USER)
    assert [(m.role, m.content) for m in request.messages] == [
        ("user", "Look."),
        ("assistant", "I looked."),
        ("user", "Look."),
    ]
    assert request.ignored == ()


def test_a_compaction_keeps_the_tools_that_were_added() -> None:
    """They stand behind the summary."""
    block = {"type": "compaction", "content": "They looked.", "tool_changes": [added(LATE)]}
    said = {"role": "assistant", "content": [block]}
    request = parsed(USER, told(added(LATE)), SAID, said, USER, tools=[SHOWN])
    assert names(request.tools) == ["shown", "late"]
    assert [m.role for m in request.messages] == ["user", "system", "assistant", "user"]
    assert '"name": "late"' in (request.messages[1].content or "")


PICTURE = {"type": "image", "source": {"type": "url", "url": "https://a.example/a.png"}}
USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}


@pytest.mark.parametrize(
    ("role", "block"),
    [
        ("assistant", PICTURE),
        ("assistant", {"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}),
        ("assistant", added(LATE)),
        ("user", USE),
        ("user", {"type": "thinking", "thinking": "Hm.", "signature": "x"}),
        ("system", PICTURE),
        ("system", USE),
    ],
)
def test_blocks_that_are_out_of_place_are_named(role: str, block: dict[str, Any]) -> None:
    """They were lost without a word."""
    message = {"role": role, "content": [text("So."), block]}
    request = parsed(USER, message, USER)
    assert request.messages[1].content == "So."
    assert request.ignored == (f"messages ({role}: {block['type']})",)


def test_a_compaction_of_another_kind_is_named_and_no_summary() -> None:
    """A summary in the place of an answer is nothing that a client may get unasked."""
    request = parsed(USER, compaction={"type": "auto"})
    assert (request.wanted, request.ignored) == ("answer", ("compaction (auto)",))
    assert len(request.messages) == 1
    summary = parsed(USER, compaction={"type": "summarize"})
    assert (summary.wanted, summary.ignored) == ("summary", ())


@pytest.mark.parametrize("kind", ["fallback", "compaction", "text"])
def test_a_role_that_does_not_exist_is_named_whatever_is_in_the_message(kind: str) -> None:
    with pytest.raises(ApiError, match=r"'messages\[0\]\.role' must be user, assistant or system"):
        parsed({"role": "tool", "content": [{"type": kind, "text": "x"}]}, USER)


def test_a_thread_is_not_held_here() -> None:
    """One that is to be continued would be answered without all that was said."""
    with pytest.raises(ApiError) as refused:
        parsed(USER, thread={"type": "continue", "previous_message_id": "msg_1"})
    assert (refused.value.param, refused.value.status) == ("thread", 400)
    error = json.loads(message_error(refused.value, "req_1"))["error"]
    assert error["details"]["error_code"] == "thread_unsupported_request"
    assert error["details"]["unsupported"] == ["thread"]
    assert "details" not in json.loads(message_error(invalid("tools", "Wrong."), "req_1"))["error"]
    assert parsed(USER, thread={"type": "create"}).ignored == ("thread (create)",)
    assert parsed(USER, thread=None).ignored == ()
