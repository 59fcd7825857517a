"""Bodies with fields and values of other APIs and types: read, refused or named, never lost."""

import json
from typing import Any

import pytest

from gateway.api import ApiError, parse_any_chat, parse_completions, parse_responses
from tests.gateway.api.test_odd_bodies import SCHEMA, SIGNER, USER, chat, message, response


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"min_tokens": 3, "bad_words": ["x"]}, ("bad_words", "min_tokens")),
        ({"min_tokens": 0, "bad_words": [], "length_penalty": 1.0, "repeat_penalty": 1}, ()),
        ({"repeat_penalty": 1.1, "n_predict": 5}, ("n_predict", "repeat_penalty")),
        ({"include_stop_str_in_output": True}, ("include_stop_str_in_output",)),
    ],
)
def test_fields_of_other_engines_are_named(fields: dict[str, Any], named: tuple[str, ...]) -> None:
    """Fields of other engines are named at each API, as the answer would depend on them."""
    raw = parse_completions(json.dumps({"model": "m", "prompt": "x", **fields}).encode())
    requests = chat(**fields), message(**fields), response(**fields), raw.requests[0]
    assert [request.ignored for request in requests] == [named] * 4


def test_fields_of_chats_are_named_elsewhere() -> None:
    """Fields of another API are named in the header of ignored fields."""
    assert message(stop=["x"], n=2, presence_penalty=1).ignored == ("n", "presence_penalty", "stop")
    assert response(max_tokens=5, n=2).ignored == ("max_tokens", "n")
    assert chat(best_of=2, echo=True).ignored == ("best_of", "echo")
    neutral = {"n": 1, "repetition_penalty": 1.0, "response_format": {"type": "text"}}
    assert message(**neutral).ignored == response(**neutral).ignored == ()
    assert chat(best_of=1).ignored == ()
    body = {"model": "m", "input": "Hi", "max_tokens": 5, "n": 2}
    assert parse_any_chat(json.dumps(body).encode(), SIGNER).ignored == ()


def test_sampling_of_a_response() -> None:
    """The open form of the API has penalties, and servers of it have more; the response says so."""
    fields = {"presence_penalty": 0.5, "frequency_penalty": -0.5, "top_k": 7, "min_p": 0.1}
    parsed = parse_responses(json.dumps({"model": "m", "input": "x", **fields}).encode(), SIGNER)
    request = parsed.request
    assert {name: getattr(request, name) for name in fields} == fields
    assert {name: request.raw[name] for name in fields} == fields
    assert (parsed.echo["presence_penalty"], parsed.echo["frequency_penalty"]) == (0.5, -0.5)
    with pytest.raises(ApiError) as refused:
        response(presence_penalty=3)
    assert refused.value.param == "presence_penalty"


def test_a_refusal_in_the_history_is_what_the_assistant_said() -> None:
    """A refusal in the history, beside a content of null, is what the assistant said."""
    refused = {"role": "assistant", "content": None, "refusal": "I cannot."}
    request = chat(messages=[USER, refused, USER])
    assert request.messages[1].content == "I cannot."
    assert request.raw["messages"][1] == refused


def test_messages_of_the_time_before_tools_are_read() -> None:
    """Calls of functions had no ids, and results the role `function`."""
    said = [
        USER,
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "42"},
        {"role": "assistant", "content": None, "function_call": {"name": "g", "arguments": "{}"}},
        {"role": "function", "name": "g", "content": "43"},
    ]
    request = chat(messages=said)
    assert [m.role for m in request.messages] == ["user", *["assistant", "tool"] * 2]
    for at, name in ((1, "f"), (3, "g")):
        call, result = request.messages[at].tool_calls[0], request.messages[at + 1]
        assert (call.name, call.arguments, result.tool_call_id) == (name, "{}", call.id)
        assert result.content == str(42 + at // 2)
    assert request.messages[1].tool_calls[0].id != request.messages[3].tool_calls[0].id
    assert request.raw["messages"][2]["role"] == "tool"
    with pytest.raises(ApiError, match="role"):
        chat(messages=[USER, {"role": "model", "content": "x"}])


def test_mistral_s_word_for_a_forced_call() -> None:
    """`any`, a text, is `required`."""
    tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
    assert chat(tools=[tool], tool_choice="any").tool_choice == "required"


RESULTS: list[tuple[Any, str]] = [
    ({"a": 1}, '{"a":1}'),
    (7, "7"),
    (True, "true"),
    (None, ""),
    (["a", "b"], "a\nb"),
    ("plain", "plain"),
]


@pytest.mark.parametrize(("result", "text"), RESULTS)
def test_a_result_of_any_type_is_no_empty_one(result: object, text: str) -> None:
    """Programs put what a tool returned there as it is."""
    call = {"type": "tool_use", "id": "toolu_c", "name": "f", "input": {}}
    given = {"type": "tool_result", "tool_use_id": "toolu_c", "content": result}
    said = [USER, {"role": "assistant", "content": [call]}, {"role": "user", "content": [given]}]
    assert message(messages=said).messages[-1].content == text
    items = [
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": result},
    ]
    assert response(input=[USER, *items]).messages[-1].content == text


def test_texts_in_the_place_of_parts_are_texts() -> None:
    """Texts in the place of parts are texts, in an input of the Responses API."""
    said = {"role": "user", "content": ["Hi", {"type": "input_text", "text": "there"}]}
    assert response(input=[said]).messages[0].content == "Hi\nthere"


def test_parts_of_results_are_named_too() -> None:
    """Parts of results that the model does not get are named too."""
    parts = [{"type": "text", "text": "x"}, {"type": "resource_link", "uri": "file:x"}]
    given = {"type": "tool_result", "tool_use_id": "toolu_c", "content": parts}
    request = message(messages=[USER, {"role": "user", "content": [given]}])
    assert request.ignored == ("messages (resource_link)",)


def test_the_detail_of_a_picture_goes_on() -> None:
    """The detail of a picture is sent to a provider, which counts its tokens by it."""
    picture = {"type": "input_image", "image_url": "data:x", "detail": "low"}
    request = response(input=[{"role": "user", "content": [picture]}])
    (part,) = request.raw["messages"][0]["content"]
    assert part["image_url"] == {"url": "data:x", "detail": "low"}


def test_stop_sequences_beyond_the_bound_are_named() -> None:
    """Stop sequences beyond the bound are named; a request with one that is too long is refused
    with that field.
    """
    request = message(stop_sequences=[f"s{at}x" for at in range(17)])
    assert len(request.stop) == 16
    assert request.ignored == ("stop_sequences beyond 16",)
    with pytest.raises(ApiError) as refused:
        message(stop_sequences=["x" * 2000])
    assert refused.value.param == "stop_sequences[0]"


def test_a_forced_call_without_tools_is_refused_or_named() -> None:
    """Refused if there are none, named if a server would run them."""
    for choice in ({"type": "any"}, {"type": "tool", "name": "f"}):
        with pytest.raises(ApiError) as refused:
            message(tool_choice=choice)
        assert refused.value.param == "tool_choice"
    with pytest.raises(ApiError) as refused:
        response(tool_choice="required")
    assert refused.value.param == "tool_choice"
    search = {"type": "web_search_20250305", "name": "web_search"}
    asked = message(tools=[search], tool_choice={"type": "tool", "name": "web_search"})
    assert asked.ignored == ("tools[0] (web_search_20250305)", "tool_choice")
    hosted = [{"type": "web_search"}]
    named = response(tools=hosted, tool_choice="required").ignored
    assert named == ("tools[0] (web_search)", "tool_choice")
    own = {"type": "function", "name": "f", "parameters": SCHEMA}
    named = response(tools=[own], tool_choice={"type": "web_search"}).ignored
    assert named == ("tool_choice (web_search)",)
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}
    assert response(tools=[own], tool_choice=allowed).ignored == ()
    unknown = {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "zz"}]}
    assert response(tools=[own], tool_choice=unknown).ignored == ("tool_choice (zz)",)


def test_a_null_input_is_missing() -> None:
    """An `input` of null counts as missing, and its name is no hint at another API."""
    with pytest.raises(ApiError) as refused:
        parse_responses(json.dumps({"model": "m", "input": None}).encode(), SIGNER)
    assert "is a field of" not in refused.value.message


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32-be"])
def test_bodies_of_programs_on_windows_are_read(encoding: str) -> None:
    """Bodies of programs on Windows are read with a byte order mark, and in the other forms of
    Unicode, as Python's decoder reads them.
    """
    text = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Grüße"}]})
    text = text.replace("\\u00fc", "ü").replace("\\u00df", "ß")
    request = parse_any_chat(text.encode(encoding), SIGNER)
    assert request.messages[0].content == "Grüße"
    with pytest.raises(ApiError, match="JSON"):
        parse_any_chat(b"\xef\xbb\xbf{", SIGNER)
