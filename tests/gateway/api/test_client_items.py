"""The Responses API's own tools that a client runs: what a model is told, and what comes back."""

import json
from typing import Any

import msgspec
import pytest

from gateway.api.api_format import AnswerHead
from gateway.api.events import (
    ChoiceFinished,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from gateway.api.responses_formatter import responses_format
from gateway.api.responses_parser import Responses, parse_responses
from gateway.api.responses_tools import ToolName
from gateway.api.signatures import Signer
from tests.fakes.responses_checker import check_responses

SIGNER = Signer(bytes(32))
HEAD = AnswerHead("resp_1", 1_800_000_000, "alpha")
OWN = [{"type": "shell"}, {"type": "local_shell"}, {"type": "apply_patch"}]


def parsed(**fields: Any) -> Responses:
    return parse_responses(msgspec.json.encode({"model": "alpha", "input": "Hi", **fields}), SIGNER)


def item_of(tool: str, arguments: str, *, is_whole: bool = True) -> tuple[dict[str, Any], Any]:
    """The item of a call in a whole answer, and the checked stream of it."""
    asked = parsed(tools=OWN)
    form = responses_format(asked, SIGNER)
    half = len(arguments) // 2
    events = [
        TextDelta(0, "I look."),
        ToolCallStart(0, 0, "call_1", tool),
        ToolCallArguments(0, 0, arguments[:half]),
        ToolCallArguments(0, 0, arguments[half:]),
        ToolCallEnd(0, 0, is_whole=is_whole),
        ChoiceFinished(0, "tool_calls" if is_whole else "length"),
    ]
    builder, stream = form.whole(HEAD), form.streamed(HEAD)
    parts = [stream.head(1)]
    for event in events:
        builder.add(event)
        parts += [stream.format(event), stream.keep_alive()]
    checked = check_responses(b"".join([*parts, stream.done()]))
    item = json.loads(builder.body())["output"][1]
    assert checked.items[1] == item
    return item, checked


def test_each_is_a_function_that_a_model_can_call() -> None:
    """With a description and parameters: models elsewhere were not trained with them."""
    asked = parsed(tools=OWN)
    tools = [tool["function"] for tool in asked.request.raw["tools"]]
    assert [tool["name"] for tool in tools] == ["shell", "local_shell", "apply_patch"]
    assert all(tool["description"] for tool in tools)
    required = [tool["parameters"]["required"] for tool in tools]
    assert required == [["commands"], ["command"], ["type", "path"]]
    assert asked.names["shell"] == ToolName("shell", "shell")
    assert asked.request.ignored == ()
    assert asked.echo["tools"] == OWN


def test_a_shell_in_a_container_of_the_server_is_named() -> None:
    there = {"type": "shell", "environment": {"type": "container_auto"}}
    asked = parsed(tools=[there])
    assert "tools" not in asked.request.raw
    assert asked.request.ignored == ("tools[0] (shell)",)
    assert asked.echo["tools"] == []


def test_skills_of_a_local_shell_are_told() -> None:
    skill = {"name": "pdf", "description": "Read PDFs.", "path": "/skills/pdf"}
    asked = parsed(tools=[{"type": "shell", "environment": {"type": "local", "skills": [skill]}}])
    (tool,) = asked.request.raw["tools"]
    assert "- pdf: Read PDFs. (/skills/pdf)" in tool["function"]["description"]


NO_LIMITS = {"timeout_ms": None, "max_output_length": None}
NOWHERE = {"env": {}, "timeout_ms": None, "user": None, "working_directory": None}


@pytest.mark.parametrize(
    ("tool", "given", "field", "action"),
    [
        ("shell", {"commands": ["ls", "pwd"]}, "action", {"commands": ["ls", "pwd"], **NO_LIMITS}),
        (
            "shell",
            {"command": "ls", "timeout_ms": 5.0},
            "action",
            {"commands": ["ls"], "timeout_ms": 5, "max_output_length": None},
        ),
        (
            "local_shell",
            {"command": ["ls", "-l"], "working_directory": "/w", "env": {"A": 1}},
            "action",
            {
                "type": "exec",
                "command": ["ls", "-l"],
                **NOWHERE,
                "env": {"A": "1"},
                "working_directory": "/w",
            },
        ),
        (
            "local_shell",
            {"command": "ls | wc"},
            "action",
            {"type": "exec", "command": ["bash", "-lc", "ls | wc"], **NOWHERE},
        ),
        (
            "apply_patch",
            {"type": "create_file", "path": "a.py", "diff": "+x = 1"},
            "operation",
            {"type": "create_file", "path": "a.py", "diff": "+x = 1"},
        ),
        (
            "apply_patch",
            {"type": "delete_file", "path": "a.py", "diff": ""},
            "operation",
            {"type": "delete_file", "path": "a.py"},
        ),
    ],
)
def test_a_call_is_an_item_of_the_type_that_the_client_knows(
    tool: str, given: dict[str, Any], field: str, action: dict[str, Any]
) -> None:
    item, checked = item_of(tool, json.dumps(given))
    assert item["type"] == f"{tool}_call"
    assert (item["call_id"], item["status"]) == ("call_1", "completed")
    assert item[field] == action
    told = [kind for kind in checked.kinds if kind.startswith("response.shell_call_command")]
    assert len(told) == 3 * len(item.get("action", {}).get("commands", ()))


@pytest.mark.parametrize("tool", ["shell", "local_shell", "apply_patch"])
def test_a_call_that_was_cut_asks_for_nothing(tool: str) -> None:
    """Half a command is not run, and half a diff not applied."""
    whole = {"commands": ["rm -r x"], "command": ["rm"], "type": "delete_file", "path": "x"}
    item, _ = item_of(tool, json.dumps(whole)[:-4], is_whole=False)
    assert item["status"] == "incomplete"
    told = item.get("action") or item["operation"]
    assert not any(told.get(name) for name in ("commands", "command", "path"))


def test_a_call_comes_back_as_the_model_wrote_it() -> None:
    """A call comes back as the model wrote it, so that the prompt goes on as the model has
    seen it.
    """
    for tool, given in (
        ("shell", {"commands": ["ls"]}),
        ("local_shell", {"command": ["ls"]}),
        ("apply_patch", {"type": "delete_file", "path": "a.py"}),
    ):
        item, _ = item_of(tool, json.dumps(given))
        user = {"role": "user", "content": "Hi"}
        asked = parsed(tools=OWN, input=[user, item, user])
        (call,) = asked.request.messages[1].tool_calls
        assert (call.name, json.loads(call.arguments)) == (tool, given)


@pytest.mark.parametrize("kind", ["shell", "local_shell", "apply_patch"])
def test_one_of_them_can_be_demanded(kind: str) -> None:
    for choice in (
        {"type": kind},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": kind}]},
    ):
        asked = parsed(tools=[*OWN, {"type": "function", "name": "book"}], tool_choice=choice)
        assert asked.request.ignored == ()
        assert [tool["function"]["name"] for tool in asked.request.tools] == [kind]
        assert asked.request.tool_choice == "required"


def test_a_namespace_has_its_words_and_its_custom_tools() -> None:
    """Fields of the namespace beside these are named as ignored."""
    inner = [
        {"type": "custom", "name": "sql", "description": "Ask."},
        {"type": "function", "name": "look"},
        {"type": "web_search"},
    ]
    space = {"type": "namespace", "name": "crm", "description": "The customers.", "tools": inner}
    asked = parsed(tools=[space])
    sql, look = (tool["function"] for tool in asked.request.raw["tools"])
    assert (sql["name"], sql["description"]) == ("crm__sql", "crm: The customers.\n\nAsk.")
    assert (look["name"], look.get("description", "")) == ("crm__look", "")
    assert asked.names["crm__sql"] == ToolName("custom", "sql", "crm")
    assert asked.request.ignored == ("tools[0].tools[2] (web_search)",)
    builder = responses_format(asked, SIGNER).whole(HEAD)
    for event in (
        ToolCallStart(0, 0, "call_1", "crm__sql"),
        ToolCallArguments(0, 0, '{"input": "SELECT 1"}'),
        ToolCallEnd(0, 0),
        ChoiceFinished(0, "tool_calls"),
    ):
        builder.add(event)
    (item,) = json.loads(builder.body())["output"]
    told = (item["type"], item["name"], item["namespace"], item["input"])
    assert told == ("custom_tool_call", "sql", "crm", "SELECT 1")


def test_what_is_read_in_part_is_named() -> None:
    """No field is left out without a word, and what is the default is none."""
    asked = parsed(
        tools=[
            {"type": "function", "name": "a", "async": True},
            {"type": "function", "name": "b", "allowed_callers": ["programmatic"]},
            {"type": "function", "name": "c", "allowed_callers": ["direct", "programmatic"]},
        ],
        truncation="auto",
        text={"verbosity": "low"},
        include=["reasoning.encrypted_content", "web_search_call.action.sources"],
    )
    assert asked.request.ignored == (
        "tools[0].async",
        "tools[1].allowed_callers",
        "truncation (auto)",
        "text.verbosity (low)",
        "include (web_search_call.action.sources)",
    )
    usual = parsed(truncation="disabled", text={"verbosity": "medium"}, include=[])
    assert usual.request.ignored == ()


def test_two_tools_of_one_name_are_named() -> None:
    asked = parsed(tools=[{"type": "shell"}, {"type": "function", "name": "shell"}])
    assert asked.request.ignored == ("tools (shell, twice)",)
