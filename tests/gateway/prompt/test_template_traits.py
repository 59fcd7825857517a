"""Conversations of agents before templates that cannot show all of them, each in the few lines of a
published template that matter.
"""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.api.chat_parser import parse_chat_request
from gateway.api.errors import ApiError
from gateway.prompt.chat_template import ChatTemplate
from gateway.prompt.control_tokens import ControlTokens

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
)  # fmt: skip
def test_a_tool_without_fields_is_filled_where_the_template_reads_them(
    source: str, function: dict[str, Any], seen: str
) -> None:
    """OpenAI's API needs the name alone."""
    template = "{% if tools %}" + source + "{% endif %}"
    tools = [{"type": "function", "function": {"name": "f", **function}}]
    assert rendered("u:A", template, tools) == seen


def test_tools_stay_where_only_the_turns_are_refused() -> None:
    """They begin the prompt."""
    source = "{{ tools | tojson }}" + MISTRAL
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert rendered("u:A|u:B", source, tools) == json.dumps(tools) + "u:A\n\nB"


def test_past_thoughts_have_every_name() -> None:
    """As transformers fills `thinking` and `reasoning_content` from each other."""
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
    ("source", "remark"),
    [
        ("{% if nothing == 1 %}{% endif %}{{ functions + 'x' }}", "'functions' is undefined"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "does not show calls"),
        (MISTRAL, None),
    ],
)
def test_a_template_says_what_it_cannot_show(source: str, remark: str | None) -> None:
    remarks = ChatTemplate(source, ControlTokens({})).remarks
    assert [remark in one for one in remarks if remark] == [True] * bool(remark)


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
