"""Bodies that clients send although no API describes them there, and what stands for them."""

import base64
import json
from typing import Any

import pytest

from gateway.api import (
    ApiError,
    ChatRequest,
    Signer,
    parse_any_chat,
    parse_completions,
    parse_messages,
    parse_responses,
)
from gateway.api.call_ids import from_client, to_client
from gateway.api.text_files import text_of_file

SIGNER = Signer(b"k" * 32)
USER: dict[str, Any] = {"role": "user", "content": "Look."}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'}
FLAT = {"type": "custom", "name": "ApplyPatch", "description": "Edits.", "format": GRAMMAR}
NESTED = {
    "type": "custom",
    "custom": {
        "name": "ApplyPatch",
        "description": "Edits.",
        "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": 'start: "x"'}},
    },
}


def chat(**fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": [USER], **fields}
    return parse_any_chat(json.dumps(body).encode(), SIGNER)


def message(**fields: Any) -> ChatRequest:
    body = {"model": "m", "max_tokens": 9, "messages": [USER], **fields}
    return parse_messages(json.dumps(body).encode(), SIGNER)


def response(**fields: Any) -> ChatRequest:
    body = {"model": "m", "input": "Look.", **fields}
    return parse_responses(json.dumps(body).encode(), SIGNER).request


@pytest.mark.parametrize("tool", [FLAT, NESTED])
def test_a_custom_tool_of_a_chat_is_a_function_of_one_text(tool: dict[str, Any]) -> None:
    """A custom tool of a chat is a function of one text, in both forms and with its grammar in the
    description; the second time it comes from a cache.
    """
    for _ in range(2):
        request = chat(tools=[tool])
        (function,) = (one["function"] for one in request.tools)
        assert function["name"] == "ApplyPatch"
        assert function["parameters"]["required"] == ["input"]
        assert function["description"].startswith("Edits.")
        assert 'start: "x"' in function["description"]
        assert request.custom_tools == {"ApplyPatch": tool is FLAT}
        assert request.raw["tools"] == list(request.tools)


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "custom", "name": "ApplyPatch"},
        {"type": "custom", "custom": {"name": "ApplyPatch"}},
        {"type": "function", "name": "ApplyPatch"},
        {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "custom", "name": "ApplyPatch"}],
        },
    ],
)
def test_a_custom_tool_may_be_chosen(choice: dict[str, Any]) -> None:
    """A custom tool may be chosen by any form of its name."""
    other = {"type": "function", "name": "other", "parameters": SCHEMA}
    request = chat(tools=[other, FLAT], tool_choice=choice)
    assert [tool["function"]["name"] for tool in request.tools] == ["ApplyPatch"]
    assert request.tool_choice == "required"


@pytest.mark.parametrize(
    "call",
    [
        {"id": "c", "type": "custom", "custom": {"name": "ApplyPatch", "input": "*** x"}},
        {"id": "c", "type": "function", "function": {"name": "ApplyPatch", "arguments": "*** x"}},
        {
            "id": "c",
            "type": "function",
            "function": {"name": "ApplyPatch", "arguments": '{"input":"*** x"}'},
        },
    ],
)
def test_a_call_of_a_custom_tool_comes_back(call: dict[str, Any]) -> None:
    """A call of a custom tool comes back as the API has it, or as Cursor sends it."""
    said = [USER, {"role": "assistant", "tool_calls": [call]}]
    said.append({"role": "tool", "tool_call_id": "c", "content": "done"})
    request = chat(messages=said, tools=[FLAT])
    (made,) = request.messages[1].tool_calls
    assert (made.id, made.name, json.loads(made.arguments)) == (
        "c",
        "ApplyPatch",
        {"input": "*** x"},
    )
    if "custom" in call:
        assert chat(messages=said).messages[1].tool_calls == (made,)


def test_tools_and_parts_of_the_responses_api_at_chat() -> None:
    """Tools and parts of the Responses API are read at chat, without a wrapper and by other
    names.
    """
    tool = {"type": "function", "name": "look", "parameters": SCHEMA, "strict": True}
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "data:x"}]
    request = chat(tools=[tool], messages=[{"role": "user", "content": parts}])
    assert request.tools[0]["function"] == {"name": "look", "parameters": SCHEMA, "strict": True}
    content = request.messages[0].content or ""
    assert content.startswith("a\n[A picture was here.")
    assert request.raw["messages"][0]["content"] == [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "data:x"}},
    ]
    assert chat(messages=[{"role": "user", "content": parts[:1]}]).messages[0].content == "a"


def test_a_body_of_the_responses_api_at_chat() -> None:
    """A body of the Responses API at the chat endpoint is read as that API reads it; fields of
    chats count too.
    """
    said = {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}
    body = {
        "model": "m",
        "input": [said],
        "instructions": "Be brief.",
        "tools": [FLAT, {"type": "function", "name": "look", "parameters": SCHEMA}],
        "max_tokens": 7,
        "stream": True,
        "reasoning": {"effort": "low"},
    }
    request = parse_any_chat(json.dumps(body).encode(), SIGNER)
    assert [m.content for m in request.messages] == ["Be brief.", "Hi"]
    assert [tool["function"]["name"] for tool in request.tools] == ["ApplyPatch", "look"]
    assert request.custom_tools == {"ApplyPatch": True}
    assert (request.max_tokens, request.stream) == (7, True)
    assert request.template_kwargs["reasoning_effort"] == "low"
    for name, value in (("previous_response_id", "resp_1"), ("conversation", "conv_1")):
        with pytest.raises(ApiError, match="/v1/responses") as refused:
            parse_any_chat(json.dumps({**body, name: value}).encode(), SIGNER)
        assert refused.value.param == name
    with pytest.raises(ApiError) as missing:
        parse_any_chat(b'{"model": "m", "text": "\\"input\\""}', SIGNER)
    assert missing.value.param == "messages"


@pytest.mark.parametrize(
    ("kind", "name", "has", "lacks"),
    [
        ("bash_20250124", "bash", {"command", "restart"}, {"path"}),
        ("bash_20241022", "bash", {"command", "restart"}, set()),
        ("text_editor_20250728", "str_replace_based_edit_tool", {"path", "insert_text"}, set()),
        ("text_editor_20250124", "str_replace_editor", {"path", "new_str"}, {"insert_text"}),
        ("memory_20250818", "memory", {"old_path", "new_path", "file_text"}, set()),
        ("computer_20250124", "computer", {"action", "scroll_amount"}, {"region"}),
        ("computer_20241022", "computer", {"action", "coordinate"}, {"scroll_amount"}),
        ("bash_20991231", "bash", {"command"}, set()),
    ],
)
def test_client_tools_reach_the_model(kind: str, name: str, has: set[str], lacks: set[str]) -> None:
    """The model sees client tools by the kind in their type, with a description and a schema, under
    the client's name.
    """
    tool = {"type": kind, "name": name, "display_width_px": 9, "display_height_px": 9}
    request = message(tools=[tool], tool_choice={"type": "tool", "name": name})
    (function,) = (one["function"] for one in request.tools)
    properties = function["parameters"]["properties"].keys()
    assert function["name"] == name
    assert function["description"]
    assert has <= properties
    assert not lacks & properties
    assert request.ignored == ()


SERVER_TOOLS = [
    "web_search_20250305",
    "web_fetch_20250910",
    "code_execution_20250825",
    "mcp_toolset",
    "advisor_20260301",
]


def test_tools_of_anthropic_s_api_at_chat() -> None:
    """Tools of Anthropic's API are read at chat with their schemas and choices, as some agents send
    them to any server.
    """
    tool = {"name": "f", "description": "Does.", "input_schema": SCHEMA}
    for given in (tool, {"type": "custom", **tool}):
        request = chat(tools=[given], tool_choice={"type": "tool", "name": "f"})
        (function,) = (one["function"] for one in request.tools)
        assert (function["name"], function["parameters"]["required"]) == ("f", ["a"])
        assert request.tool_choice == "required"
    for choice, seen in (("any", "required"), ("auto", "auto"), ("none", "none")):
        assert chat(tools=[tool], tool_choice={"type": choice}).tool_choice == seen


@pytest.mark.parametrize(
    ("parse", "fields", "path"),
    [
        (lambda body: parse_responses(body, SIGNER), {"messages": [USER]}, "/v1/chat/completions"),
        (lambda body: parse_responses(body, SIGNER), {"prompt": None}, "/v1/completions"),
        (parse_completions, {"messages": [USER]}, "/v1/chat/completions"),
        (lambda body: parse_any_chat(body, SIGNER), {"prompt": "x"}, "/v1/completions"),
        (lambda body: parse_messages(body, SIGNER), {"input": "x"}, "/v1/responses"),
    ],
)
def test_a_body_of_another_api_is_told_where_it_belongs(
    parse: Any, fields: dict[str, Any], path: str
) -> None:
    """The error for a body of another API says where it belongs, and not only that a field of this
    one is missing.
    """
    with pytest.raises(ApiError, match="is missing") as refused:
        parse(json.dumps({"model": "m", "max_tokens": 9, **fields}).encode())
    assert path in refused.value.message


def test_items_and_parts_of_others_are_named() -> None:
    """Each type once, in the order of the input; what has no type says so."""
    search = {"type": "web_search_call", "id": "ws_1", "action": {"query": "x"}}
    audio = {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}
    items = [USER, search, search, audio, {"id": "x", "text": "y"}]
    assert response(input=items).ignored == (
        "input (web_search_call)",
        "input (input_audio)",
        "input (no type)",
    )
    assert response(input=[USER, {"role": "assistant", "content": []}]).ignored == ()
    picture = {"type": "input_image", "image_url": "data:x"}
    told = {"role": "developer", "content": [{"type": "input_text", "text": "x"}, picture]}
    assert response(input=[told, USER]).ignored == ("input (developer: image_url)",)


SHELL = {"commands": ["ls", "false"], "timeout_ms": 1000}
EXEC = {"type": "exec", "command": ["ls"], "env": {}}
PATCH = {"type": "create_file", "path": "a.py", "diff": "+x = 1"}


@pytest.mark.parametrize(
    ("call", "result", "name", "arguments", "text"),
    [
        (
            {"type": "shell_call", "call_id": "c1", "action": SHELL, "status": "completed"},
            {
                "type": "shell_call_output",
                "call_id": "c1",
                "output": [
                    {
                        "stdout": "a.py\n",
                        "stderr": "",
                        "outcome": {"type": "exit", "exit_code": 0},
                    },
                    {"stdout": "", "stderr": "no", "outcome": {"type": "exit", "exit_code": 1}},
                    {"stdout": "b", "stderr": "", "outcome": {"type": "timeout"}},
                ],
            },
            "shell",
            SHELL,
            "a.py\nno\n[exit code 1]\nb\n[stopped at its time limit]",
        ),
        (
            {"type": "local_shell_call", "id": "lsh_1", "call_id": "c1", "action": EXEC},
            {"type": "local_shell_call_output", "id": "c1", "output": '{"output": "a.py"}'},
            "local_shell",
            {"command": ["ls"]},  # without what the server has added
            '{"output": "a.py"}',
        ),
        (
            {"type": "apply_patch_call", "call_id": "c1", "operation": PATCH},
            {"type": "apply_patch_call_output", "call_id": "c1", "status": "completed"},
            "apply_patch",
            PATCH,
            "completed",
        ),
    ],
)
def test_calls_of_built_in_client_tools_stay_in_the_history(
    call: dict[str, Any], result: dict[str, Any], name: str, arguments: dict[str, Any], text: str
) -> None:
    """Calls of built-in client tools stay in the history as calls of functions with their names,
    for sessions that another server began.
    """
    request = response(input=[USER, call, result, USER])
    assert request.ignored == ()
    asked, answered = request.messages[1:3]
    (made,) = asked.tool_calls
    assert (made.id, made.name, json.loads(made.arguments)) == ("c1", name, arguments)
    assert (answered.tool_call_id, answered.content) == ("c1", text)


def test_stops_of_a_response() -> None:
    """The API has none, and other servers of it do; a summary has none."""
    assert response(stop=["+"]).stop == ("+",)
    assert response(stop="+").stop == ("+",)
    compacts = [USER, {"type": "compaction_trigger"}]
    asked = response(stop=["+"], input=compacts)
    assert asked.stop == ()
    assert "stop" not in asked.raw


def test_what_is_not_served_is_named() -> None:
    """Tools that a server would run, and fields on which the answer would depend."""
    tools = [{"type": kind, "name": kind} for kind in SERVER_TOOLS]
    request = message(tools=tools, mcp_servers=[{"url": "x"}])
    assert request.ignored == (
        *(f"tools[{at}] ({kind})" for at, kind in enumerate(SERVER_TOOLS)),
        "mcp_servers",
    )
    blocks = [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "Found."},
    ]
    searched = message(messages=[USER, {"role": "assistant", "content": blocks}, USER])
    assert searched.ignored == (
        "messages (server_tool_use)",
        "messages (web_search_tool_result)",
    )
    hosted = response(tools=[{"type": "web_search"}], max_tool_calls=3)
    assert hosted.ignored == ("tools[0] (web_search)", "max_tool_calls")
    assert chat(functions=[{"name": "f"}], web_search_options={}).ignored == ("functions",)
    refusal = chat(tools=[{"type": "web_search"}]).refused_locally
    assert refusal is not None
    assert (refusal.status, refusal.param) == (400, "tools[0].type")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "response_format.schema"),
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, "response_format.schema"),
        ({"response_format": {"type": "json_object", "value": SCHEMA}}, "response_format.value"),
        ({"response_format": {"type": "json", "value": SCHEMA}}, "response_format.value"),
        ({"json_schema": SCHEMA}, "json_schema"),
        ({"format": SCHEMA}, "format"),
    ],
)
def test_schemas_in_other_forms_are_enforced(fields: dict[str, Any], field: str) -> None:
    """Schemas in the forms of llama.cpp, Ollama and TGI are enforced; huggingface_hub writes TGI's
    for any server. An engine must follow them, or the request is refused.
    """
    request = chat(**fields)
    assert request.grammar is not None
    assert (request.grammar.kind, request.grammar.field) == ("json_schema", field)
    assert request.grammar.is_required
    assert '"required": ["a"]' in request.grammar.text
    if not field.startswith("response_format"):
        body = {"model": "m", "prompt": "x", **fields}
        raw = parse_completions(json.dumps(body).encode()).requests[0].grammar
        assert raw is not None
        assert message(**fields).grammar == response(**fields).grammar == request.grammar == raw
    else:
        form = fields["response_format"]
        assert message(output_config={"format": form}).grammar is not None
        assert message(output_format=form).grammar is not None
        assert response(text={"format": form}).grammar is not None


def test_json_by_ollamas_name() -> None:
    """Any object; an empty format is none."""
    request = chat(format="json")
    assert request.grammar is not None
    assert request.grammar.kind == "json_schema"
    assert chat(format="", grammar=None, json_schema=None).grammar is None
    with pytest.raises(ApiError) as refused:
        chat(format=7)
    assert refused.value.param == "format"


def test_a_grammar_of_llama_cpp_is_refused_by_name_here() -> None:
    """Providers and external engines get it as it is."""
    request = chat(grammar='root ::= "yes" | "no"')
    refusal = request.refused_locally
    assert refusal is not None
    assert (refusal.status, refusal.code, refusal.param) == (400, "grammar_not_served", "grammar")
    assert request.raw["grammar"] == 'root ::= "yes" | "no"'


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        (
            {"structured_outputs": {"structural_tag": {"type": "structural_tag"}}},
            "structured_outputs.structural_tag",
        ),
    ],
)
def test_grammars_of_other_engines_are_refused_by_name_here(
    given: dict[str, Any], field: str
) -> None:
    """VLLM's structural tags: the answer was free, and nothing said so."""
    refusal = chat(**given).refused_locally
    assert refusal is not None
    assert (refusal.status, refusal.code, refusal.param) == (400, "grammar_not_served", field)


def test_a_grammar_by_sglangs_name_is_one() -> None:
    """A grammar by SGLang's name is one, as by vLLM's: its engines enforce it, and ours refuse what
    is not Lark.
    """
    grammar = chat(ebnf='root ::= "yes"').grammar
    assert grammar is not None
    assert (grammar.kind, grammar.is_foreign) == ("lark", False)


def test_a_form_that_there_is_not_is_named() -> None:
    """A typo would leave the answer free. What says how a backend goes about it has no effect."""
    with pytest.raises(ApiError) as refused:
        chat(structured_outputs={"jsn": {"type": "object"}})
    assert refused.value.param == "structured_outputs.jsn"
    assert "json, json_object" in refused.value.message
    asked = {"regex": "a+", "disable_any_whitespace": True, "whitespace_pattern": None}
    grammar = chat(structured_outputs=asked).grammar
    assert grammar is not None
    assert grammar.kind == "regex"


@pytest.mark.parametrize(
    ("kind", "name", "is_text"),
    [
        ("text/plain", "a", True),
        ("text/csv; charset=latin-1", "a", True),
        ("application/json", "a", True),
        ("application/vnd.api+json", "a", True),
        ("application/octet-stream", "a.py", True),
        ("application/octet-stream", "a.bin", False),
        ("application/pdf", "a.txt", False),
        ("image/png", "a", False),
    ],
)
def test_a_file_of_text_is_its_text(kind: str, name: str, is_text: bool) -> None:
    """A file of text is its text at each API, by its type, else by its name; what is no text stays
    a file.
    """
    charset = "latin-1" if "latin" in kind else "utf-8"
    data = base64.b64encode("é = 1\n".encode(charset)).decode()
    url = f"data:{kind.replace(' ', '')};base64,{data}"
    expected = "é = 1\n" if is_text else None
    assert text_of_file(url, name) == expected
    item = {"type": "input_file", "filename": name, "file_data": url}
    said = response(input=[{"role": "user", "content": [item]}, USER])
    file = {"type": "file", "file": {"filename": name, "file_data": url}}
    asked = chat(messages=[{"role": "user", "content": [file]}, USER])
    source = {"type": "base64", "media_type": kind.partition(";")[0], "data": data}
    blocks = [{"type": "document", "title": name, "source": source}]
    sent = message(messages=[{"role": "user", "content": blocks}, USER])
    if charset == "utf-8":
        assert (sent.other_part is None) == is_text
    for request in (said, asked):
        assert (request.other_part is None) == is_text
        assert ("é = 1" in (request.messages[0].content or "")) == is_text


@pytest.mark.parametrize(
    "data", ["data:text/plain;base64,!!", "data:text/plain;base64,/w==", "", 7]
)
def test_broken_text_stays_a_file(data: Any) -> None:
    """Broken text stays a file; nothing is guessed."""
    assert text_of_file(data, "a.txt") in (None, "")


def test_text_in_plain_base64_by_its_name() -> None:
    """Text in plain base64 is read by the file's name, as some clients send it; addresses are no
    text.
    """
    assert text_of_file(base64.b64encode(b"hello").decode(), "a.md") == "hello"
    assert text_of_file("https://a.example/a.md", "a.md") is None
    assert text_of_file("data:,a%20b", "a.md") == "a b"


@pytest.mark.parametrize("call_id", ["functions.f:0", "a b", "é", "", "b64-x", "call_1", "x" * 90])
def test_ids_of_other_vendors_make_the_round_trip(call_id: str) -> None:
    """Clients see letters, digits, `_` and `-` only."""
    shown = to_client(call_id)
    assert set(shown) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
    assert from_client(shown) == call_id
    use = {"type": "tool_use", "id": shown, "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": shown, "content": "ok"}
    request = message(
        messages=[
            USER,
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ]
    )
    assert request.messages[1].tool_calls[0].id == call_id
    assert request.messages[2].tool_call_id == call_id


def test_ids_of_others_stay() -> None:
    """What was not made here is not read as if it were."""
    for given in ("call_9", "toolu_01ABC", "toolu_b64-!!", "functions.f:0"):
        assert from_client(given) in (given, given.removeprefix("toolu_"))


@pytest.mark.parametrize("tool", [{"name": "f"}, {"name": "f", "description": None}])
def test_a_tool_of_a_name_alone(tool: dict[str, Any]) -> None:
    """A tool that has only a name is one without arguments."""
    assert chat(tools=[{"type": "function", "function": tool}]).tools[0]["function"]["name"] == "f"
    assert message(tools=[tool]).tools[0]["function"]["parameters"]["type"] == "object"
    assert response(tools=[{"type": "function", **tool}]).tools[0]["function"]["name"] == "f"


def test_an_item_may_change_the_effort_and_the_form_of_answers() -> None:
    """The last one of each counts, before the request's own; the response says so."""
    form = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}
    updates: list[dict[str, Any]] = [
        {"type": "configuration_update", "reasoning": {"effort": "low"}},
        {"type": "configuration_update", "text": {"format": form}},
        {"type": "configuration_update", "reasoning": {"effort": None}, "text": {}},
    ]
    fields = {"reasoning": {"effort": "high"}, "text": {"format": {"type": "text"}}}
    body = {"model": "m", "input": [USER, *updates, USER], **fields}
    parsed = parse_responses(json.dumps(body).encode(), SIGNER)
    assert parsed.request.template_kwargs["reasoning_effort"] == "low"
    assert parsed.request.grammar is not None
    assert parsed.request.ignored == ()
    assert parsed.echo["reasoning"]["effort"] == "low"
    assert parsed.echo["text"]["format"] == form
    plain = {"type": "configuration_update", "text": {"format": {"type": "text"}}}
    assert response(input=[USER, *updates, plain]).grammar is None


def test_a_stored_prompt_of_openai_is_told_so() -> None:
    """It is no field of another API there."""
    with pytest.raises(ApiError, match="No prompt is stored here") as refused:
        parse_responses(json.dumps({"model": "m", "prompt": {"id": "pmpt_1"}}).encode(), SIGNER)
    assert refused.value.param == "input"
    assert "/v1/completions" not in refused.value.message


def test_a_prompt_that_is_only_to_be_cached_is_named() -> None:
    """It is answered, which costs a while; the client is told."""
    assert response(prompt_cache_options={"prewarm": True}).ignored == (
        "prompt_cache_options (prewarm)",
    )
    assert response(prompt_cache_options={"prewarm": False, "ttl": "30m"}).ignored == ()


def test_parts_of_the_assistant_s_that_are_no_text_are_named() -> None:
    """Calls of another API among them: they were lost without a word."""
    use = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
    said = {"role": "assistant", "content": [{"type": "output_text", "text": "So."}, use]}
    request = response(input=[USER, said, USER])
    assert request.messages[1].content == "So."
    assert request.ignored == ("input (assistant: tool_use)",)
    empty = {"role": "assistant", "content": [{"type": "output_text"}, {"type": "refusal"}]}
    assert response(input=[USER, empty, USER]).ignored == ()
