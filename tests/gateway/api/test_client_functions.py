"""Tools in the form of any API, at each API: none loses its schema, none is dropped in silence."""

from typing import Any

import pytest

from gateway.api import ApiError
from tests.gateway.api.test_odd_bodies import SCHEMA, chat, message, response

ABOUT = {"name": "look", "description": "Looks."}
FORMS: list[dict[str, Any]] = [
    {"type": "function", "function": {**ABOUT, "parameters": SCHEMA}},
    {"function": {**ABOUT, "parameters": SCHEMA}},
    {"type": "function", **ABOUT, "parameters": SCHEMA},
    {**ABOUT, "parameters": SCHEMA},
    {**ABOUT, "input_schema": SCHEMA},
    {"type": "function", **ABOUT, "input_schema": SCHEMA},
    {**ABOUT, "inputSchema": SCHEMA},
]


@pytest.mark.parametrize("tool", FORMS)
@pytest.mark.parametrize("ask", [chat, message, response])
def test_a_function_in_the_form_of_any_api(ask: Any, tool: dict[str, Any]) -> None:
    """A function is read in the form of any API: its schema was lost without a word, or the tool
    dropped.
    """
    request = ask(tools=[tool])
    (known,) = request.tools
    assert known["function"] == {**ABOUT, "parameters": SCHEMA}
    assert request.ignored == ()


@pytest.mark.parametrize("ask", [chat, message, response])
def test_marks_of_a_function_stay(ask: Any) -> None:
    """Marks of a function stay, in the wrapper, where chats have them, or beside it."""
    tool = {"type": "function", "function": {**ABOUT, "parameters": SCHEMA, "strict": True}}
    (known,) = ask(tools=[tool]).tools
    assert known["function"]["strict"] is True
    empty = {"type": "function", "function": {"name": "look"}}
    (bare,) = ask(tools=[empty]).tools
    assert bare["function"]["name"] == "look"


CHOICES: list[tuple[dict[str, Any], str]] = [
    ({"type": "function", "function": {"name": "look"}}, "required"),
    ({"type": "function", "name": "look"}, "required"),
    ({"type": "tool", "name": "look"}, "required"),
    ({"type": "any"}, "required"),
    ({"type": "auto"}, "auto"),
    ({"type": "none"}, "none"),
]


@pytest.mark.parametrize(("choice", "chosen"), CHOICES)
@pytest.mark.parametrize("ask", [chat, message, response])
def test_a_choice_in_the_form_of_any_api(ask: Any, choice: dict[str, Any], chosen: str) -> None:
    """A demanded call was left to the model, or the request refused."""
    request = ask(tools=FORMS[:1], tool_choice=choice)
    assert request.tool_choice == chosen
    assert request.ignored == ()


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "web_search"},
        {"type": "openrouter:web_search", "parameters": {"max_results": 3}},
        {"type": "builtin_function", "function": {"name": "$web_search"}},
    ],
)
def test_a_tool_of_a_server_is_a_matter_of_providers(tool: dict[str, Any]) -> None:
    """Local models refuse it by name; one that only a provider serves got a 400, too."""
    own = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
    request = chat(tools=[own, tool])
    assert [known["function"]["name"] for known in request.tools] == ["look"]
    assert request.raw["tools"] == [own, tool]
    refusal = request.refused_locally
    assert refusal is not None
    assert (refusal.status, refusal.code) == (400, "tool_not_served")
    assert refusal.param == "tools[1].type"
    assert chat(tools=[own]).refused_locally is None
    chosen = chat(tools=[own, tool], tool_choice="required")
    assert chosen.tool_choice == "required"
    with pytest.raises(ApiError) as refused:
        chat(tools=[{"type": "function", "function": {"name": 5}}])
    assert refused.value.param == "tools[0].function.name"
