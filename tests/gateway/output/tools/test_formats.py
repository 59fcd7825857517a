"""Which format a model writes, and what type its values have."""

from typing import Any, get_args

import pytest

from config import ReasoningParserName, ToolParserName
from gateway.output.answer_format import answer_format
from gateway.output.reasoning import REASONING_FORMATS
from gateway.output.tools import TOOL_FORMATS, is_known_format
from gateway.output.tools.schema import schemas_of, to_json, types_of
from tests.fakes.text_files import CHAT_TEMPLATE

TEMPLATES = {
    "hermes": "<tools></tools> <tool_call>\n{% raw %}{% endraw %}</tool_call>",
    "qwen3_coder": "<tool_call>\n<function=example><parameter=x>",
    "llama3_json": '{"name": function name, "parameters": dictionary}. <|python_tag|>',
    "mistral": "[AVAILABLE_TOOLS] [TOOL_CALLS] [",
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>",
    "deepseek_v4": "<｜DSML｜invoke name=",
    "kimi_k2": "<|tool_calls_section_begin|> <|tool_call_argument_begin|>",
    "phi4_mini": "<|tool|>{{ tools }}<|/tool|>",
    "function_gemma": "<start_function_declaration> <start_function_call>call:",
    "glm": "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>",
    "hy3": "{%- set argkey_begin_token = '<arg_key{}>'.format(HYTK) %}",
    "kimi_k3": "{{- '<|open|>' + tag -}} '<|sep|>'",
    "minicpm5": '<function name="f"><param name="x">value</param></function>',
    "solar_open": "<|tool_call:begin|> <|tool_call:name|> <|tool_call:args|> <|tool_call:end|>",
    "gigachat": 'add_tokens = namespace(function_call="<|function_call|>")',
    "gemma4": "<|tool>declaration:f<tool|> '<|tool_call>call:' + name",
    "harmony": "<|channel|>analysis<|message|> to=functions.f<|channel|>commentary json<|message|>",
    "muse_glimmer": '<atem:function_calls>\n<atem:invoke name="$FUNCTION_NAME">',
    "minimax_m2": '<minimax:tool_call>\n<invoke name="f">',
    "minimax_m3": "]<]minimax[>[ ~ '<tool_call>' <mm:think>",
    "minimax_m1": '<tool_calls>\n{"name": <tool-name>}\n</tool_calls>',
    "lfm2": "<|tool_list_start|>[",
    "apertus": "<|tools_prefix|>[ <|inner_prefix|>",
    "nemotron": '<TOOLCALL>[{{"name": "tool_name1"}}]</TOOLCALL>',
    "cohere": '<|START_ACTION|>[{"tool_name": "f", "parameters": {}}]<|END_ACTION|>',
}
ALSO = {
    "phi4_mini": "respond only with <|tool_call|> followed by a JSON list of tools used",
    "qwen3_coder": "<seed:tool_call>\n<function=f>",
    "lfm2": "<|tool_call_start|>[",
    "llama3_json": '{"name": function name, "parameters": dictionary}. <|header_start|>',
}
"""Other templates of the same formats."""


@pytest.mark.parametrize(("name", "template"), TEMPLATES.items())
def test_the_template_tells_the_format(name: str, template: str) -> None:
    """Every format is known by what its templates contain."""
    form = answer_format(template).tools
    assert form is TOOL_FORMATS[name]
    assert answer_format(ALSO.get(name, template)).tools is TOOL_FORMATS[name]
    assert is_known_format(template)


def test_a_template_of_no_known_format_is_told() -> None:
    """One that shows tools with tags of its own; one without tools has nothing to tell."""
    assert not is_known_format("{% for tool in tools %}<|new_tool|>{{ tool }}{% endfor %}")
    assert not is_known_format("{{ message.tool_calls }}")
    assert is_known_format("{{ message.content }}")
    assert is_known_format("")


def test_all_formats_have_a_sign() -> None:
    """No format is left out of the test above."""
    assert TEMPLATES.keys() == TOOL_FORMATS.keys()


def test_the_configuration_overrules_the_template() -> None:
    """A named parser is taken, "none" is none, and what nothing tells is Hermes' and `<think>`."""
    form = answer_format(TEMPLATES["glm"], "mistral", "seed")
    assert (form.tools, form.reasoning) == (TOOL_FORMATS["mistral"], REASONING_FORMATS["seed"])
    none = answer_format(TEMPLATES["glm"], "none", "none")
    assert (none.tools, none.reasoning, none.enders) == (None, None, ())
    bare = answer_format(None)
    assert (bare.tools, bare.reasoning) == (TOOL_FORMATS["hermes"], REASONING_FORMATS["think"])
    assert answer_format(CHAT_TEMPLATE).tools is TOOL_FORMATS["hermes"]


@pytest.mark.parametrize("form", REASONING_FORMATS.values(), ids=lambda form: form.name)
def test_the_template_tells_the_tags_of_reasoning(form: Any) -> None:
    """Each sibling of `<think>` is known by its tag."""
    assert answer_format(f"a {form.sign or form.close} b").reasoning is form


@pytest.mark.parametrize(
    ("template", "parser", "end", "before"),
    [
        ("</think>", "auto", "assistant\n", "<think>\n\n</think>\n\n"),
        ("</think>", "auto", "assistant\n<think>\n", "\n</think>\n\n"),
        ("</think>", "auto", "assistant\n<think>\n\n</think>\n\n", ""),
        ("</think>", "none", "assistant\n", ""),
        ("", "auto", "assistant\n", ""),
        ("", "auto", "assistant\n<think>\n", "\n</think>\n\n"),
        ("", "seed", "assistant\n", "<seed:think>\n\n</seed:think>\n\n"),
    ],
)
def test_reasoning_are_skipped_as_the_model_would(
    template: str, parser: str, end: str, before: str
) -> None:
    """Open ones are closed; a model that thinks is given empty ones, unless it has some already."""
    assert answer_format(template, "auto", parser).past_reasoning(end) == before


def test_the_configuration_knows_every_parser() -> None:
    """The names in the configuration are those of the formats."""
    assert set(get_args(ToolParserName)) == {"auto", "none", *TOOL_FORMATS}
    assert set(get_args(ReasoningParserName)) == {"auto", "none", *REASONING_FORMATS}


def test_markup_among_the_special_tokens_is_shown() -> None:
    """What a format writes must be text, but no other special token."""
    special = ["<|im_end|>", "[TOOL_CALLS]", "[ARGS]", "[THINK]", "｜DSML｜", "</s>"]
    assert answer_format("[TOOL_CALLS] [THINK]").shown(special) == {
        "[TOOL_CALLS]",
        "[ARGS]",
        "[THINK]",
    }
    assert answer_format("<｜DSML｜").shown(special) == {"｜DSML｜"}


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        (None, "1", '"1"'),
        ({"type": "string"}, "null", '"null"'),
        ({"type": ["string", "null"]}, "null", "null"),
        ({"type": "integer"}, "12", "12"),
        ({"type": "integer"}, "012", '"012"'),
        ({"type": "int"}, "-3", "-3"),
        ({"type": "double"}, "1.5", "1.5"),
        ({"type": ["double", "none"]}, "None", "null"),
        ({"enum": [1, 2, None]}, "2", "2"),
        ({"enum": ["1", 1]}, "1", '"1"'),
        ({"enum": [{}, [], 1.5]}, "[1]", "[1]"),
        ({"const": True}, "True", "true"),
        ({"properties": {}}, "{'a': 1}", '{"a": 1}'),
        ({"items": {}}, "[1, 2] x", '"[1, 2] x"'),
        ({"anyOf": [{"type": "number"}, {"oneOf": [{"type": "boolean"}]}]}, "1.5", "1.5"),
        ({"anyOf": "wrong", "type": 7}, "1", '"1"'),
        ({"type": "object"}, "{", '"{"'),
    ],
)
def test_values_have_the_type_of_their_schema(schema: object, text: str, expected: str) -> None:
    """What fits no type of the schema is a string, as is what has no schema."""
    assert to_json(text, types_of(schema)) == expected


def test_tools_without_parameters_have_no_schemas() -> None:
    """Clients leave parameters out, or send something else."""
    tools = ({"function": {"name": "a"}}, {"function": {"name": "b", "parameters": []}})
    assert schemas_of(tools) == {"a": {}, "b": {}}
