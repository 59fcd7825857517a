"""Forms that servers refuse: the field that bounds an answer, the ids of calls that others made."""

import re
from typing import Any

import msgspec
import pytest

from gateway.app import edge_of
from gateway.http.routes import edge_app
from gateway.upstream.request_forms import cap_at, ids_at, with_cap, with_forms, with_ids
from tests.fakes.provider import FakeProvider, open_provider
from tests.fakes.running_gateway import chain_of, open_gateway
from tests.fakes.served import ask, served

OLD, NEW = "max_tokens", "max_completion_tokens"
OURS = "call_e4c890e7de8ea1c29b9e1a9f"
LONG = f"call_{'a' * 40}"
NUMBERED = "functions.get:0"
NINE = "pcgXXG4G3"


def turn(*ids: str) -> dict[str, Any]:
    """A history in which these calls were made and answered."""
    function = {"name": "get", "arguments": "{}"}
    calls = [{"id": one, "type": "function", "function": function} for one in ids]
    results = [{"role": "tool", "tool_call_id": one, "content": "x"} for one in ids]
    asked = {"role": "user", "content": "Hi"}
    return {"messages": [asked, {"role": "assistant", "tool_calls": calls}, *results]}


def ids_in(raw: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The ids of the calls, and those of the results."""
    messages = raw["messages"]
    made = [call["id"] for one in messages for call in one.get("tool_calls", ())]
    return made, [one["tool_call_id"] for one in messages if one["role"] == "tool"]


@pytest.mark.parametrize(
    ("url", "cap", "ids"),
    [
        ("https://api.openai.com/v1", NEW, "short"),
        ("https://x.openai.azure.com/openai/v1", NEW, "short"),
        ("https://api.mistral.ai/v1", OLD, "nine"),
        ("https://codestral.mistral.ai/v1", OLD, "nine"),
        ("https://api.deepseek.com/v1", None, "any"),
        ("https://notmistral.ai/v1", None, "any"),
        ("https://openai.com.example/v1", None, "any"),
    ],
)
def test_known_providers_have_their_forms(url: str, cap: str | None, ids: str) -> None:
    """Known providers have the forms that their host names: of OpenAI, models that reason refuse
    the older name, Mistral the newer one.
    """
    assert (cap_at(url), ids_at(url)) == (cap, ids)


@pytest.mark.parametrize(
    ("given", "field", "expected"),
    [
        ({OLD: 5}, NEW, {NEW: 5}),
        ({NEW: 5}, OLD, {OLD: 5}),
        ({OLD: 5, NEW: 7}, OLD, {OLD: 7}),
        ({OLD: 5, NEW: None}, NEW, {NEW: 5}),
        ({OLD: 5}, OLD, {OLD: 5}),
        ({OLD: 5, NEW: 7}, None, {OLD: 5, NEW: 7}),
        ({}, NEW, {}),
    ],
)
def test_one_field_bounds_an_answer(
    given: dict[str, Any], field: Any, expected: dict[str, Any]
) -> None:
    """The newer name counts where a client has set both, as for our own engines."""
    assert with_cap({"x": 1, **given}, field) == {"x": 1, **expected}


@pytest.mark.parametrize("form", ["short", "nine"])
def test_calls_and_their_results_keep_one_id(form: Any) -> None:
    """A call and its result keep one id, the same in each turn, and another call has another id."""
    raw = turn(OURS, LONG, NUMBERED, NINE, "")
    made, answered = ids_in(with_ids(raw, form))
    assert made == answered
    assert len(set(made)) == 5
    assert ids_in(with_ids(turn(LONG, OURS), form))[0] == [made[1], made[0]]
    pattern = r"[A-Za-z0-9]{9}" if form == "nine" else r".{0,40}"
    assert all(re.fullmatch(pattern, one) for one in made)
    kept = {NINE} if form == "nine" else {OURS, NUMBERED, NINE, ""}
    assert {new for new, old in zip(made, ids_in(raw)[0], strict=True) if new == old} == kept


@pytest.mark.parametrize("form", ["any", "short", "nine"])
@pytest.mark.parametrize(
    "raw",
    [
        turn(NINE),
        {"messages": "x"},
        {"messages": [None, 5, {"role": "assistant", "tool_calls": [None, {"id": 7}]}]},
        {"messages": [{"role": "tool", "tool_call_id": None}, {"tool_calls": "x"}]},
        {},
    ],
)
def test_what_has_the_form_is_not_written_anew(form: Any, raw: dict[str, Any]) -> None:
    """Ids that have the form, and messages without ids, are not rewritten."""
    assert with_forms(raw, OLD, form) is raw


HISTORIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {**turn(OURS), NEW: 5}),
    "messages": (
        "/v1/messages",
        {
            "max_tokens": 5,
            "messages": [
                {"role": "user", "content": "Hi"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "tool_use", "id": f"toolu_{OURS}", "name": "get", "input": {}}
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": f"toolu_{OURS}", "content": "x"}
                    ],
                },
            ],
        },
    ),
    "responses": (
        "/v1/responses",
        {
            "max_output_tokens": 5,
            "input": [
                {"role": "user", "content": "Hi"},
                {
                    "type": "function_call",
                    "call_id": OURS,
                    "name": "get",
                    "arguments": "{}",
                },
                {"type": "function_call_output", "call_id": OURS, "output": "x"},
            ],
        },
    ),
}


@pytest.mark.parametrize("api", ["chat", "messages", "responses"])
async def test_a_fallback_gets_what_it_takes(api: str) -> None:
    """A conversation that a worker has begun goes on at a provider with other rules."""
    path, body = HISTORIES[api]
    async with open_provider(FakeProvider()) as fake:
        model, tables = chain_of({"p0": fake, "p1": fake})
        forms = {"p0": (OLD, "nine"), "p1": (NEW, "short")}
        tables = {
            name: msgspec.structs.replace(table, cap_field=forms[name][0], call_ids=forms[name][1])
            for name, table in tables.items()
        }
        fake.status = 500
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            served(edge_app(edge_of(gateway.services))) as url,
        ):
            await ask(url, "POST", path, msgspec.json.encode({"model": "alpha", **body}))
    first, second = (one.body for one in fake.requests)
    assert (first.get(OLD), first.get(NEW)) == (5, None)
    assert (second.get(OLD), second.get(NEW)) == (None, 5)
    made, answered = ids_in(first)
    assert made == answered
    assert re.fullmatch("[A-Za-z0-9]{9}", made[0])
    assert ids_in(second) == ([OURS], [OURS])
