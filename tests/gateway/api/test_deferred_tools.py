"""Deferred tools: what they are to the prompt, to calls and to servers that get the chat."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.api import ChatRequest, Signer, chat_request, parse_messages, parse_responses
from gateway.prompt import ModelText
from tests.fakes.family_templates import family_files

SIGNER = Signer(b"k" * 32)
BUILTIN = Path(__file__).parents[3] / "config" / "builtin" / "herma-tiny"
SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string", "description": "The file to look at."}},
    "required": ["path"],
}
USER: dict[str, Any] = {"role": "user", "content": "Look."}


def anthropic_tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "description": f"Does {name}.", "input_schema": SCHEMA, **fields}


def use(call_id: str, name: str, given: dict[str, Any], result: Any) -> list[dict[str, Any]]:
    """A call and its result."""
    call = {"type": "tool_use", "id": call_id, "name": name, "input": given}
    answer = {"type": "tool_result", "tool_use_id": call_id, "content": result}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [answer]}]


def referring(*names: str) -> list[dict[str, Any]]:
    parts = [{"type": "tool_reference", "tool_name": name} for name in names]
    return use("toolu_s", "ToolSearch", {"query": "x"}, parts)


def messages(said: list[dict[str, Any]], *tools: dict[str, Any], **fields: Any) -> ChatRequest:
    body = {"model": "m", "max_tokens": 9, "messages": said, "tools": tools, **fields}
    return parse_messages(json.dumps(body).encode(), SIGNER)


def names(tools: Any) -> list[str]:
    return [tool["function"]["name"] for tool in tools]


def text_of(name: str) -> ModelText:
    """The built-in model's own tokenizer, with its own template or that of a family."""
    if name != "builtin":
        return ModelText(family_files(name))
    files = {path.name: path.read_bytes() for path in BUILTIN.iterdir() if path.is_file()}
    return ModelText(files)


def prompt_of(text: ModelText, request: ChatRequest) -> list[int]:
    now = datetime.fromtimestamp(0, UTC)
    shown = request.prompt_tools
    return list(text.encode_chat(request.messages, shown, request.template_kwargs, now))


SHOWN = [anthropic_tool(f"tool_{at}") for at in range(40)]
LATER = [anthropic_tool(f"later_{at}", defer_loading=True) for at in range(30)]


@pytest.mark.parametrize("turns", [0, 40])
@pytest.mark.parametrize("name", ["builtin", "llama3", "phi4_mini", "qwen3_5"])
def test_one_more_loaded_tool_leaves_the_prefix(name: str, turns: int) -> None:
    """At least 97 of 100 tokens of the second request's prompt were in the first one's."""
    text = text_of(name)
    history = [USER]
    for at in range(turns):
        history += use(f"toolu_{at}", "tool_1", {"path": f"file {at}"}, f"line {at} " * 20)
    rules = {"system": "Read a file before you change it. " * 300}  # as long as those of agents
    given = *SHOWN, *LATER[:20]
    first = prompt_of(text, messages([*history, *referring("later_1")], *given, **rules))
    after = [*history, *referring("later_1"), *referring("later_2")]
    second = prompt_of(text, messages(after, *SHOWN, *LATER, **rules))
    pairs = enumerate(zip(first, second, strict=False))
    same = next((at for at, (one, other) in pairs if one != other), len(first))
    assert len(first) - same < 20  # the beginning of the answer
    assert same >= 0.97 * len(second)


def test_a_tool_that_is_never_loaded_costs_nothing() -> None:
    """No token of the prompt, and it cannot be called or named by a choice."""
    text = text_of("builtin")
    without = messages([USER], *SHOWN[:2])
    with_them = messages([USER], *SHOWN[:2], *LATER)
    assert prompt_of(text, without) == prompt_of(text, with_them)
    assert names(with_them.tools) == names(without.tools) == ["tool_0", "tool_1"]
    assert with_them.raw["tools"] == without.raw["tools"]
    with pytest.raises(Exception, match="not among the tools"):
        messages([USER], *SHOWN, *LATER, tool_choice={"type": "tool", "name": "later_1"})


def test_a_loaded_tool_stands_at_its_first_reference() -> None:
    """A loaded tool stands in the prompt at its first reference; servers that get the chat have it
    behind the others in the list.
    """
    said = [USER, *referring("later_2", "later_1"), *referring("later_2")]
    request = messages(said, *SHOWN[:1], *LATER)
    assert names(request.tools) == ["tool_0", "later_2", "later_1"]
    assert names(request.prompt_tools) == ["tool_0"]
    first, second = (m.content or "" for m in request.messages if m.role == "tool")
    assert first.index('"name": "later_2"') < first.index('"name": "later_1"')
    assert "defer_loading" not in first
    assert '"parameters"' not in second
    assert "later_2" in second
    assert names(request.raw["tools"]) == ["tool_0", "later_2", "later_1"]
    assert all("defer_loading" not in tool for tool in request.raw["tools"])
    results = [m["content"] for m in request.raw["messages"] if m["role"] == "tool"]
    assert all(isinstance(text, str) and "later_2" in text for text in results)
    assert not any("parameters" in text for text in results)


@pytest.mark.parametrize(
    ("choice", "callable_names"),
    [
        ({"type": "tool", "name": "later_1"}, ["later_1"]),
        ({"type": "any"}, ["tool_0", "later_1"]),
        ({"type": "none"}, []),
    ],
)
def test_a_choice_may_be_of_a_loaded_tool(
    choice: dict[str, Any], callable_names: list[str]
) -> None:
    """A choice may name a loaded tool; the definitions in the conversation stay there, whatever may
    be called.
    """
    request = messages([USER, *referring("later_1")], *SHOWN[:1], *LATER, tool_choice=choice)
    assert names(request.tools) == callable_names
    assert any('"name": "later_1"' in (m.content or "") for m in request.messages)


def test_only_deferred_tools() -> None:
    """A chat with deferred tools alone has no tools, and no field that goes with tools."""
    request = messages([USER], *LATER, tool_choice={"type": "auto"})
    assert request.tools == ()
    assert not request.raw.keys() & {"tools", "tool_choice", "parallel_tool_calls"}
    loaded = messages([USER, *referring("later_3")], *LATER)
    assert (names(loaded.tools), loaded.prompt_tools) == (["later_3"], ())


def test_a_search_by_the_server_shows_all_tools() -> None:
    """Herma runs no search, so that the tools which it would find are there from the beginning."""
    search = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    request = messages([USER, *referring("later_1")], search, *SHOWN[:1], *LATER[:2])
    assert names(request.prompt_tools) == ["tool_0", "later_0", "later_1"]
    assert request.ignored == ("tools[0] (tool_search_tool_regex_20251119)",)
    assert "The tool later_1 can be called." in (request.messages[-1].content or "")


def test_a_reference_to_nothing_says_so() -> None:
    """The model should not call it."""
    request = messages([USER, *referring("nothing")], *SHOWN[:1])
    assert request.messages[-1].content == "There is no tool nothing."
    assert names(request.tools) == ["tool_0"]


def test_chats_may_defer_too() -> None:
    """Chats may defer tools by the same mark and parts as Messages."""
    tools = [
        {"type": "function", "function": {"name": "now"}},
        {"type": "function", "function": {"name": "later"}, "defer_loading": True},
        {"type": "function", "function": {"name": "never"}, "defer_loading": True},
        {"type": "function", "function": {"name": "too"}, "defer_loading": False},
    ]
    part = {"type": "tool_reference", "tool_name": "later"}
    said = [USER, {"role": "tool", "tool_call_id": "c", "content": [part]}]
    for _ in range(2):  # the second time the tools are in a cache
        request = chat_request({"model": "m", "messages": said, "tools": tools})
        assert names(request.tools) == ["now", "too", "later"]
        assert names(request.prompt_tools) == ["now", "too"]
        assert '"name": "later"' in (request.messages[1].content or "")
        assert "defer_loading" not in str((request.raw, request.prompt_tools))


RESPONSES_TOOL = {"type": "function", "name": "now", "parameters": SCHEMA}
SEARCH = {
    "type": "tool_search",
    "execution": "client",
    "description": "Finds tools.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
}
FOUND = [
    {
        "type": "namespace",
        "name": "mcp__notes",
        "tools": [{"type": "function", "name": "add", "parameters": SCHEMA, "defer_loading": True}],
    },
    {"type": "function", "name": "look", "parameters": SCHEMA, "defer_loading": True},
]


def responses(said: list[dict[str, Any]], *tools: dict[str, Any], **fields: Any) -> Any:
    body = {"model": "m", "input": said, "tools": tools, **fields}
    return parse_responses(json.dumps(body).encode(), SIGNER)


def searched(*tools: dict[str, Any]) -> list[dict[str, Any]]:
    call = {"type": "tool_search_call", "call_id": "c1", "execution": "client"}
    output = {"type": "tool_search_output", "call_id": "c1", "execution": "client"}
    return [{**call, "arguments": {"query": "notes"}}, {**output, "tools": list(tools)}]


def test_tools_that_a_search_has_found() -> None:
    """The tools that a search has found stand behind its call, under their names and in their
    namespaces.
    """
    asked = responses([USER, *searched(*FOUND)], RESPONSES_TOOL, SEARCH)
    request = asked.request
    assert names(request.prompt_tools) == ["now", "tool_search"]
    assert names(request.tools) == ["now", "tool_search", "mcp__notes__add", "look"]
    call, result = request.messages[1:]
    assert (call.tool_calls[0].name, call.tool_calls[0].id) == ("tool_search", "c1")
    assert json.loads(call.tool_calls[0].arguments) == {"query": "notes"}
    assert (result.role, result.tool_call_id) == ("tool", "c1")
    assert '"name": "mcp__notes__add"' in result.content
    assert asked.names["tool_search"].kind == "tool_search"
    assert asked.names["mcp__notes__add"].namespace == "mcp__notes"


def test_deferred_tools_of_the_request_wait_for_their_search() -> None:
    """In namespaces too; a search by the server shows them."""
    asked = responses([USER], RESPONSES_TOOL, SEARCH, *FOUND)
    assert names(asked.request.tools) == ["now", "tool_search"]
    found = responses([USER, *searched(FOUND[1])], RESPONSES_TOOL, SEARCH, *FOUND)
    assert names(found.request.tools) == ["now", "tool_search", "look"]
    hosted = responses([USER], RESPONSES_TOOL, {"type": "tool_search"}, *FOUND)
    assert names(hosted.request.prompt_tools) == ["now", "mcp__notes__add", "look"]


def test_additional_tools() -> None:
    """Additional tools before the conversation are tools of the request; later ones stand at their
    place.
    """
    item = {"type": "additional_tools", "role": "developer", "tools": [FOUND[0]]}
    rules = {"role": "developer", "content": "Be brief."}
    early = responses([rules, item, USER], RESPONSES_TOOL).request
    assert names(early.prompt_tools) == ["now", "mcp__notes__add"]
    assert [message.role for message in early.messages] == ["developer", "user"]
    late = responses([rules, USER, item, USER], RESPONSES_TOOL).request
    assert names(late.prompt_tools) == ["now"]
    assert names(late.tools) == ["now", "mcp__notes__add"]
    assert late.messages[2].role == "developer"
    assert '"name": "mcp__notes__add"' in (late.messages[2].content or "")


def test_a_search_without_a_find() -> None:
    """An empty output is a result, and one by another server has no id."""
    call = {"type": "tool_search_call", "execution": "server", "call_id": None, "arguments": {}}
    output = {"type": "tool_search_output", "execution": "server", "call_id": None, "tools": []}
    request = responses([USER, call, output], SEARCH).request
    assert request.messages[2].content == "No tools were found."
    assert request.messages[1].tool_calls[0].id == request.messages[2].tool_call_id
