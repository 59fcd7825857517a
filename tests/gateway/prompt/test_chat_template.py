"""The short ways of our environment, against Jinja's own sandbox."""

from datetime import UTC, datetime
from functools import cache
from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers.utils.chat_template_utils import render_jinja_template

from gateway.api.errors import ApiError
from gateway.api.request import Message
from gateway.api.tool_schemas import ToolSchema
from gateway.prompt.chat_template import ChatTemplate, compile_template
from gateway.prompt.control_tokens import ControlTokens

SOURCES = (
    "{{ x.role }}|{{ x['role'] }}|{{ x.missing }}|{{ x.items is defined }}|{{ x.get('role') }}",
    "{{ x.missing.deeper is defined }}",
    "{{ x.missing.deeper }}",
    "{{ x.role.upper() if x.role is string else x.role }}|{{ x.content.strip is defined }}",
    "{{ x.inner.role }}|{{ x.inner.inner.role }}|{{ (x.inner or x).role }}",
    "{{ x.__class__ }}|{{ x.inner.__init__ }}|{{ ''.__class__ }}",
    "{% for m in y %}{{ loop.first }}{{ loop.last }}{{ loop.index }}{{ m.role }}{% endfor %}",
    "{% for m in y %}{{ loop.length }}{{ loop.index0 }}{{ loop.revindex }}{% endfor %}",
    "{% for m in y %}{{ loop.previtem.role }}{{ loop.nextitem.role }}{% endfor %}",
    "{% for m in y %}{{ loop.depth }}{{ loop.nothing }}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for m in y %}{{ loop.changed(m.role) }}{{ loop._iterator }}{% endfor %}",
    "{% macro f(m, n=x.role) %}{{ m.role }}{{ n }}{% endmacro %}{{ f(x) }}{{ f(x.inner) }}",
    "{% set a = namespace(b=x.role) %}{% for m in y %}{% set a.b = m.role %}{% endfor %}{{ a.b }}",
    "{% for m in y if m.role == x.role %}{{ m.content }}{% else %}none{% endfor %}",
    "{{ y | map(attribute='role') | list }}|{{ y | selectattr('role') | list | length }}",
    "{% if x.role == x.inner.role or x.role in x.inner %}a{% elif x.inner.content %}b{% endif %}",
    "{{ x.values | length }}{{ x.keys() | list }}",
    "{% block b %}{{ x.role }}{% endblock %}{{ self.b() }}",
    "{% filter upper %}{{ x.role }}{% endfilter %}",
    "{{ [x.role, x.inner.role] + [y[0].role] }}{{ {'a': x.role}.a }}",
    "{{ {'a': {'role': x.role}}.a.role }}",
    "{{ x.update({'role': 1}) }}",
    "{{ y.append(1) }}{{ y.role }}{{ y[0].role }}",
    "{{ 'abc'.role }}{{ 5 .real }}{{ '{0}'.format(x.role) }}{{ x.role.format('y') }}",
    "{% call(m) apply(y) %}{{ m.role }}{% endcall %}",
    "{{ y[0] }}{{ y[0][0] }}{{ y[0.0] }}{{ y[false] }}{{ x[0] }}{{ 'ab'[0] }}{{ y[1] }}{{ y[-1] }}",
    "{% with z = x.inner %}{{ z.role }}{{ x.role }}{% endwith %}{{ x.inner.role ~ x.role }}",
)
PLAIN = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "{0.role}", "b"])
FIELDS = st.sampled_from(["role", "content", "inner", "a", "items", "first"])
OBJECTS = st.recursive(
    st.dictionaries(FIELDS, PLAIN, max_size=4),
    lambda inner: st.dictionaries(FIELDS, PLAIN | inner, max_size=4),
    max_leaves=5,
)


@cache
def ours(source: str) -> jinja2.Template:
    return compile_template(source)


@cache
def stock(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(source)


def rendered(template: jinja2.Template, **variables: Any) -> tuple[str, str]:
    """The text, or what kind of error it was and its words."""
    try:
        return "text", template.render(**variables)
    except (jinja2.TemplateError, TypeError, ValueError, AttributeError, LookupError) as error:
        words = str(error).replace("gateway.api.tool_schemas.", "")
        return type(error).__name__, words.replace("ToolSchema", "dict")


@given(x=OBJECTS, y=st.lists(OBJECTS, max_size=3))
def test_templates_write_what_jinja_writes(x: dict[str, Any], y: list[dict[str, Any]]) -> None:
    """Fields, methods, loops, what is missing and what is forbidden. Drawing objects takes five
    times as long as rendering them: each is shown to every template.
    """
    for source in SOURCES:
        assert rendered(ours(source), x=x, y=y) == rendered(stock(source), x=x, y=y), source


@given(x=OBJECTS)
def test_a_remembered_tool_reads_like_a_plain_one(x: dict[str, Any]) -> None:
    """`ToolSchema` is a dict of its own kind."""
    tool = ToolSchema(x, 1)
    for source in SOURCES:
        read = rendered(ours(source), x=tool, y=[tool])
        assert read == rendered(stock(source), x=x, y=[x]), source


NAMES = (
    "{% set a = messages[0].role %}{% macro m() %}{{ a }}{% endmacro %}{{ m() }}{{ a }}{{ b }}",
    "{% set messages = messages + messages %}{{ messages | length }}{{ messages is defined }}",
    "{% set a = 1 %}{% block one %}{{ a }}{{ tools }}{{ c }}{% endblock %}{{ self.one() }}",
    "{% if nothing %}{% set a = 1 %}{% endif %}{{ a }}{{ add_generation_prompt }}{{ d }}",
    "{% for a in messages %}{% set d = a.role %}{{ d }}{% endfor %}{{ d }}{{ range(2) }}",
)


@pytest.mark.parametrize("source", NAMES)
def test_names_are_found_as_jinja_finds_them(source: str) -> None:
    """What is given, what is set, and what neither is."""
    messages = (Message("user", "a"), Message("assistant", "b"))
    template = ChatTemplate(source, ControlTokens(()), {"d": "e"})
    given = {"messages": [{"role": m.role, "content": m.content} for m in messages]}
    told = stock(source).render(**given, tools=None, add_generation_prompt=True, d="e")
    assert template.render(messages, (), datetime.fromtimestamp(0, UTC)) == [told]


SET_INSIDE = (
    "{% set q = 'o' %}{% for m in messages %}{% generation %}{% set q = m.role %}{{ q }}"
    "{% endgeneration %}{{ q }}{% endfor %}{% generation %}{{ q }}{% endgeneration %}"
)
DOCUMENTS = "{{ documents is defined }}{% if documents is not none %}They are:{% endif %}"


@pytest.mark.parametrize("source", [SET_INSIDE, DOCUMENTS])
def test_names_are_defined_where_transformers_defines_them(source: str) -> None:
    """What is set in the marked text of a training ends with it, and documents are none."""
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    theirs, _ = render_jinja_template([turns], chat_template=source)
    messages = [Message("user", "a"), Message("assistant", "b")]
    segments = ChatTemplate(source, ControlTokens({})).render(messages, [], datetime.now(UTC))
    assert "".join(segments) == theirs[0]


EFFORTS = (
    "{% if reasoning_effort is defined and reasoning_effort not in ['high', 'low'] %}"
    "{{ raise_exception('effort: ' ~ reasoning_effort) }}{% endif %}"
    "{{ reasoning_effort }}:{{ messages[-1].content }}"
)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("high", "high"),
        ("medium", "high"),
        ("minimal", "low"),
        ("xhigh", "high"),
        ("max", "high"),
        ("none", ""),
        ("as you like", ""),
    ],
)
def test_an_effort_that_a_template_refuses_is_the_nearest_one(given: str, shown: str) -> None:
    """Clients send `medium` unless they are told otherwise; Hy3 knows three others."""
    template = ChatTemplate(EFFORTS, ControlTokens(()))
    kwargs = {"reasoning_effort": given}
    messages = (Message("user", "a"),)
    rendered_text = template.render(messages, (), datetime.fromtimestamp(0, UTC), kwargs)
    assert rendered_text == [f"{shown}:a"]


def test_a_system_turn_that_a_template_demands_has_nothing_in_it() -> None:
    """A system turn that a template demands is empty for clients that send none; one that is there
    stays as it is.
    """
    source = (
        "{% if messages[0].role != 'system' %}{{ raise_exception('System first.') }}{% endif %}"
        "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}"
    )
    template = ChatTemplate(source, ControlTokens(()))
    now = datetime.fromtimestamp(0, UTC)
    asked = (Message("user", "a"),)
    assert template.render(asked, (), now) == ["system=;user=a;"]
    told = (Message("system", "b"), *asked)
    assert template.render(told, (), now) == ["system=b;user=a;"]


def test_a_refusal_says_in_which_line_it_was_and_what_helps() -> None:
    """Words of Python alone do not tell what of a template they mean."""
    source = "{% for m in messages %}\n{{ m.role }}\n{{ m.nothing + 'b' }}\n{% endfor %}"
    template = ChatTemplate(source, ControlTokens(()))
    with pytest.raises(ApiError) as refused:
        template.render((Message("user", "a"),), (), datetime.fromtimestamp(0, UTC))
    assert refused.value.message.endswith(
        "(line 3 of the template). Send them in another form, or set 'chat_template' in [[models]]."
    )
    assert template.remarks[0].endswith("(line 3 of the template)")
