"""Templates that read what is said as a list of parts."""

import pytest

from tests.gateway.prompt.test_template_traits import HERMES_1, rendered

LIST_OF_PARTS = """\
{%- for m in messages %}
    {{- m['role'][0] }}{{ ';' if m['content'][0]['type'] == 'image' else ':' }}
    {%- for line in m['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}{% endif %}
    {%- endfor %}|
{%- endfor %}
"""
"""SmolVLM's, Idefics' and LLaVA's: texts and pictures are parts."""

IN_PARTS = {
    "all": LIST_OF_PARTS,
    "first": "{% for m in messages %}{{ m.role[0] }}:{{ m.content[0].text | trim }}|{% endfor %}",
    "selected": "{% for m in messages %}{{ m.role[0] }}:{{ m.content | "
    "selectattr('type', 'equalto', 'text') | map(attribute='text') | join }}|{% endfor %}",
    "user alone": "{% for m in messages %}{{ m.role[0] }}:{% if m.role == 'user' %}"
    "{{ m.content[0]['text'] }}{% else %}{{ m.content }}{% endif %}|{% endfor %}",
    "refused": "{% for m in messages %}{% if m.content is string %}{{ raise_exception('text') }}"
    "{% endif %}{{ m.role[0] }}:{{ m.content[0].text }}|{% endfor %}",
    "no parts": "{% for m in messages %}{% if m.content is string %}{{ m.role[0] }}:"
    "{{ m.content }}|{% endif %}{% endfor %}",
}


@pytest.mark.parametrize("name", IN_PARTS)
def test_a_content_is_a_list_of_parts_where_the_template_reads_no_text(name: str) -> None:
    """A content is given as a list of parts to a template that reads no text: it showed nothing of
    what was said.
    """
    assert rendered("s:S|u:A|a:B|u:C", IN_PARTS[name]) == "s:S|u:A|a:B|u:C"


def test_a_list_of_parts_has_the_stricter_forms_too() -> None:
    """A system turn that the template refuses is the user's, and a call is text."""
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    prompt = rendered("s:S|u:A|a1:T|t1:R", refusing + LIST_OF_PARTS)
    assert prompt == f"u:S\n\nA|a:T\n{HERMES_1}|t:R"
