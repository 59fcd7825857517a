"""Parsing of chat completion bodies."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.chat_parser import parse_chat_request
from gateway.api.errors import ApiError
from gateway.api.request import (
    MAX_SESSION_CHARS,
    ChatRequest,
    OtherPart,
    ToolCall,
)

TOOL = {"type": "function", "function": {"name": "terminal", "parameters": {"type": "object"}}}

ASKED, BEGUN = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}

CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}


def parse(**fields: Any) -> ChatRequest:
    return parse_chat_request(json.dumps(body(**fields)).encode())


def refusal(text: str | bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_chat_request(text.encode() if isinstance(text, str) else text)
    assert caught.value.status == 400
    assert set(json.loads(caught.value.body())["error"]) == {"message", "type", "param", "code"}
    return caught.value


def test_an_agent_turn_parses_with_its_tool_history() -> None:
    """A streamed agent request keeps roles, calls, results, tools and the cap on tokens."""
    messages = [
        {"role": "system", "content": "You are an agent."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "name": "f", "content": "ok", "tool_call_id": "call_1"},
    ]
    request = parse(
        messages=messages,
        tools=[TOOL],
        max_tokens=65536,
        stream=True,
        stream_options={"include_usage": True},
        think=False,
        options={"num_ctx": 1},
    )
    assert [message.role for message in request.messages] == ["system", "user", "assistant", "tool"]
    assert request.messages[1].content == "a\nb"
    assert request.messages[2].tool_calls == (ToolCall("call_1", "f", "{}"),)
    assert request.messages[3].tool_call_id == "call_1"
    assert (request.stream, request.include_usage, request.max_tokens) == (True, True, 65536)
    assert request.tools == (TOOL,)
    assert request.template_kwargs == {"enable_thinking": False, "thinking": False}


@pytest.mark.parametrize("content", ["x", [{"type": "text", "text": "x"}]])
@pytest.mark.parametrize(
    ("fields", "thought"),
    [
        ({"reasoning_content": "", "reasoning": "a"}, "a"),
        ({"reasoning_content": "b", "reasoning": ""}, "b"),
        ({"reasoning_content": "b", "reasoning": "a"}, "b"),
        ({"reasoning": "a"}, "a"),
        ({"reasoning_content": ""}, ""),
        ({"reasoning": ""}, ""),
        ({"reasoning_content": None}, None),
    ],
)
def test_a_thought_has_two_names(fields: dict[str, Any], thought: str | None, content: Any) -> None:
    """The one that says something counts."""
    request = parse(messages=[ASKED, {"role": "assistant", "content": content, **fields}, ASKED])
    assert request.messages[1].reasoning_content == thought


@pytest.mark.parametrize(
    ("fields", "thinks"),
    [
        ({"enable_thinking": True}, True),
        ({"think": False}, False),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, True),
        ({"reasoning": {"enabled": False}}, False),
        ({"reasoning_effort": "none"}, False),
        ({"thinking": {}}, None),
        ({"thinking": "x", "reasoning": {}}, None),
    ],
)
def test_reasoning_has_many_switches(fields: dict[str, Any], thinks: bool | None) -> None:
    """The template gets one variable for the switches of Alibaba, Ollama, Z.ai, OpenRouter and
    OpenAI.
    """
    kwargs = parse(**fields).template_kwargs
    assert kwargs.get("enable_thinking") is kwargs.get("thinking") is thinks


def test_unknown_fields_are_kept_for_a_provider() -> None:
    """`raw` is the whole body, with its unknown fields."""
    fields = body(future={"a": [1, None]}, metadata={"session_id": "s1"})
    request = parse_chat_request(json.dumps(fields).encode())
    assert request.raw == fields
    assert request.session == "s1"


def test_every_field_of_the_official_client_is_accepted() -> None:
    """The fields that the openai package can send do not fail for being unknown."""
    parse(
        audio=None,
        frequency_penalty=0.5,
        logit_bias={"1": 2},
        logprobs=True,
        max_completion_tokens=5,
        metadata={"a": "b"},
        modalities=["text"],
        n=2,
        parallel_tool_calls=True,
        prediction=None,
        presence_penalty=-1,
        prompt_cache_key="k",
        reasoning_effort="low",
        response_format={"type": "text"},
        safety_identifier="x",
        seed=-5,
        service_tier="auto",
        stop=["a", "b"],
        store=False,
        stream=False,
        temperature=0,
        tool_choice="auto",
        tools=[TOOL],
        top_logprobs=3,
        top_p=0.9,
        user="u",
        verbosity="low",
        web_search_options=None,
    )


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ('"temperature":NaN', "temperature"),
        ('"temperature":Infinity', "temperature"),
        ('"top_p":-Infinity', "top_p"),
        ('"temperature":1e999', "temperature"),
        ('"temperature":-0.1', "temperature"),
        ('"temperature":"hot"', "temperature"),
        ('"temperature":true', "temperature"),
        ('"max_tokens":-1', "max_tokens"),
        ('"max_tokens":0', "max_tokens"),
        ('"max_completion_tokens":-1', "max_completion_tokens"),
        ('"top_k":-2', "top_k"),
        ('"min_p":2', "min_p"),
        ('"n":17', "n"),
        ('"n":0', "n"),
        ('"n":1.5', "n"),
        ('"seed":"x"', "seed"),
        ('"stop":' + json.dumps(["x"] * 17), "stop"),
        ('"stop":""', "stop"),
        ('"stop":[1]', "stop[0]"),
        ('"stop":"%s"' % ("x" * 1025), "stop"),
        ('"stop":["%s"]' % ("x" * 1025), "stop[0]"),
        ('"top_logprobs":21,"logprobs":true', "top_logprobs"),
        ('"top_logprobs":2', "top_logprobs"),
        ('"stream_options":{"include_usage":true}', "stream_options"),
        ('"stream":"yes"', "stream"),
        ('"tools":[1]', "tools[0]"),
        ('"tools":[{"type":"function"}]', "tools[0].function"),
        ('"tools":[{"type":"function","function":{}}]', "tools[0].function.name"),
        ('"tool_choice":"perhaps"', "tool_choice"),
        ('"tool_choice":"required"', "tool_choice"),
        ('"tool_choice":{"type":"function","function":{"name":"x"}}', "tool_choice"),
        ('"messages":[]', "messages"),
        ('"messages":"hello"', "messages"),
        ('"messages":[{"role":"wizard","content":"x"}]', "messages[0].role"),
        ('"messages":[{"content":"x"}]', "messages[0].role"),
        ('"messages":[{"role":"user","content":7}]', "messages[0].content"),
        ('"messages":[{"role":"user","content":null}]', "messages[0].content"),
        ('"model":""', "model"),
        ('"model":null', "model"),
        ('"chat_template_kwargs":{"messages":[]}', "chat_template_kwargs.messages"),
    ],
)
def test_a_bad_value_is_refused_by_name(text: str, param: str) -> None:
    """Each wrong value is one 400 that names the field."""
    error = refusal(f'{{"model":"m","messages":[{{"role":"user","content":"x"}}],{text}}}')
    assert error.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"messages": [BEGUN]},
        {"messages": [ASKED, {**BEGUN, "content": ""}]},
        {"messages": [ASKED, {**BEGUN, "tool_calls": [CALL]}]},
        {"messages": [ASKED, BEGUN], "response_format": {"type": "json_object"}},
        {"messages": [ASKED, BEGUN], "tools": [TOOL], "tool_choice": "required"},
    ],
)
def test_what_an_answer_cannot_go_on_from_is_refused(fields: dict[str, Any]) -> None:
    """A last message without a text, and forms that only a whole answer has."""
    error = refusal(json.dumps(body(continue_final_message=True, **fields)))
    assert error.param == "continue_final_message"


@pytest.mark.parametrize("mark", ["prefix", "partial"])
def test_a_last_message_may_say_that_it_begins_the_answer(mark: str) -> None:
    """As Mistral's, DeepSeek's, Moonshot's and Alibaba's clients mark it; else it is a turn."""
    begun = {**BEGUN, mark: True}
    request = parse(messages=[ASKED, begun])
    assert request.answer_start == BEGUN["content"]
    assert [m.role for m in request.messages] == ["user"]
    assert request.raw["messages"] == [ASKED, begun]
    for said in (
        [ASKED, {**BEGUN, mark: False}],
        [ASKED, begun, ASKED],
        [ASKED, {**ASKED, mark: 1}],
    ):
        assert parse(messages=said).answer_start == ""
    named = (f"messages ({mark})",)
    assert parse(messages=[ASKED, {**begun, "content": ""}]).ignored == named
    form = parse(messages=[ASKED, begun], response_format={"type": "json_object"})
    assert (form.answer_start, form.ignored) == ("", named)


def test_a_part_that_is_no_text_is_named() -> None:
    """Sound is for providers; the error of local models names its type."""
    text, sound = {"type": "text", "text": "Hear:"}, {"type": "input_audio", "input_audio": {}}
    request = parse(messages=[{"role": "user", "content": [text, sound]}])
    assert request.messages[0].content == "Hear:"
    assert request.raw["messages"][0]["content"] == [text, sound]
    assert request.other_part is not None
    error = request.other_part.refusal()
    assert (error.status, error.param) == (400, "messages[0].content[1].type")
    assert "input_audio" in error.message


def test_of_several_parts_that_are_no_text_the_first_is_named() -> None:
    """Of several parts that are no text the first is named, in whatever message it is."""
    parts = [{"type": "input_audio"}, {"type": "text", "text": "a"}, {"type": "file"}]
    request = parse(
        messages=[
            {"role": "system", "content": "s"},
            {"role": "user", "content": parts},
            {"role": "user", "content": [{"type": "input_audio"}, {"type": "image_url"}]},
        ]
    )
    assert request.other_part == OtherPart("messages[1].content[0]", "input_audio")


SEEN = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": ""}}]}
HEARD = {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}
SAID = {"role": "assistant", "content": "a"}
RESULT = {"role": "tool", "tool_call_id": "c", "content": [{"type": "file", "file": {}}]}


@pytest.mark.parametrize(
    ("messages", "is_past"),
    [
        ([HEARD], False),
        ([HEARD, SAID], False),  # the assistant's is the beginning of an answer
        ([HEARD, SAID, HEARD], False),
        ([{**HEARD, "role": "system"}, {"role": "user", "content": "u"}], False),
        ([HEARD, {"role": "user", "content": "u"}], True),
        ([HEARD, SAID, {"role": "user", "content": "u"}], True),
        ([SAID, RESULT], True),
        ([SAID, RESULT, HEARD], True),
        ([SAID, RESULT, SAID, HEARD], False),
        ([SEEN], True),
        ([{**SEEN, "role": "system"}, {"role": "user", "content": "u"}], True),
        ([SAID, RESULT, SAID, SEEN], True),
        ([SEEN, SAID, HEARD], False),
    ],
)
def test_what_is_asked_about_is_told_from_the_history(
    messages: list[dict[str, Any]], is_past: bool
) -> None:
    """What is past has a line in its place, whose text depends on the kind; a picture has one
    anywhere.
    """
    request = parse(messages=messages)
    assert request.other_part is not None
    assert request.other_part.is_past == is_past
    text = "\n".join(message.content or "" for message in request.messages)
    if is_past:
        assert "was here. It was left out, because this model reads only text.]" in text
    assert ("[A file was here." in text) == (RESULT in messages)


@pytest.mark.parametrize("part", [{}, {"type": 7}, {"type": "text"}, {"type": "text", "text": 1}])
def test_a_part_that_is_nothing_is_refused(part: dict[str, Any]) -> None:
    """A part has a type, and a text part its text."""
    error = refusal(json.dumps(body(messages=[{"role": "user", "content": [part]}])))
    assert str(error.param).startswith("messages[0].content[0].")


def test_a_bad_cap_on_tokens_does_not_read_like_a_full_window() -> None:
    """Hermes Agent compresses its history on the word max_tokens, so the text avoids it."""
    assert "max_tokens" not in refusal(json.dumps(body(max_tokens=-1))).message


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[1]", b"null", b'"x"', b'{"a":1}x', b'{"a":"\xff"}', b"[" * 100_000, b"\xef\xbb"],
)
def test_what_is_no_json_object_is_refused(text: bytes) -> None:
    """Malformed JSON, invalid UTF-8 and deep nesting are a 400 each."""
    assert refusal(text).code == "invalid_json"


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_a_request_or_a_400(text: bytes) -> None:
    """Nothing but `ApiError` comes out of any input."""
    refusal(text)


@given(
    st.dictionaries(
        st.sampled_from(["messages", "tools", "stop", "n", "tool_choice", "metadata", "seed"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
            max_leaves=5,
        ),
    )
)
def test_any_json_in_any_field_is_a_request_or_a_400(fields: dict[str, Any]) -> None:
    """Wrong shapes anywhere are refused, never a crash."""
    try:
        parse_chat_request(json.dumps(body(**fields)).encode())
    except ApiError as error:
        assert error.status == 400


def test_tool_choice_none_hides_the_tools() -> None:
    """The model does not see tools that it may not call."""
    assert parse(tools=[TOOL], tool_choice="none").tools == ()


def test_a_named_tool_is_the_only_one_shown() -> None:
    """tool_choice with a function leaves that function."""
    other = {"type": "function", "function": {"name": "other"}}
    choice = {"type": "function", "function": {"name": "other"}}
    assert parse(tools=[TOOL, other], tool_choice=choice).tools == (other,)


@pytest.mark.parametrize(
    ("fields", "session"),
    [
        ({"session_id": "a", "user": "u"}, "a"),
        ({"prompt_cache_key": "k"}, "k"),
        ({"prompt_cache_key": "pck_0123", "user": "u"}, "u"),
        ({"user": 5}, None),
        ({"session_id": "s" * 1_000_000}, "s" * MAX_SESSION_CHARS),
        ({}, None),
    ],
)
def test_a_session_hint_is_found(fields: dict[str, Any], session: str | None) -> None:
    """Known affinity fields are read; a hash of the prompt is no session."""
    assert parse(**fields).session == session


def test_sampling_takes_the_clients_word_then_the_models() -> None:
    """The client's values win over the model's defaults, those over the neutral ones."""
    request = parse(temperature=0.5, top_k=-1, logprobs=True, top_logprobs=2, seed=-1)
    params = request.sampling(9, {"temperature": 0.7, "top_p": 0.8, "top_k": 20})
    assert (params.temperature, params.top_p, params.top_k) == (0.5, 0.8, 0)
    assert (params.max_tokens, params.logprobs, params.min_p) == (9, 2, 0.0)
    assert request.seed == 2**63 - 1


def test_whatever_is_said_of_sampling_reaches_the_worker() -> None:
    """Every field that has a name of its own, against advice of the model's authors."""
    said = {
        "temperature": 0.5,
        "top_p": 0.6,
        "top_k": 7,
        "min_p": 0.08,
        "presence_penalty": -0.9,
        "frequency_penalty": 1.1,
        "repetition_penalty": 1.2,
        "stop_token_ids": [13, 14],
        "ignore_eos": True,
    }
    advice = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.1}
    params = parse(**said).sampling(9, {**advice, "repetition_penalty": 1.05})
    told = msgspec.structs.asdict(params)
    assert {name: told[name] for name in said} == {**said, "stop_token_ids": (13, 14)}
    told = msgspec.structs.asdict(parse().sampling(9, {**advice, "repetition_penalty": 1.05}))
    assert advice.items() <= told.items()
    assert told["repetition_penalty"] == 1.05


def test_equal_bytes_have_one_fingerprint() -> None:
    """A retry is known by its fingerprint, and gets its own answer and no other request's."""
    first, again, other = parse(user="a"), parse(user="a"), parse(user="b")
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert first.num_bytes == len(json.dumps(body(user="a")))


def test_max_completion_tokens_wins() -> None:
    """The newer name of the cap decides when both are given."""
    assert parse(max_tokens=5, max_completion_tokens=7).max_tokens == 7


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": "x", "tool_calls": [CALL]}, "messages[0].tool_calls"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": ""}}]},
            "messages[0].tool_calls[0].function.name",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "1"}]},
            "messages[0].tool_calls[0].function",
        ),
    ],
)
def test_a_bad_message_is_refused_by_place(message: dict[str, Any], param: str) -> None:
    """What is wrong inside a message is named with its place."""
    assert refusal(json.dumps(body(messages=[message]))).param == param


def test_arguments_given_as_an_object_become_text() -> None:
    """Some clients send arguments as JSON itself, or none at all."""
    functions = [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": None}]
    calls = [{"id": str(at), "function": function} for at, function in enumerate(functions)]
    request = parse(messages=[{"role": "assistant", "content": None, "tool_calls": calls}])
    assert [call.arguments for call in request.messages[0].tool_calls] == ['{"a":1}', "{}"]


def test_a_tool_that_is_no_function_is_refused() -> None:
    """A tool that is no function is refused by its type."""
    assert refusal(json.dumps(body(tools=[{"type": "custom"}]))).param == "tools[0].type"


def test_a_tool_choice_of_another_kind_is_refused() -> None:
    """A choice object must name a function."""
    choice = {"type": "allowed_tools"}
    assert refusal(json.dumps(body(tools=[TOOL], tool_choice=choice))).param == "tool_choice"


def test_a_nested_number_that_json_lacks_is_refused() -> None:
    """NaN is malformed JSON even in an unknown field."""
    assert refusal('{"model":"m","x":{"y":NaN},"n":1}').code == "invalid_json"


def test_advice_out_of_bounds_is_named() -> None:
    """A value that no worker accepts is refused, from the client or from a generation config."""
    with pytest.raises(ApiError) as caught:
        parse().sampling(1, {"top_p": 7.0})
    assert caught.value.param == "top_p"
