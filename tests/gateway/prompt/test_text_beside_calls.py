"""What an assistant says beside its calls, in templates of Mistral that show only the calls."""

import json

import pytest

from gateway.api.chat_parser import parse_chat_request
from gateway.prompt.chat_template import ChatTemplate
from gateway.prompt.control_tokens import ControlTokens
from tests.gateway.prompt.test_template_traits import LATE_SYSTEM, NOW, rendered, turns_of

_ALTERNATING = """\
{%- set ns = namespace(index=0) %}
{%- for m in messages if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}
    {%- if (m.role == 'user') != (ns.index % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
"""
_TURNS = """\
{%- for m in messages %}
    {%- if m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}
    {%- elif m.tool_calls %}CALLS{{ '</s>' }}
    {%- elif m.role == 'tool' %}{{ '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}
    {%- else %}{{ m.content + '</s>' }}
    {%- endif %}
{%- endfor %}
"""
_NEMO = "{{ '[TOOL_CALLS][' }}{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}]"
_SMALL = (
    "{% for c in m.tool_calls %}{{ '[TOOL_CALLS]' + c.function.name + '[ARGS]' }}"
    "{{ c.function.arguments | tojson }}{% endfor %}"
)
NEMO = _ALTERNATING + _TURNS.replace("CALLS", _NEMO)
SMALL = _ALTERNATING + _TURNS.replace("CALLS", _SMALL)
RESULT = "[TOOL_RESULTS]R[/TOOL_RESULTS]"


@pytest.mark.parametrize(
    ("source", "given", "seen"),
    [
        (SMALL, "u:A|a1:T|t1:R", f'[INST]A[/INST]T[TOOL_CALLS]f[ARGS]{{"x": 1}}</s>{RESULT}'),
        (
            SMALL,
            "u:A|a12:T|t1:R|t2:Q|a3:V|t3:R|a:B|u:C",
            (
                '[INST]A[/INST]T[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]f[ARGS]{"x": 2}</s>'
                f"{RESULT}[TOOL_RESULTS]Q[/TOOL_RESULTS]"
                f'V[TOOL_CALLS]f[ARGS]{{"x": 3}}</s>{RESULT}B</s>[INST]C[/INST]'
            ),
        ),
        (SMALL, "u:A|a1:|t1:R", f'[INST]A[/INST][TOOL_CALLS]f[ARGS]{{"x": 1}}</s>{RESULT}'),
        (
            NEMO,
            "u:A|a1:T|t1:R",
            '[INST]A[/INST]T[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}]</s>' + RESULT,
        ),
        # A stricter form, since the assistant speaks twice.
        (
            SMALL,
            "u:A|a:B|a:C|a1:T|t1:R",
            f'[INST]A[/INST]B\n\nC\n\nT[TOOL_CALLS]f[ARGS]{{"x": 1}}</s>{RESULT}',
        ),
        (LATE_SYSTEM, "s:S|a1:|t1:R", 'u:S|a:({"x": 1})|t:R'),
    ],
)
def test_words_beside_calls_stand_in_front_of_them(source: str, given: str, seen: str) -> None:
    """Words beside calls stand in front of them, where mistral-common writes them; the template
    alone leaves them out without a word.
    """
    assert rendered(given, source) == seen


def test_the_words_are_text_and_the_tag_is_a_control_token() -> None:
    """Tags in the words, and the marks of the way, forge nothing."""
    turns = turns_of("u:A|a1:T|t1:R")
    turns[0]["content"] = "\ufdd10\ufdd1"
    turns[1]["content"] = "T[TOOL_CALLS]\ufdd10\ufdd1"
    template = ChatTemplate(SMALL, ControlTokens({"[TOOL_CALLS]"}))
    asked = parse_chat_request(json.dumps({"model": "m", "messages": turns}).encode())
    segments = template.render(asked.messages, asked.tools, NOW)
    assert segments == [
        "[INST]\ufffd0\ufffd[/INST]T[TOOL_CALLS]\ufffd0\ufffd",
        f'[TOOL_CALLS]f[ARGS]{{"x": 1}}</s>{RESULT}',
    ]


def test_the_beginning_of_a_prompt_stays_when_a_turn_comes() -> None:
    """What was said is where it was."""
    begun, longer = "u:A|a1:T|t1:R", "u:A|a1:T|t1:R|a2:V|t2:Q"
    assert rendered(longer, SMALL).startswith(rendered(begun, SMALL))


_OF_MESSAGES = """\
{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {%- if m.reasoning and MAY_THINK %}{{ '<think>' + m.reasoning }}{% endif %}
        {%- if m.tool_calls %}
            {%- for c in m.tool_calls %}{{ '<call>' + c.function.name }}
                {{- c.function.arguments | tojson }}
            {%- endfor %}
        {%- else %}{{ '<text>' + m.content }}
        {%- endif %}
    {%- else %}{{ '<' + m.role + '>' + m.content }}
    {%- endif %}
{%- endfor %}
{%- if tools %}{{ tools | tojson }}{% endif %}
"""


@pytest.mark.parametrize(
    ("may_think", "seen"),
    [
        ("true", "<user>A<think>Hm.<text>See:<call>f{}<tool>R"),
        ("m.tool_calls", "<user>A<text>See:<think>Hm.<call>f{}<tool>R"),
    ],
)
def test_thoughts_come_before_what_is_said_beside_a_call(may_think: str, seen: str) -> None:
    """Thoughts come before what is said beside a call, as the model wrote them, which is what is
    cached; where a template shows thoughts only with a call, they stay with it.
    """
    template = ChatTemplate(_OF_MESSAGES.replace("MAY_THINK", may_think), ControlTokens(()))
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turn = {"role": "assistant", "content": "See:", "reasoning": "Hm.", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "1", "content": "R"}
    body = {"model": "m", "messages": [{"role": "user", "content": "A"}, turn, result]}
    asked = parse_chat_request(json.dumps(body).encode())
    assert "".join(template.render(asked.messages, (), NOW)) == seen
