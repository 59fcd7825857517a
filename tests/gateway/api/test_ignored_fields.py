"""Fields, values and numbers that belong to another API: read where they can be, else named."""

import json
from typing import Any

import pytest

from gateway.api import ApiError, parse_completions
from tests.gateway.api.test_odd_bodies import USER, chat, message, response


@pytest.mark.parametrize(
    "fields",
    [
        {"system": "Be brief."},
        {"instructions": "Be brief."},
        {"max_output_tokens": 5},
        {"max_new_tokens": 5, "max_output_tokens": 5},
        {"stop_sequences": ["x"]},
        {"output_config": {"effort": "low"}, "text": {"verbosity": "low"}},
        {"previous_response_id": "resp_1", "conversation": "conv_1"},
        {"prompt": "x", "input": "x"},
    ],
)
def test_a_chat_names_fields_of_other_apis(fields: dict[str, Any]) -> None:
    """The answer would depend on them: an instruction was lost, and nothing said so."""
    assert chat(**fields).ignored == tuple(sorted(fields))
    assert chat(**dict.fromkeys(fields)).ignored == ()


def test_what_would_change_the_answer_is_named() -> None:
    """A field that would change the answer is named, one with the default value is not. The SDK
    sends the content of `extra_body`, not the field itself.
    """
    assert chat(verbosity="low", extra_body={"top_k": 5}).ignored == ("extra_body", "verbosity")
    assert chat(verbosity="medium", extra_body={}).ignored == ()
    budget = {"effort": "low", "task_budget": {"type": "tokens", "total": 1000}}
    assert message(output_config=budget).ignored == ("output_config.task_budget",)
    tool = {"name": "f", "input_schema": {}}
    called = [
        {**tool, "allowed_callers": ["code_execution_20260120"]},
        {**tool, "name": "g", "allowed_callers": ["direct"]},
    ]
    assert message(tools=called).ignored == ("tools[0].allowed_callers",)


def test_examples_of_a_tools_input_reach_the_model() -> None:
    """Anthropic's API shows them too; a chat has no place for them but the description."""
    tool = {"name": "f", "input_schema": {}, "input_examples": [{"a": 1}, {"a": 2}]}
    words = 'Examples of its input:\n{"a":1}\n{"a":2}'
    for given, shown in ((tool, words), ({**tool, "description": "F."}, f"F.\n\n{words}")):
        (found,) = message(tools=[given]).raw["tools"]
        assert found["function"]["description"] == shown


def test_each_api_names_the_fields_of_the_others() -> None:
    """Each API names the fields of other APIs, and none that it reads."""
    strange = {"max_new_tokens": 5, "best_of": 2, "echo": True, "logit_bias": {"5": 1}}
    assert message(**strange).ignored == tuple(sorted(strange))
    assert response(**strange).ignored == tuple(sorted(strange))
    assert message(system="Be.", stop_sequences=["x"], top_k=3, seed=1).ignored == ()
    assert message(min_p=0.1, reasoning_effort="low").ignored == ("min_p", "reasoning_effort")
    assert response(instructions="Be.", stop="x", min_p=0.1, frequency_penalty=1).ignored == ()
    assert response(system="Be.", stop_sequences=["x"]).ignored == ("stop_sequences", "system")
    assert chat(n=2, stop="x", min_p=0.1, reasoning_effort="low", ignore_eos=True).ignored == ()
    given = {"max_completion_tokens": 5, "tools": [{"type": "function"}], "messages": [USER]}
    body = {"model": "m", "prompt": "x", "echo": True, "best_of": 1, "suffix": "", **given}
    raw = parse_completions(json.dumps(body).encode())
    assert raw.requests[0].ignored == tuple(sorted(given))


def test_switches_of_templates_work_at_all_apis() -> None:
    """Switches of templates belong to no API and work at all, because a model's thinking can only
    be switched by them.
    """
    off = {"chat_template_kwargs": {"enable_thinking": False, "custom": 1}}
    for request in (chat(**off), message(**off), response(**off)):
        assert request.template_kwargs["custom"] == 1
        assert request.template_kwargs["enable_thinking"] is False
        assert request.raw["chat_template_kwargs"] == off["chat_template_kwargs"]
    for request in (chat(think=True), message(think=True), response(think=True)):
        assert request.template_kwargs["enable_thinking"] is True
    for ask in (message, response):
        with pytest.raises(ApiError) as refused:
            ask(chat_template_kwargs={"messages": []})
        assert refused.value.param == "chat_template_kwargs.messages"


def test_an_integer_may_be_written_with_a_point() -> None:
    """JSON knows one kind of number, and some languages write 5.0."""
    assert chat(max_tokens=5.0, n=2.0, seed=7.0, top_k=40.0).max_tokens == 5
    assert message(max_tokens=5.0).max_tokens == 5
    assert response(max_output_tokens=5.0).max_tokens == 5
    raw = json.dumps({"model": "m", "prompt": [1.0, 2], "max_tokens": 5.0, "temperature": 1.0})
    (request,) = parse_completions(raw.encode()).requests
    assert (request.prompt, request.max_tokens, request.temperature) == ((1, 2), 5, 1.0)
    for wrong in (5.5, 0.0, -1.0, 1e30, 2.0**31):
        with pytest.raises(ApiError) as refused:
            chat(max_tokens=wrong)
        assert refused.value.param == "max_tokens"


@pytest.mark.parametrize(
    ("given", "kind", "is_foreign", "field"),
    [
        ({"type": "regex", "regex": "a+"}, "regex", False, "response_format.regex"),
        ({"type": "regex", "pattern": "a+"}, "regex", False, "response_format.pattern"),
        ({"type": "regex", "value": "a+"}, "regex", False, "response_format.value"),
        ({"type": "grammar", "grammar": 'root ::= "a"'}, "lark", True, "response_format.grammar"),
        ({"type": "structural_tag", "format": {}}, "lark", True, "response_format"),
    ],
)
def test_formats_of_other_servers(
    given: dict[str, Any], kind: str, is_foreign: bool, field: str
) -> None:
    """Formats of Together, TGI, Fireworks and vLLM are enforced, or refused unless a provider may
    answer.
    """
    request = chat(response_format=given)
    assert request.grammar is not None
    assert (request.grammar.kind, request.grammar.is_foreign) == (kind, is_foreign)
    assert (request.grammar.field, request.grammar.is_required) == (field, True)
    assert (request.refused_locally is not None) == is_foreign
    assert request.raw["response_format"] == given
    assert len(request.messages) == 1


@pytest.mark.parametrize("kind", ["regex", "grammar"])
def test_a_format_without_its_text_is_named(kind: str) -> None:
    """The answer would be free."""
    with pytest.raises(ApiError) as refused:
        chat(response_format={"type": kind})
    assert refused.value.param == f"response_format.{kind}"


@pytest.mark.parametrize("strict", [{}, [], 0, 1, "true"])
@pytest.mark.parametrize("is_bare", [False, True])
def test_a_strict_that_is_no_boolean_is_named(strict: object, *, is_bare: bool) -> None:
    """A `strict` that is no boolean is named: it would count as false, and the schema would not be
    enforced.
    """
    given = {"schema": {"type": "object"}, "strict": strict}
    wrapped = given if is_bare else {"json_schema": {"name": "n", **given}}
    with pytest.raises(ApiError) as refused:
        chat(response_format={"type": "json_schema", **wrapped})
    field = "strict" if is_bare else "json_schema.strict"
    assert refused.value.param == f"response_format.{field}"
