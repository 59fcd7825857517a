"""Conversations of agents before templates that cannot show all of them, each in the few lines of a
published template that matter.
"""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.api import ToolCallArguments
from gateway.api.chat_parser import parse_chat_request
from gateway.api.errors import ApiError
from gateway.output.tools import TOOL_FORMATS, ToolParser
from gateway.prompt.chat_template import ChatTemplate
from gateway.prompt.control_tokens import ControlTokens
from gateway.prompt.written_calls import call_writer

NOW = datetime(2026, 1, 2, tzinfo=UTC)

MISTRAL = """\
{%- if messages[0].role == 'system' %}
    {{- 's:' + messages[0].content + '|' }}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- set ns = namespace(index=0) %}
{%- for m in messages if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}
    {%- if (m.role == 'user') != (ns.index % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
{%- for m in messages %}
    {%- if m.role == 'assistant' and not m.content and not m.tool_calls %}
        {{- raise_exception('An answer has a text or calls.') }}
    {%- endif %}
    {{- m.role[0] + ':' + m.content }}
    {%- for c in m.tool_calls or [] %}{{ '(' + (c.function.arguments | tojson) + ')' }}{% endfor %}
    {{- '|' }}
{%- endfor %}
"""
"""Mistral's: only turns without calls and results alternate."""

HARMONY = """\
{%- set ns = namespace(called=none) %}
{%- for m in messages %}
    {%- if m.tool_calls %}
        {%- if m.content and m.thinking %}{{ raise_exception('Both content and thinking.') }}
        {%- endif %}
        {%- set ns.called = m.tool_calls[0].function %}
        {{- 'a:' + (m.content or m.thinking or '') + '(' + (ns.called.arguments | tojson) + ')|' }}
    {%- elif m.role == 'tool' %}
        {%- if not ns.called %}{{ raise_exception('No call before this result.') }}{% endif %}
        {{- 't:' + m.content + '|' }}
    {%- else %}
        {%- set ns.called = none %}
        {{- m.role[0] + ':' + m.content + '|' }}
    {%- endif %}
{%- endfor %}
"""
"""gpt-oss: shows the first call of a turn; MiniMax, Apertus and Kimi-K3 refuse such results too."""

GEMMA_2 = """\
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for m in messages %}
    {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}
    {%- endif %}
    {{- m.role[0] + ':' + m.content + '|' }}
{%- endfor %}
"""

LLAMA_3_1 = """\
{%- for m in messages %}
    {{- m.role[0] + ':' + m.content }}
    {%- if m.tool_calls %}
        {%- if m.tool_calls | length != 1 %}{{ raise_exception('Single calls only!') }}{% endif %}
        {{- '(' + (m.tool_calls[0].function.arguments | tojson) + ')' }}
    {%- endif %}
    {{- '|' }}
{%- endfor %}
"""

FUNCTIONARY = """\
{%- for m in messages %}
    {{- m.role[0] + ':' + m.content }}
    {%- for c in m.tool_calls or [] %}{{ '(' + c.function.arguments + ')' }}{% endfor %}
    {{- '|' }}
{%- endfor %}
"""
"""Functionary 3.2 reads arguments as text."""

GEMMA_4 = """\
{%- for m in messages if m.role != 'tool' %}
    {{- m.role[0] + ':' + m.content }}
    {%- if m.tool_calls %}
        {%- for c in m.tool_calls %}{{ '(' + (c.function.arguments | tojson) + ')' }}{% endfor %}
        {%- for r in messages if r.role == 'tool' and r.tool_call_id == m.tool_calls[0].id %}
            {{- '=' + r.content }}
        {%- endfor %}
    {%- endif %}
    {{- '|' }}
{%- endfor %}
"""
"""Shows results where it finds their calls, and others nowhere."""


NO_CALLS = """\
{%- for m in messages %}{{ m.role[0] + ':' + m.content + '|' }}{% endfor %}
{%- if tools %}{# <|tool_call_start|> #}{% endif %}
"""
"""LFM2: the template writes results, and of calls nothing."""

NO_RESULTS = """\
{%- for m in messages if m.role in ['system', 'user', 'assistant'] %}
    {{- m.role[0] + ':' + m.content + '|' }}
{%- endfor %}
"""
"""Phi-3.5: neither calls nor results."""

CONTENT_IS_NONE = """\
{%- for m in messages %}
    {%- if m.role == 'assistant' and m.content is none %}
        {{- 'a:' }}{% for c in m.tool_calls %}{{ '(' + c.function.arguments + ')' }}{% endfor %}
    {%- else %}{{ m.role[0] + ':' + m.content }}
    {%- endif %}
    {{- '|' }}
{%- endfor %}
"""
"""DeepSeek R1's distilled Llama: calls where there is no text at all, arguments as text."""

CALLS_ALONE = """\
{%- for m in messages %}
    {{- m.role[0] + ':' }}
    {%- if m.tool_calls %}
        {%- for c in m.tool_calls %}{{ '(' + (c.function.arguments | tojson) + ')' }}{% endfor %}
    {%- else %}{{ m.content }}
    {%- endif %}
    {{- '|' }}
{%- endfor %}
"""
"""Llama 3, Hermes 3, Command R, Solar: a turn that calls has no text."""

LATE_SYSTEM = """\
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content %}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for m in messages %}
    {{- m.role[0] + ':' }}
    {%- if m.role == 'user' and loop.last and system is defined %}{{ system + '\\n\\n' }}{% endif %}
    {{- m.content }}
    {%- for c in m.tool_calls or [] %}{{ '(' + (c.function.arguments | tojson) + ')' }}{% endfor %}
    {{- '|' }}
{%- endfor %}
"""
"""Mistral Nemo: the system text stands in the last turn, if that is the user's."""

FIRST_IS_USER = """\
{%- if messages[0].role == 'system' %}
    {{- 's:' + messages[0].content + '|' }}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- if tools %}
    {{- 'u:' + messages[0].content + '|' }}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for m in messages %}
    {{- m.role[0] + ':' + m.content }}
    {%- for c in m.tool_calls or [] %}{{ '(' + (c.function.arguments | tojson) + ')' }}{% endfor %}
    {{- '|' }}
{%- endfor %}
"""
"""Llama 3: the first turn stands behind the tools, as the user's."""


HERMES_1 = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'


def turns_of(shown: str) -> list[dict[str, Any]]:
    """Turns between bars: a role's first letter, the ids of calls or of a result's call, a colon, a
    text; a `#` before thoughts.
    """
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    turns = []
    for one in shown.split("|"):
        head, _, text = one.partition(":")
        text, _, thoughts = text.partition("#")
        turn: dict[str, Any] = {"role": roles[head[0]], "content": text}
        if thoughts:
            turn["reasoning_content"] = thoughts
        if head[0] == "t":
            turn["tool_call_id"] = f"call_{head[1:]}"
        elif head[1:]:
            turn["tool_calls"] = [
                {"id": f"call_{i}", "function": {"name": "f", "arguments": f'{{"x": {i}}}'}}
                for i in head[1:]
            ]
        turns.append(turn)
    return turns


def rendered(shown: str, source: str, tools: list[Any] | None = None) -> str:
    body = {"model": "m", "messages": turns_of(shown)} | ({"tools": tools} if tools else {})
    request = parse_chat_request(json.dumps(body).encode())
    template = ChatTemplate(source, ControlTokens({}))
    return "".join(template.render(request.messages, request.tools, NOW)).rstrip("|")


@pytest.mark.parametrize(
    ("source", "given", "seen"),
    [
        # A user who interrupts a call, or an agent behind its result.
        (MISTRAL, "s:S|u:A|a1:|u:B", 's:S|u:A|a:({"x": 1})|t:|a: |u:B'),
        (MISTRAL, "u:A|a1:|t1:R|u:B", 'u:A|a:({"x": 1})|t:R|a: |u:B'),
        (MISTRAL, "u:A|a12:|t1:R|u:B", 'u:A|a:({"x": 1})({"x": 2})|t:R|t:|a: |u:B'),
        (MISTRAL, "u:A|a12:|t2:R|u:B|t1:Q", 'u:A|a:({"x": 1})({"x": 2})|t:Q|t:R|a: |u:B'),
        (MISTRAL, "u:A|a:B|a:C|u:D", "u:A|a:B\n\nC|u:D"),
        (MISTRAL, "u:A|a:|u:B", "u:A\n\nB"),
        (MISTRAL, "u:A|a:#T|u:B", "u:A|a: |u:B"),
        (MISTRAL, "u:A|t1:R|u:B", "u:A\n\nR\n\nB"),
        # A result whose call is gone.
        (HARMONY, "u:A|t1:R|a:B|u:C", "u:A|u:R|a:B|u:C"),
        (HARMONY, "s:S|t1:R|u:C", "s:S|u:R|u:C"),
        (HARMONY, "u:A|a:B|t1:R", "u:A|a:B|u:R"),
        (HARMONY, "u:A|a1:|t1:R|u:B|t1:Q", 'u:A|a:({"x": 1})|t:R|u:B|u:Q'),
        (HARMONY, "u:A|a1:|u:B|a1:|t1:R|t9:Q", 'u:A|a:({"x": 1})|u:B|a:({"x": 1})|t:R|t:Q'),
        (HARMONY, "u:A|a1:|u:B|t1:R", 'u:A|a:({"x": 1})|t:R|u:B'),
        # Calls of one turn, of which the template shows one.
        (HARMONY, "u:A|a12:T|t1:R|t2:Q|u:B", 'u:A|a:T({"x": 1})|t:R|a:({"x": 2})|t:Q|u:B'),
        (HARMONY, "u:A|a1:#T|t1:R", 'u:A|a:T({"x": 1})|t:R'),
        (HARMONY, "u:A|a1:B#T|t1:R", 'u:A|a:T\n\nB({"x": 1})|t:R'),
        (HARMONY, "u:A|a12:#T|t2:R|t1:Q", 'u:A|a:T({"x": 1})|t:Q|a:({"x": 2})|t:R'),
        (LLAMA_3_1, "u:A|a123:|t1:R|t2:Q|t3:P|u:B",
         'u:A|a:({"x": 1})|t:R|a:({"x": 2})|t:Q|a:({"x": 3})|t:P|u:B'),
        (LLAMA_3_1, "u:A|a12:|t2:R|u:B", 'u:A|a:({"x": 1})|a:({"x": 2})|t:R|u:B'),
        (LLAMA_3_1, "s:S|u:A|a1:|t1:R", 's:S|u:A|a:({"x": 1})|t:R'),
        # No system turn.
        (GEMMA_2, "s:S|u:A|a:B|u:C", "u:S\n\nA|a:B|u:C"),
        (GEMMA_2, "s:S|s:T|u:A", "u:S\n\nT\n\nA"),
        (GEMMA_2, "s:S|a:B|u:C", "u:S|a:B|u:C"),
        (GEMMA_2, "s:S", "u:S"),
        (GEMMA_2, "u:A|s:S|a:B|s:T|u:C", "u:A\n\nS|a:B|u:T\n\nC"),
        (FUNCTIONARY, "u:A|a12:|t1:R|t2:Q", 'u:A|a:({"x": 1})({"x": 2})|t:R|t:Q'),
        # What would be left out without a word.
        (GEMMA_4, "u:A|t7:R|u:B", "u:A|u:R|u:B"),
        (GEMMA_4, "u:A|a1:|t1:R|u:B", 'u:A|a:({"x": 1})=R|u:B'),
        (GEMMA_4, "u:A|a1:|u:B", 'u:A|a:({"x": 1})|u:B'),
        (GEMMA_2, "u:A|a1:|u:B", f"u:A|a:{HERMES_1}|u:B"),
        (NO_CALLS, "u:A|a12:B|t2:R|t1:Q|u:C",
         "u:A|a:B\n<|tool_call_start|>[f(x=1), f(x=2)]<|tool_call_end|>|t:Q|t:R|u:C"),
        (NO_RESULTS, "u:A|a1:B|t1:R|u:C",
         f"u:A|a:B\n{HERMES_1}|u:<tool_response>\nR\n</tool_response>|u:C"),
        (CONTENT_IS_NONE, "u:A|a1:|t1:R|a:B", 'u:A|a:({"x": 1})|t:R|a:B'),
        (CONTENT_IS_NONE, "u:A|a1:T|t1:R|a:B", 'u:A|a:T|a:({"x": 1})|t:R|a:B'),
        (CALLS_ALONE, "u:A|a12:T|t1:R|t2:Q|a:B|u:C",
         'u:A|a:T|a:({"x": 1})({"x": 2})|t:R|t:Q|a:B|u:C'),
        (LATE_SYSTEM, "s:S|u:A", "u:S\n\nA"),
        (LATE_SYSTEM, "s:S|u:A|a1:|t1:R", 'u:S\n\nA|a:({"x": 1})|t:R'),
        (LATE_SYSTEM, "s:S|u:A|a:B|u:C|a1:|t1:R", 'u:A|a:B|u:S\n\nC|a:({"x": 1})|t:R'),
    ],
)  # fmt: skip
def test_a_conversation_has_the_form_that_its_template_shows(
    source: str, given: str, seen: str
) -> None:
    """No text, call or result is lost."""
    assert rendered(given, source) == seen


def test_a_result_behind_a_reused_id_is_that_of_the_last_call() -> None:
    """Servers that number the calls of an answer use every id in every turn."""
    given = "u:A|a1:|t1:R|u:B|a1:|t1:Q|u:C"
    seen = 'u:A|a:({"x": 1})|t:R|a: |u:B|a:({"x": 1})|t:Q|a: |u:C'
    assert rendered(given, MISTRAL) == seen


def test_the_beginning_of_a_prompt_stays_when_a_call_gets_its_result() -> None:
    """Otherwise nothing behind it would be cached."""
    first = rendered("u:A|a1:|u:B", MISTRAL)
    assert rendered("u:A|a1:|u:B|a:C|u:D", MISTRAL).startswith(first)


@pytest.mark.parametrize("source", [MISTRAL, HARMONY, LLAMA_3_1, FUNCTIONARY, GEMMA_4])
def test_what_a_template_takes_stays_as_it_is(source: str) -> None:
    """An ordinary conversation has the prompt that Jinja alone would write."""
    plain = "s:S|u:A|a1:|t1:R|a:B|u:C"
    shown = rendered(plain, source)
    if source == GEMMA_4:
        assert shown == 's:S|u:A|a:({"x": 1})=R|a:B|u:C'
    else:
        assert shown == 's:S|u:A|a:({"x": 1})|t:R|a:B|u:C'


NO_DESCRIPTION = "{% for t in tools %}{{ '<' + t.function.description + '>' }}{% endfor %}"
NO_SCHEMA = "{% for t in tools %}{% for k, v in t.function.parameters.properties.items() %}\
{{ k + ':' + v.type + ':' + v.description + ';' }}{% endfor %}.{% endfor %}"
AS_JSON = "{% for t in tools %}{{ t.function.parameters | tojson }}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "function", "seen"),
    [
        (NO_DESCRIPTION, {}, "<>"),
        (NO_DESCRIPTION, {"description": None}, "<>"),
        (NO_DESCRIPTION, {"description": "d"}, "<d>"),
        (NO_SCHEMA, {}, "."),
        (NO_SCHEMA, {"parameters": None}, "."),
        (NO_SCHEMA, {"parameters": {}}, "."),
        (NO_SCHEMA, {"parameters": {"type": "object"}}, "."),
        (NO_SCHEMA, {"parameters": {"properties": {"x": {"type": "integer"}}}}, "x:integer:;."),
        (NO_SCHEMA, {"parameters": {"properties": {"x": {"anyOf": [{"type": "a"}]}}}}, "x:a:;."),
        (NO_SCHEMA, {"parameters": {"properties": {"x": True}}}, "x:any:;."),
        (AS_JSON, {}, '{"type": "object", "properties": {}, "required": []}'),
        (AS_JSON, {"parameters": {"type": "object"}}, '{"type": "object"}'),
    ],
)
def test_a_tool_without_fields_is_filled_where_the_template_reads_them(
    source: str, function: dict[str, Any], seen: str
) -> None:
    """OpenAI's API needs the name alone."""
    template = "{% if tools %}" + source + "{% endif %}"
    tools = [{"type": "function", "function": {"name": "f", **function}}]
    assert rendered("u:A", template, tools) == seen


TYPES = """\
{%- macro python(schema) %}
    {%- if {'string': 's', 'integer': 'i', 'object': 'o'}[schema.type] is defined %}
        {{- schema.type[0] }}
        {%- if schema.type == 'object' %}{{ '<' + python(schema.additionalProperties) + '>' }}
        {%- endif %}
    {%- elif schema.type == 'array' %}{{ '[' + python(schema['items']) + ']' }}
    {%- else %}
        {%- for kind in schema.type %}{{ python({'type': kind}) + '|' }}{% endfor %}
    {%- endif %}
{%- endmacro %}
{%- for t in tools %}
    {%- for k, v in t.function.parameters.properties.items() %}{{ python(v) + ';' }}{% endfor %}
{%- endfor %}
"""
"""Hermes 2 and 3, Command R+: Python's types. A letter is a list of letters, without an end."""


@pytest.mark.parametrize(
    ("schema", "seen"),
    [
        ({"type": "integer"}, "i;"),
        ({"type": ["integer", "string"]}, "i|s|;"),
        ({"type": ["null", "integer"]}, "i;"),
        ({"type": "null"}, "s;"),
        ({"type": "any"}, "s;"),
        ({}, ";"),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, ";"),
        ({"type": "array", "items": {"type": ["integer", "null"]}}, "[i];"),
        ({"type": "object", "additionalProperties": {"type": ["null", "integer"]}}, "o<i>;"),
    ],
)
def test_types_without_null_are_what_a_template_can_turn_into_pythons(
    schema: dict[str, Any], seen: str
) -> None:
    """Optional parameters of MCP servers are `["string", "null"]`; each request was a 400."""
    function = {"name": "f", "parameters": {"type": "object", "properties": {"x": schema}}}
    source = "{% if tools %}" + TYPES + "{% endif %}"
    assert rendered("u:A", source, [{"type": "function", "function": function}]) == seen


@pytest.mark.parametrize(
    ("schema", "seen"),
    [
        ({"$ref": "#/$defs/N"}, "i;s;"),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, "i;s;"),
        ({"properties": {"y": {"type": "null"}}}, "o<>;s;"),
        ({"type": "object", "additionalProperties": False}, "o<>;s;"),
        ({"enum": ["a"]}, "s;s;"),
        ({"type": "array", "items": [{"type": "integer"}, {"type": "null"}]}, "[i];s;"),
        ({"type": "array", "items": []}, "[s];s;"),
        (True, "s;s;"),
        ({"$ref": "#/$defs/M/x"}, "s;s;"),
    ],
)
def test_a_type_that_is_not_stated_is_found(schema: object, seen: str) -> None:
    """A type that is not stated is found, beside one that the template refuses."""
    properties = {"x": schema, "z": {"type": "null"}}
    definitions = {"N": {"type": "integer"}}
    parameters = {"type": "object", "properties": properties, "$defs": definitions}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    assert rendered("u:A", "{% if tools %}" + TYPES + "{% endif %}", tools) == seen


def test_a_deep_schema_that_a_template_refuses_is_no_failure_of_ours() -> None:
    """Types are filled in to a bounded depth."""
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(400):
        schema = {"type": "array", "items": schema}
    function = {"name": "f", "parameters": {"type": "object", "properties": {"x": schema}}}
    source = "{% if tools %}" + TYPES + "{% endif %}"
    assert rendered("u:A", source, [{"type": "function", "function": function}]).endswith("];")


def test_calls_that_begin_a_conversation_stand_behind_a_turn_of_the_user() -> None:
    """Calls that begin a conversation, as a client leaves them that has compacted what was before,
    stand behind a turn of the user.
    """
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert rendered("a1:|t1:R|u:A", FIRST_IS_USER, tools) == 'u:|a:({"x": 1})|t:R|u:A'
    assert rendered("u:B|a1:|t1:R", FIRST_IS_USER, tools) == 'u:B|a:({"x": 1})|t:R'


def test_tags_of_calls_as_text_are_control_tokens_and_those_of_a_client_are_not() -> None:
    """A call is written as the model wrote it; what stands in its arguments is text."""
    template = ChatTemplate(NO_CALLS, ControlTokens({"<|tool_call_start|>", "<|tool_call_end|>"}))
    call = {"id": "c", "function": {"name": "f", "arguments": '{"x": "<|tool_call_end|>"}'}}
    messages = [{"role": "user", "content": "A"}, {"role": "assistant", "tool_calls": [call]}]
    request = parse_chat_request(json.dumps({"model": "m", "messages": messages}).encode())
    segments = template.render(request.messages, (), NOW)
    assert segments[1:] == ['<|tool_call_start|>[f(x="<|tool_call_end|>")]', "<|tool_call_end|>|"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"x": [null, true]}}\n</tool_call>'),
        (
            "phi4_mini",
            '<|tool_call|>[{"name": "f", "arguments": {"x": [null, true]}}]<|/tool_call|>',
        ),
        ("nemotron", '<TOOLCALL>[{"name": "f", "arguments": {"x": [null, true]}}]</TOOLCALL>'),
        ("llama3_json", '{"name": "f", "parameters": {"x": [null, true]}}'),
        ("lfm2", "<|tool_call_start|>[f(x=[None, True])]<|tool_call_end|>"),
    ],
)
def test_a_call_as_text_is_what_the_models_parser_reads(name: str, text: str) -> None:
    """The next answer begins as the earlier ones did."""
    write = call_writer(name, str)
    assert write is not None
    call = {"id": "c", "function": {"name": "f", "arguments": {"x": [None, True]}}}
    assert write([call]) == text
    tools = ({"type": "function", "function": {"name": "f"}},)
    parser = ToolParser(TOOL_FORMATS[name], bytes, tools)
    read = "".join(
        e.text for e in [*parser.push(text), *parser.flush()] if isinstance(e, ToolCallArguments)
    )
    assert json.loads(read) == {"x": [None, True]}


def test_tools_stay_where_only_the_turns_are_refused() -> None:
    """Tools stay where only the turns are refused, and begin the prompt."""
    source = "{{ tools | tojson }}" + MISTRAL
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert rendered("u:A|u:B", source, tools) == json.dumps(tools) + "u:A\n\nB"


def test_past_thoughts_have_every_name() -> None:
    """Past thoughts have every name, as transformers fills `thinking` and `reasoning_content` from
    each other.
    """
    source = "{% for m in messages %}{{ m.thinking }}/{{ m.reasoning_content }}/{{ m.reasoning }}|\
{% endfor %}"
    assert rendered("a:B#T", source) == "T/T/T"


def test_a_template_made_for_tools_gets_an_empty_list() -> None:
    """Published beside another one, it may be served alone."""
    assert rendered("u:A", "{% for t in tools %}t{% endfor %}{{ messages[0].content }}") == "A"


def test_a_template_may_change_lists_of_its_own() -> None:
    """Kimi-K2's keeps the ids of calls; a client's lists stay closed."""
    own = "{% set q = namespace(ids=[]) %}{% set _ = q.ids.append('x') %}{{ q.ids.pop() }}"
    assert rendered("u:A", own) == "x"
    with pytest.raises(ApiError, match="unsafe"):
        rendered("u:A", "{% set _ = messages.append('x') %}")


def test_json_of_a_filter_is_json_of_a_list() -> None:
    """`map` gives a generator."""
    assert rendered("u:A", "{{ messages | map(attribute='role') | tojson }}") == '["user"]'


@pytest.mark.parametrize(
    ("source", "remarks"),
    [
        ("{% if nothing == 1 %}{% endif %}{{ functions + 'x' }}", ["'functions' is undefined"]),
        (
            "{% for m in messages %}{{ m.content }}{% endfor %}",
            ["does not show the tools", "does not show calls of earlier turns: they are text"],
        ),
        (
            "{{ messages[0].content }}",
            ["does not show the tools", "calls of earlier turns, or their results"],
        ),
        (MISTRAL, ["does not show the tools"]),
        (MISTRAL + "{{ tools }}", []),
        (MISTRAL + "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}", []),
    ],
)
def test_a_template_says_what_it_cannot_show(source: str, remarks: list[str]) -> None:
    given = ChatTemplate(source, ControlTokens({})).remarks
    assert [remark in one for remark, one in zip(remarks, given, strict=True)] == [True] * len(
        given
    )


ONE_SYSTEM = """\
{%- if messages[0].role in ['system', 'developer'] %}
    {{- 's:' + messages[0].content + '|' }}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for m in messages if m.role in ['user', 'assistant', 'tool'] %}
    {{- m.role[0] + ':' + m.content }}
    {%- for c in m.tool_calls or [] %}{{ '(' + (c.function.arguments | tojson) + ')' }}{% endfor %}
    {{- '|' }}
{%- endfor %}
"""
"""As gpt-oss: what is neither the first turn nor a known role is left out without a word."""


@pytest.mark.parametrize(
    ("roles", "prompt"),
    [
        (("system", "user"), "s:0|u:1|"),
        (("system", "system", "user"), "s:0\n\n1|u:2|"),
        (("system", "developer", "user"), "s:0\n\n1|u:2|"),
        (("developer", "user"), "s:0|u:1|"),
        (("user", "assistant", "system", "user"), "u:0|a:1|u:2|u:3|"),
        (("system", "user", "system"), "s:0|u:1|u:2|"),
    ],
)
def test_a_later_system_turn_is_not_lost(roles: tuple[str, ...], prompt: str) -> None:
    """Agents add reminders in the middle of a conversation."""
    template = ChatTemplate(ONE_SYSTEM, ControlTokens(()))
    messages = [{"role": role, "content": str(at)} for at, role in enumerate(roles)]
    request = parse_chat_request(json.dumps({"model": "m", "messages": messages}).encode())
    assert request.messages is not None
    assert "".join(template.render(request.messages, (), NOW)) == prompt


ALL_SYSTEM_FIRST = """\
{%- for m in messages if m.role == 'system' %}
    {{- ('s:' if loop.first else '\\n\\n') + m.content }}
    {%- if loop.last %}{{ '|' }}{% endif %}
{%- endfor %}
{%- for m in messages if m.role != 'system' %}
    {{- m.role[0] + ':' + m.content }}
    {%- for c in m.tool_calls or [] %}{{ '(' + (c.function.arguments | tojson) + ')' }}{% endfor %}
    {{- '|' }}
{%- endfor %}
"""
"""DeepSeek V3.1 to V4, Hunyuan 3, Solar: all system turns are one, before everything else."""


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ("s:S|u:A", "s:S|u:A"),
        ("s:S|s:T|u:A", "s:S\n\nT|u:A"),
        ("s:S|u:A|a:B|s:T|u:C", "s:S|u:A|a:B|u:T|u:C"),
        ("s:S|u:A|a1:|t1:R|s:T", 's:S|u:A|a:({"x": 1})|t:R|u:T'),
        ("u:A|s:T", "u:A|u:T"),
    ],
)
def test_a_reminder_does_not_change_the_beginning_of_a_prompt(given: str, seen: str) -> None:
    """Before everything else it would make the cache of the whole conversation worthless."""
    assert rendered(given, ALL_SYSTEM_FIRST) == seen


NAMES_DEVELOPER = """\
{#- What a developer says stands in the developer instruction. -#}
{%- for m in messages if m.role in ['system', 'user', 'assistant'] %}
    {{- m.role[0] + ':' + m.content + '|' }}
{%- endfor %}
"""
"""Command R7B and A, DeepSeek V3.2: the word stands in the source, and no turn has the role."""

LAST_DEVELOPER = """\
{%- for m in messages if m.role != 'developer' or loop.last %}
    {{- m.role[0] + ':' + m.content + '|' }}
{%- endfor %}
"""


@pytest.mark.parametrize("source", [NAMES_DEVELOPER, LAST_DEVELOPER])
@pytest.mark.parametrize(
    ("roles", "prompt"),
    [
        (("developer", "user"), "s:0|u:1|"),
        (("system", "developer", "user"), "s:0|s:1|u:2|"),
        (("system", "user", "assistant", "developer", "user"), "s:0|u:1|a:2|s:3|u:4|"),
    ],
)
def test_a_developer_is_heard_where_the_template_only_names_one(
    source: str, roles: tuple[str, ...], prompt: str
) -> None:
    """codex and the clients of newer models have their instructions there."""
    template = ChatTemplate(source, ControlTokens(()))
    messages = [{"role": role, "content": str(at)} for at, role in enumerate(roles)]
    request = parse_chat_request(json.dumps({"model": "m", "messages": messages}).encode())
    assert "".join(template.render(request.messages, (), NOW)) == prompt
