"""Conversations of agents before templates that refuse them."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.api.chat_parser import parse_chat_request
from gateway.api.errors import ApiError
from gateway.prompt.chat_template import ChatTemplate
from gateway.prompt.control_tokens import ControlTokens

NOW = datetime(2026, 1, 2, tzinfo=UTC)
STRICT = """\
{%- set seen = namespace(user=false) %}
{%- for m in messages %}
    {%- if m.role == 'user' %}{% set seen.user = true %}{% endif %}
{%- endfor %}
{%- if not seen.user %}{{ raise_exception('No question.') }}{% endif %}
{%- for m in messages %}
    {%- if m.role == 'system' and not loop.first %}
        {{- raise_exception('The system turn comes first.') }}
    {%- endif %}
    {{- m.role[0] + ':' + m.content }}
    {%- for call in m.tool_calls or [] %}
        {%- for name, value in call.function.arguments.items() %}
            {{- '(' + name + '=' + value + ')' }}
        {%- endfor %}
    {%- endfor %}
    {{- '|' }}
{%- endfor %}
"""
"""What the templates of Qwen 3.5 and later refuse, in few lines."""


def turn(shown: str, call_id: str) -> dict[str, Any]:
    """A message from a role's first letter, a colon and a text; arguments of a call in brackets."""
    letter, _, text = shown.partition(":")
    role = {"s": "system", "d": "developer", "u": "user", "a": "assistant", "t": "tool"}[letter]
    text, _, arguments = text.partition("(")
    call = {"id": call_id, "function": {"name": "f", "arguments": arguments[:-1]}}
    answered = {"tool_call_id": call_id} if letter == "t" else {}
    made = {"tool_calls": [call]} if arguments else {}
    return {"role": role, "content": text, **answered, **made}


def rendered(shown: str, source: str = STRICT, call_id: str = "call_0123456789") -> str:
    template = ChatTemplate(source, ControlTokens({}))
    body = {"model": "m", "messages": [turn(one, call_id) for one in shown.split("|")]}
    request = parse_chat_request(json.dumps(body).encode())
    return "".join(template.render(request.messages, (), NOW)).rstrip("|")


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ("s:A|u:B|a:C|u:D", "s:A|u:B|a:C|u:D"),
        ("s:A|d:B|u:C", "s:A\n\nB|u:C"),
        ("s:A|u:B|s:C|a:D|d:E|u:F", "s:A|u:B|u:C|a:D|u:E|u:F"),
        ("u:A|a:B|s:C", "u:A|a:B|u:C"),
        ("s:A|a:B|t:C", "s:A|u:|a:B|t:C"),
        ('u:A|a:B({"x": "1"})|t:C', "u:A|a:B(x=1)|t:C"),
        ('u:A|a:B({"x": "1)|t:C', 'u:A|a:B(arguments={"x": "1)|t:C'),
        ("u:A|a:B( )|t:C", "u:A|a:B|t:C"),
    ],
)
def test_what_a_strict_template_refuses_is_settled(given: str, seen: str) -> None:
    """No text is lost or moved, and what it takes as it is stays so."""
    assert rendered(given) == seen


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ("s:A|u:B|s:C|a:D|s:E|u:F", "s:A|u:B\n\nC|a:D|u:E\n\nF"),
        ("s:A|a:B|u:C|u:D", "s:A|u:|a:B|u:C\n\nD"),
    ],
)
def test_neighbours_become_one_turn_where_roles_alternate(given: str, seen: str) -> None:
    """The user begins, too."""
    source = """\
{%- if messages[0].role == 'system' %}{{- 's:' + messages[0].content + '|' }}{% endif %}
{%- for m in (messages[1:] if messages[0].role == 'system' else messages) %}
    {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('The roles alternate.') }}
    {%- endif %}
    {{- m.role[0] + ':' + m.content + '|' }}
{%- endfor %}
"""
    assert rendered(given, source) == seen


def test_ids_of_another_server_are_cut_where_ids_are_short() -> None:
    """A call and its result keep one id, and ids of nine letters and digits stay."""
    source = """\
{%- for m in messages if m.tool_call_id or m.tool_calls %}
    {%- for id in ([m.tool_call_id] if m.tool_call_id else m.tool_calls | map(attribute='id')) %}
        {%- if id | length != 9 %}{{ raise_exception('Ids have 9 letters.') }}{% endif %}
        {{- id + '|' }}
    {%- endfor %}
{%- endfor %}
"""
    given = "u:A|a:B({})|t:C"
    ids = rendered(given, source).split("|")
    assert len(ids) == 2
    assert len(set(ids)) == 1
    two_turns = "u:A|a:B({})|t:C|u:D|u:E"
    assert rendered(two_turns, source, "abcDEF123").split("|") == ["abcDEF123"] * 2


def test_the_first_refusal_is_the_one_that_is_shown() -> None:
    """The other forms were not the client's."""
    with pytest.raises(ApiError, match="The system turn comes first") as caught:
        rendered("u:A|s:B", STRICT + "{{ raise_exception('Never.') }}")
    assert caught.value.code == "template_refused"
