"""A conversation of two turns with a tool, in the format of every family that runs."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from gateway.api.chat_parser import parse_chat_request
from gateway.output.answer_format import answer_format
from gateway.prompt.model_text import ModelText
from tests.fakes import family_templates
from tests.fakes.family_templates import FAMILY_TEMPLATES, family_files
from tests.gateway.output.tools.test_answers import events_of, joined

NOW = datetime(2026, 1, 2, tzinfo=UTC)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "The weather",
            "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
        },
    }
]
ARGUMENTS = '{"text": "Athens, \\"now\\"", "count": 3}'
CALL = {"id": "abcDEF123", "type": "function", "function": {"name": "f", "arguments": ARGUMENTS}}
FIRST: list[dict[str, Any]] = [
    {"role": "system", "content": "You are brief."},
    {"role": "user", "content": "weather?"},
]
SECOND: list[dict[str, Any]] = [
    *FIRST,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "name": "f", "content": "warm", "tool_call_id": "abcDEF123"},
]
_OPENED = {"gemma4": "<|channel>thought\n<channel|>", "glm4_moe_lite": "<think>"}
"""What a prompt ends with that no earlier turn shows."""

CALLING = [name for name, family in FAMILY_TEMPLATES.items() if family.parser != "hermes"]


def _ours(text: ModelText, messages: list[dict[str, Any]], tools: list[Any] | None) -> list[int]:
    body = {"model": "m", "messages": messages} | ({"tools": tools} if tools else {})
    asked = parse_chat_request(json.dumps(body).encode())
    return list(text.encode_chat(asked.messages, asked.tools, asked.template_kwargs, NOW))


def _theirs(
    folder: Path, messages: list[dict[str, Any]], tools: list[Any] | None, *, takes_text: bool
) -> list[int]:
    plain = json.loads(json.dumps(messages))
    for message in plain:
        for call in message.get("tool_calls", []):
            if not takes_text:
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    ids = PreTrainedTokenizerFast.from_pretrained(folder).apply_chat_template(
        plain, tools=tools, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert isinstance(ids, list)
    return ids


@pytest.mark.parametrize("name", FAMILY_TEMPLATES)
def test_both_turns_have_the_ids_of_transformers(name: str, tmp_path: Path) -> None:
    """The question, and the question behind a call and its result; ends are those of the files."""
    files, family = family_files(name), FAMILY_TEMPLATES[name]
    for file_name, data in files.items():
        (tmp_path / file_name).write_bytes(data)
    text = ModelText(files)
    calls = family.parser != "hermes"
    turns = [FIRST, SECOND] if calls else [FIRST, [*FIRST, _answer("warm"), FIRST[1]]]
    for messages in turns:
        tools = TOOLS if calls else None
        theirs = _theirs(tmp_path, messages, tools, takes_text=family.takes_text)
        assert _ours(text, messages, tools) == theirs
    tokenizer = text.encoder.tokenizer
    assert set(text.eos_ids) == {tokenizer.token_to_id(token) for token in family.ends}


@pytest.mark.parametrize("name", CALLING)
def test_the_call_of_the_history_is_read_back(name: str) -> None:
    """What the template shows of a call is what the parser of its format reads."""
    text, family = ModelText(family_files(name)), FAMILY_TEMPLATES[name]
    form = answer_format(family.template)
    assert form.tools is not None
    assert form.tools.name == family.parser
    asked = _ours(text, FIRST, TOOLS)
    whole = text.encoder.tokenizer.decode(_ours(text, SECOND, TOOLS), skip_special_tokens=False)
    prompt = text.encoder.tokenizer.decode(asked, skip_special_tokens=False)
    splitter = form.splitter(tuple(TOOLS), is_open=form.is_opened_by(prompt), is_past=False)
    prompt = prompt.removesuffix(_OPENED.get(name, ""))
    assert whole.startswith(prompt.rstrip() if name == "phi4_mini" else prompt)
    answer = whole[len(prompt) :]
    end = min(at for tag in family.ends if (at := answer.find(tag)) >= 0)
    parts = [splitter.push(answer[:end]), splitter.flush()]
    arguments = ARGUMENTS
    if name == "gemma4":  # whose template sorts them
        arguments = json.dumps(json.loads(ARGUMENTS), sort_keys=True)
    events = events_of(form.tools.name, [part.answer for part in parts])
    assert joined(events) == [("f", arguments)]


@pytest.mark.parametrize("given", [None, 5, ["The weather", "now"], {"a": 1}])
@pytest.mark.parametrize("name", CALLING)
def test_a_description_of_any_type_is_shown(name: str, given: object) -> None:
    """Templates that join texts refused what is no text."""
    function = TOOLS[0]["function"]
    property_of = {"text": {"type": "string", "description": given}}
    parameters = {"type": "object", "properties": property_of}
    tool = {"type": "function", "function": {**function, "description": given}}
    in_parameters = {"type": "function", "function": {**function, "parameters": parameters}}
    assert _ours(ModelText(family_files(name)), FIRST, [tool])
    assert _ours(ModelText(family_files(name)), FIRST, [in_parameters])


def test_a_result_has_the_name_of_its_function() -> None:
    """FunctionGemma's template shows it; neither OpenAI's results nor others have one."""
    text = ModelText(family_files("function_gemma"))
    nameless = [*SECOND[:3], {key: SECOND[3][key] for key in ("role", "content", "tool_call_id")}]
    assert _ours(text, nameless, TOOLS) == _ours(text, SECOND, TOOLS)


@pytest.mark.parametrize("end", [[], [{"role": "user", "content": "thanks"}]])
def test_calls_and_results_are_text_where_a_template_has_no_turns_for_them(end: list[Any]) -> None:
    """Gemma 3's has two roles: a call is the model's text and a result the user's, so that the
    session goes on.
    """
    text = ModelText(family_files("gemma3"))
    prompt = text.encoder.tokenizer.decode(
        _ours(text, [*SECOND, *end], TOOLS), skip_special_tokens=False
    )
    assert prompt == (
        "<bos><start_of_turn>user\nYou are brief.\n\nweather?<end_of_turn>\n"
        '<start_of_turn>model\n<tool_call>\n{"name": "f", "arguments": '
        '{"text": "Athens, \\"now\\"", "count": 3}}\n</tool_call><end_of_turn>\n'
        "<start_of_turn>user\n<tool_response>\nwarm\n</tool_response>"
        + "".join(f"\n\n{turn['content']}" for turn in end)
        + "<end_of_turn>\n<start_of_turn>model\n"
    )


def test_phi_reasons_in_the_tags_of_its_template() -> None:
    """Phi-4's reasoning models write what most do."""
    form = answer_format(FAMILY_TEMPLATES["phi4_reasoning"].template)
    assert form.is_reasoning_model
    assert form.reasoning is not None
    assert form.reasoning.close == "</think>"


@pytest.mark.parametrize("thinks", [True, False])
def test_qwen_3_5_reasons_from_the_first_token_on(*, thinks: bool) -> None:
    """Qwen3.5's template opens the tag of thoughts, or also closes it where a client wants none;
    earlier reasoning is shown behind the last question only.
    """
    text = ModelText(family_files("qwen3_5"))
    form = answer_format(text.chat_template)
    assert form.is_reasoning_model
    kwargs = {"chat_template_kwargs": {"enable_thinking": thinks}}
    asked = parse_chat_request(json.dumps({"model": "m", "messages": FIRST} | kwargs).encode())
    ids = text.encode_chat(asked.messages, asked.tools, asked.template_kwargs, NOW)
    prompt = text.encoder.tokenizer.decode(list(ids), skip_special_tokens=False)
    assert form.is_opened_by(prompt) == thinks
    old = [*FIRST, _answer("warm") | {"reasoning_content": "hm"}, FIRST[1]]
    shown = text.encoder.tokenizer.decode(_ours(text, old, None), skip_special_tokens=False)
    assert "hm" not in shown
    new = [*FIRST, SECOND[2] | {"reasoning_content": "hm"}, SECOND[3]]
    shown = text.encoder.tokenizer.decode(_ours(text, new, TOOLS), skip_special_tokens=False)
    assert "<think>\nhm\n</think>\n\n<tool_call>" in shown


@pytest.mark.parametrize("has_system", [True, False])
def test_tools_are_shown_where_the_template_looks_for_them(*, has_system: bool) -> None:
    """Phi-4-mini's has them as JSON in the system turn, which is made if there is none."""
    source = Path(family_templates.__file__).with_name("templates") / "phi4_mini_published.jinja"
    files = family_files("phi4_mini") | {"chat_template.jinja": source.read_bytes()}
    text = ModelText(files)
    ids = _ours(text, FIRST if has_system else FIRST[1:], TOOLS)
    shown = text.encoder.tokenizer.decode(ids, skip_special_tokens=False)
    system = "You are brief." if has_system else ""
    functions = json.dumps([TOOLS[0]["function"]])
    assert shown == (
        f"<|system|>{system}<|tool|>{functions}<|/tool|><|end|><|user|>weather?<|end|><|assistant|>"
    )


def _answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}
