"""Calls that a grammar allows: random walks through the grammars of all formats that have one.

The tokenizer is the built-in model's, with the tags of all formats as tokens. What a walk writes is
read as an answer of the format: nothing but calls of the given tools, whose arguments are valid by
an independent validator.
"""

import json
import random
from functools import cache
from typing import Any, Final

import jsonschema
import pytest

from gateway.api import schema_source
from gateway.api.events import ToolCallArguments, ToolCallStart
from gateway.output.answer_format import AnswerFormat, answer_format
from gateway.output.tools import (
    TOOL_FORMATS,
    CallableTool,
    CallGrammar,
    ToolParser,
    call_syntax,
    forced_opening,
)
from gateway.schemas import LeftOut
from tests.fakes.grammar_walks import Walker, check_valid, with_tokens
from tests.fakes.random_schemas import random_schema
from workers.model_dir import builtin_dir

TEMPLATES: Final = {
    "hermes": "<tool_call>",
    "qwen3_coder": "<tool_call><function=f></function></tool_call>",
    "qwen3_coder seed": "<seed:tool_call><function=f></function></seed:tool_call>",
    "llama3_json": '<|start_header_id|>"parameters": ',
    "mistral": "[TOOL_CALLS]f[ARGS]",
    "mistral old": "[TOOL_CALLS]",
    "kimi_k2": "<|tool_call_argument_begin|>",
    "phi4_mini": "<|tool_call|><|/tool_call|>",
    "nemotron": "<TOOLCALL></TOOLCALL>",
    "harmony": "<|channel|>commentary <|channel|>analysis<|message|>",
    "minimax_m1": "<tool_calls></tool_calls>",
    "apertus": "<|tools_prefix|>",
    "deepseek_v3": "<｜tool▁calls▁begin｜>",
    "deepseek_v3 fenced": "<｜tool▁calls▁begin｜>```json",
    "glm": "<tool_call><arg_key></arg_key>",
    "gemma4": "<|tool_call>call:",
    "function_gemma": "<start_function_call>call:",
    "lfm2": "<|tool_call_start|>",
    "hy3": "'<arg_key{}>'",
    "kimi_k3": "'<|open|>'",
    "minicpm5": '<function name="',
    "solar_open": "<|tool_call:args|> <|begin|>assistant<|think|>",
    "gigachat": "<|function_call|>",
}
"""What a chat template of each format has in it."""

PLAIN: Final = ("<function=", "<parameter=", "</parameter>", "</function>")
"""Tags that are text in the tokenizers of their models."""

_BUILT: Final = {"kimi_k3", "minicpm5"}
_ALL_TAGS: Final = {
    tag
    for name in TEMPLATES
    if name not in _BUILT
    for tag in TOOL_FORMATS[name.partition(" ")[0]].tags
}
TAGS: Final = (
    *sorted(_ALL_TAGS.difference(PLAIN)),
    "<|return|>",
    "<|begin|>",
    "<|think|>",
    "<|content|>",
    "<|open|>",
    "<|close|>",
    "<|sep|>",
)
MINICPM_TAGS: Final = ("<function", "</function>", "<param", "</param>")
"""Tokens of a vocabulary of its own: others have the same tags as text. Some of its tags begin with
one of these, as those of Kimi K3 are built of three.
"""

SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "read_file": {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "line": {"type": "integer", "minimum": 1, "maximum": 40},
            "mode": {"enum": ["text", "lines"]},
        },
        "required": ["path", "line"],
    },
    "set": {
        "type": "object",
        "properties": {
            "is_on": {"type": "boolean"},
            "where": {"$ref": "#/$defs/place"},
            "which": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
        },
        "required": ["is_on", "where"],
        "$defs": {
            "place": {
                "type": "object",
                "properties": {"x": {"type": "integer"}},
                "required": ["x"],
                "additionalProperties": False,
            }
        },
    },
    "stop": {"type": "object", "properties": {}},
}
TOOLS: Final = tuple(
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
)
THOUGHT: Final = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
NUM_WALKS: Final = 12


@cache
def walker(name: str = "") -> Walker:
    """With the tokenizer of a format."""
    if name and name != "minicpm5":
        return walker()
    tags = MINICPM_TAGS if name else TAGS
    return Walker(tokenizer=with_tokens(builtin_dir("builtin:herma-tiny"), tags))


@cache
def form_of(name: str) -> AnswerFormat:
    return answer_format(TEMPLATES[name], tool_parser=name.partition(" ")[0])


def grammar_of(name: str) -> CallGrammar:
    form = form_of(name)
    syntax = call_syntax(form.tools, TEMPLATES[name], walker(name).token)
    assert syntax is not None
    return CallGrammar(syntax)


def callable_tools(names: tuple[str, ...]) -> list[CallableTool]:
    return [
        CallableTool(name, schema_source(SCHEMAS[name], "f", is_strict=True).text) for name in names
    ]


def calls_in(
    name: str, text: str, tools: tuple[dict[str, Any], ...] = TOOLS
) -> tuple[list[tuple[str, Any]], str]:
    """The calls in an answer, and its text."""
    form = form_of(name)
    splitter = form.splitter(tools, is_open=False, is_past=False)
    parts = [splitter.push(text), splitter.flush()]
    assert form.tools is not None
    parser = ToolParser(form.tools, random.randbytes, tools)
    events = [event for part in parts for event in parser.push(part.answer)]
    events += parser.flush(is_cut=False)
    calls: list[list[str]] = []
    said = ""
    for event in events:
        if isinstance(event, ToolCallStart):
            calls.append([event.name, ""])
        elif isinstance(event, ToolCallArguments):
            calls[-1][1] += event.text
        else:
            said += getattr(event, "text", "")
    return [(called, json.loads(arguments)) for called, arguments in calls], said


_ENDS: Final = {
    "glm": "</arg_value>",
    "gemma4": '<|"|>',
    "function_gemma": "<escape>",
    "lfm2": "'",
    "hy3": "</arg_value:opensource>",
    "kimi_k3": "<|close|>argument<|sep|>",
    "minicpm5": "</param>",
}


def _end(name: str) -> str:
    """What ends a value that stands as plain text."""
    if name in _ENDS:
        return _ENDS[name]
    if "qwen" not in name:
        return ""
    return "</parameter>\n" if name.endswith("seed") else "\n</parameter>\n"


def check(calls: list[tuple[str, Any]], names: tuple[str, ...]) -> None:
    for name, arguments in calls:
        assert name in names
        jsonschema.validate(arguments, {**SCHEMAS[name], "additionalProperties": False})


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("names", [("read_file",), ("set", "read_file", "stop")], ids=len)
def test_a_demanded_call_can_only_be_one(name: str, names: tuple[str, ...]) -> None:
    """A demanded call can only be one, behind the beginning that the prompt has."""
    form = form_of(name)
    assert form.tools is not None
    opening = forced_opening(form.tools.name, names, TEMPLATES[name])
    assert opening is not None
    grammar = grammar_of(name).forced(callable_tools(names), opening.text)
    num_ended = 0
    for seed in range(NUM_WALKS):
        text = walker(name).walk_lark(grammar, random.Random(seed), end_of_text=_end(name))
        if text is None:
            continue
        num_ended += 1
        calls, said = calls_in(name, opening.text + text)
        assert calls, text
        assert not said.strip(), text
        check(calls, names)
    assert num_ended >= NUM_WALKS // 2


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_begins_as_a_call_becomes_one(name: str) -> None:
    """Text is free; a call in it is of a tool, and valid."""
    names = ("set", "read_file")
    grammar = grammar_of(name).optional(callable_tools(names), None)
    begin = {
        "llama3_json": '{"name":',
        "harmony": f"{THOUGHT}<|channel|>commentary to=",
        "kimi_k3": "See:<|close|>response<|sep|><|open|>tools<|sep|>",
    }.get(name, form_of(name).tools.markers[0])  # type: ignore[union-attr]
    begin = "<seed:tool_call>" if name.endswith("seed") else begin
    for seed in range(NUM_WALKS // 2):
        text = walker(name).walk_lark(
            grammar, random.Random(seed), begin=begin, end_of_text=_end(name)
        )
        if text is not None:
            calls, _ = calls_in(name, text)
            assert calls, text
            check(calls, names)


@pytest.mark.parametrize("name", TEMPLATES)
def test_an_answer_without_calls_is_allowed(name: str) -> None:
    """Letter by letter what the model would have written without a grammar."""
    text = "It is done: see {a} and [b].\n\nBye."
    if name == "harmony":
        text = f"{THOUGHT}<|channel|>final<|message|>{text}"
    elif name == "solar_open":
        text = f"<|think|>Hm.<|end|><|begin|>assistant<|content|>{text}<|end|>"
    elif name == "kimi_k3":
        text = f"{text}<|close|>response<|sep|><|close|>message<|sep|>"
    grammar = grammar_of(name).optional(callable_tools(("set",)), None)
    assert walker(name).accepts(grammar, text)


def test_harmony_goes_on_in_thoughts_that_the_prompt_has_opened() -> None:
    """Harmony goes on in thoughts that the prompt has opened, then writes calls or a text."""
    grammar = grammar_of("harmony").optional(callable_tools(("set",)), None, is_thinking=True)
    between = "<|end|><|start|>assistant<|channel|>"
    assert walker().accepts(grammar, f"Hm.{between}final<|message|>Yes.")
    call = (
        'commentary to=functions.set <|constrain|>json<|message|>{"is_on": true, "where": {"x": 1}}'
    )
    assert walker().accepts(grammar, f"Hm.{between}{call}<|call|>")
    assert walker().accepts(grammar, f"Hm.{between}{call}")
    wrong = call.replace("set", "get")
    assert not walker().accepts(grammar, f"Hm.{between}{wrong}")


@pytest.mark.parametrize(
    ("name", "is_thinking", "before", "after"),
    [
        ("harmony", False, f"{THOUGHT}<|channel|>final<|message|>", ""),
        ("harmony", False, "<|channel|>final<|message|>", ""),
        ("harmony", True, "Hm.<|end|><|start|>assistant<|channel|>final<|message|>", ""),
        ("solar_open", False, "<|think|>Hm.<|end|><|begin|>assistant<|content|>", "<|end|>"),
        ("solar_open", False, "<|content|>", ""),
        (
            "kimi_k3",
            True,
            "Hm.<|close|>think<|sep|><|open|>response<|sep|>",
            "<|close|>response<|sep|><|close|>message<|sep|>",
        ),
        ("kimi_k3", False, "", "<|close|>response<|sep|>"),
    ],
)
def test_json_may_stand_behind_thoughts(
    name: str, before: str, after: str, *, is_thinking: bool
) -> None:
    """JSON may stand behind thoughts, beside calls and alone; a text for the user, such as a
    preamble, would be no JSON.
    """
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}})
    alone = grammar_of(name).no_calls(schema, is_thinking=is_thinking)
    tools = callable_tools(("set",))
    beside = grammar_of(name).optional(tools, schema, is_thinking=is_thinking)
    preamble = {
        "harmony": "<|channel|>commentary<|message|>So.<|end|><|start|>assistant",
        "solar_open": "<|content|>So.<|end|><|begin|>assistant",
    }
    for grammar in (alone, beside):
        assert walker().accepts(grammar, f'{before}{{"a": 1}}{after}')
        assert not walker().accepts(grammar, f'{before}{{"a": "b"}}{after}')
        assert not walker().accepts(grammar, f"{before}Yes.{after}")
        if name in preamble and not is_thinking:
            said = f'{preamble[name]}{before}{{"a": 1}}{after}'
            assert not walker().accepts(grammar, said)
    call = {
        "harmony": '<|channel|>commentary to=functions.set <|constrain|>json<|message|>{"is_on": '
        'true, "where": {"x": 1}}<|call|>',
        "solar_open": "<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>set<|tool_call:args|>"
        '{"is_on": true, "where": {"x": 1}}<|tool_call:end|><|calls|>',
        "kimi_k3": '<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="set" index="1"'
        '<|sep|><|open|>argument key="is_on" type="boolean"<|sep|>true<|close|>argument<|sep|>'
        '<|open|>argument key="where" type="object"<|sep|>{"x": 1}<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>",
    }[name]
    to_call = before.removesuffix("<|channel|>final<|message|>").removesuffix("<|content|>")
    assert walker().accepts(beside, to_call + call)
    assert not walker().accepts(alone, to_call + call)


def test_without_tokens_for_the_tags_there_is_no_grammar() -> None:
    """Tags of several tokens could not be told from text."""
    for name in TEMPLATES:
        form = form_of(name)
        syntax = call_syntax(form.tools, TEMPLATES[name], lambda _: None)
        assert (syntax is None) == (name != "llama3_json")


def test_what_plain_values_cannot_hold_is_named() -> None:
    """The length of a text that has a format or a pattern, and alternatives without any."""
    grammar = grammar_of("qwen3_coder")
    text = {"type": "string"}
    schema = {
        "properties": {
            "a/b": {**text, "format": "date", "maxLength": 5},
            "c": {**text, "pattern": "^a+$", "minLength": 5},
            "d": {**text, "pattern": "^a+$"},
            "n": {"type": "integer", "minimum": 3},
        }
    }
    assert [tuple(one) for one in grammar.limits(json.dumps(schema))] == [
        ("/properties/a~1b/maxLength", "maxLength"),
        ("/properties/c/minLength", "minLength"),
    ]
    assert [one.keyword for one in grammar.limits('{"anyOf": []}')] == ["anyOf"]
    assert grammar_of("hermes").limits(json.dumps(schema)) == ()


@pytest.mark.parametrize("name", ["qwen3_coder", "qwen3_coder seed"])
def test_plain_values_have_their_pattern_and_length(name: str) -> None:
    """A text is bounded, an optional parameter may be left out, its order is the schema's."""
    schema = {
        "type": "object",
        "properties": {
            "code": {"type": "string", "pattern": "^[a-z/]{2,3}-[0-9]+$"},
            "word": {"type": "string", "minLength": 2, "maxLength": 4},
        },
        "required": ["code"],
    }
    tool = CallableTool("keep", schema_source(schema, "f", is_strict=True).text)
    grammar = grammar_of(name).optional([tool], None)
    outer = "seed:tool_call" if name.endswith("seed") else "tool_call"
    gap = "" if name.endswith("seed") else "\n"

    def call(**values: str) -> str:
        parts = [f"<parameter={key}>{gap}{one}{gap}</parameter>\n" for key, one in values.items()]
        return f"<{outer}>\n<function=keep>\n{''.join(parts)}</function>\n</{outer}>"

    def accepts(**values: str) -> bool:
        return walker().accepts(grammar, f"So:\n{call(**values)}")

    assert accepts(code="a/-12")
    assert accepts(code="ab-1", word="a\nbc")
    assert not accepts(code="AB-1")
    assert not accepts(code="ab-1", word="a")
    assert not accepts(code="ab-1", word="abcde")
    assert not accepts(word="abc")
    assert not accepts()


@pytest.mark.parametrize("name", ["qwen3_coder", "qwen3_coder seed", "minicpm5"])
def test_plain_values_end_where_they_are_read_to_end(name: str) -> None:
    """A pattern does not swallow the end, and a length does not skip one."""
    gap = "\n" if name == "qwen3_coder" else ""
    outer = "seed:tool_call" if name.endswith("seed") else "tool_call"

    def call(value: str) -> str:
        if name == "minicpm5":
            return f'<function name="keep"><param name="a">{value}</param></function>'
        inner = f"<parameter=a>{gap}{value}{gap}</parameter>\n"
        return f"<{outer}>\n<function=keep>\n{inner}</function>\n</{outer}>"

    def accepts(value: str, **schema: Any) -> bool:
        tool = CallableTool("keep", json.dumps({"properties": {"a": schema}, "required": ["a"]}))
        grammar = grammar_of(name).optional([tool], None)
        return walker(name).accepts(grammar, call(value))

    text = {"type": "string"}
    assert accepts("abc", **text, pattern="^[^0-9]+$")
    assert not accepts("abc1", **text, pattern="^[^0-9]+$")
    inner = f"ab{gap}</parameter>\n<parameter=a>{gap}more"
    inner = 'ab</param><param name="a">more' if name == "minicpm5" else inner
    assert not accepts(inner, **text, minLength=12)
    assert not accepts(inner, **text, pattern="^[^0-9]+$")
    assert accepts("ab or more", **text, minLength=8)


NOT_JSON: Final = (
    "qwen3_coder",
    "qwen3_coder seed",
    "glm",
    "gemma4",
    "function_gemma",
    "lfm2",
    "hy3",
    "kimi_k3",
    "minicpm5",
)
"""Formats whose arguments are no JSON: their grammars follow a schema by rules of their own."""

COLOUR: Final = {"type": "string", "enum": ["red", "blue"]}
PARTS: Final[dict[str, dict[str, Any]]] = {
    "references": {"colour": {"$ref": "#/$defs/colour"}, "fill": {"$ref": "#/$defs/maybe"}},
    "nothing": {
        "text": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
        "count": {"anyOf": [{"type": "integer", "minimum": 5}, {"type": "null"}]},
    },
    "values": {"one": {"enum": [1, 2]}, "two": {"const": 5}, "any": {"enum": [1, "two", None]}},
    "joined": {
        "count": {"allOf": [{"type": "integer", "minimum": 2}, {"maximum": 5}]},
        "place": {
            "allOf": [
                {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
                {"type": "object", "properties": {"y": {"type": "boolean"}}, "required": ["y"]},
            ]
        },
    },
    "circles": {"tree": {"$ref": "#/$defs/tree"}},
    "lists": {
        "pair": {
            "type": "array",
            "prefixItems": [{"type": "integer"}, {"type": "boolean"}],
            "minItems": 1,
            "maxItems": 3,
        },
        "names": {"type": "array", "items": COLOUR, "minItems": 2, "maxItems": 2},
        "none": {"type": "array", "maxItems": 0},
    },
    "names": {
        "map": {
            "type": "object",
            "patternProperties": {"^x_[a-z]{1,2}$": {"type": "null"}},
            "additionalProperties": False,
        },
        "odd": {
            "type": "object",
            "properties": {"a b": {"type": "null"}, 'q"u': COLOUR, "x, y:{": COLOUR},
            "required": ["a b", 'q"u', "x, y:{"],
        },
    },
}
"""Properties of schemas as pydantic and zod make them, all required."""


def schema_with(properties: dict[str, Any]) -> dict[str, Any]:
    tree = {
        "type": "object",
        "properties": {
            "leaf": {"type": "boolean"},
            "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]},
        },
        "required": ["leaf", "next"],
    }
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "$defs": {
            "colour": COLOUR,
            "maybe": {"anyOf": [{"$ref": "#/$defs/colour"}, {"type": "null"}]},
            "tree": tree,
        },
    }


def count_valid(name: str, schema: dict[str, Any], num_walks: int) -> int:
    """How many walks through the grammar of a strict tool ended, all of them in valid calls."""
    source = schema_source(schema, "f", is_strict=True)
    form, grammar = form_of(name), grammar_of(name)
    assert form.tools is not None
    opening = forced_opening(form.tools.name, ("keep",), TEMPLATES[name])
    assert opening is not None
    lark = grammar.forced([CallableTool("keep", source.text)], opening.text)
    limits = [LeftOut(*one, "") for one in grammar.limits(source.text)]
    tools = ({"type": "function", "function": {"name": "keep", "parameters": schema}},)
    num_ended = 0
    for seed in range(num_walks):
        text = walker(name).walk_lark(lark, random.Random(seed), end_of_text=_end(name))
        if text is None:
            continue
        num_ended += 1
        calls, said = calls_in(name, opening.text + text, tools)
        assert calls, text
        assert not said.strip(), text
        for _, arguments in calls:
            check_valid(json.dumps(arguments), schema, [*source.left_out, *limits])
    return num_ended


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", NOT_JSON)
def test_parts_of_schemas_are_followed_where_arguments_are_no_json(name: str, part: str) -> None:
    """References, alternatives, lists and odd names: nothing is left out."""
    schema = schema_with(PARTS[part])
    assert not grammar_of(name).limits(schema_source(schema, "f", is_strict=True).text)
    assert count_valid(name, schema, 6) >= 2


@pytest.mark.parametrize("name", NOT_JSON)
def test_alternatives_around_all_arguments_are_followed(name: str) -> None:
    """One form of the arguments or the other."""
    forms = [{"a": {"type": "integer"}}, {"b": {"type": "boolean"}, "c": COLOUR}]
    schema = {"anyOf": [{"type": "object", **_closed(one)} for one in forms]}
    assert not grammar_of(name).limits(schema_source(schema, "f", is_strict=True).text)
    assert count_valid(name, schema, 8) >= 4


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


@pytest.mark.parametrize("name", NOT_JSON)
def test_random_schemas_are_followed_where_arguments_are_no_json(name: str) -> None:
    """The schemas nest objects, arrays, unions and bounds deeper than those of real tools."""
    num_schemas = num_ended = 0
    for seed in range(40):
        schema = random_schema(random.Random(seed))
        text = schema_source(schema, "f", is_strict=True).text
        if any(limit.keyword in schema["properties"] for limit in grammar_of(name).limits(text)):
            continue  # LFM2 has no way to write some names
        num_schemas += 1
        num_ended += count_valid(name, schema, 2)
        if num_schemas == 10:
            break
    assert num_schemas == 10
    assert num_ended >= num_schemas


def test_names_that_lfm2_cannot_write_are_named() -> None:
    """A parameter is a name of Python there; one that need not be given is not given."""
    schema = schema_with({"a b": {"type": "null"}, "c": {"type": "null"}})
    grammar = grammar_of("lfm2")
    assert grammar.limits(schema_source(schema, "f", is_strict=True).text) == (
        ("/properties/a b", "a b"),
    )
    schema["required"] = ["c"]
    assert not grammar.limits(schema_source(schema, "f", is_strict=True).text)
    assert count_valid("lfm2", schema, 4) >= 2
