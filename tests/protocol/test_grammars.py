"""The forms of grammars, and how an engine tells which it enforces."""

import json

from hypothesis import given
from hypothesis import strategies as st

from protocol.grammars import ALL_FORMS, capabilities_of, choices_of, form_of, forms_of

TEXTS = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=5)


@given(TEXTS)
def test_a_choice_is_found_in_its_lark(texts: list[str]) -> None:
    """A choice is found in its Lark, as the gateway writes it."""
    lark = "start: " + " | ".join(json.dumps(one, ensure_ascii=False) for one in texts) + "\n"
    assert choices_of(lark) == texts
    assert form_of("lark", lark) == "choice"


def test_other_grammars_are_no_choice() -> None:
    """A rule, a repetition, numbers, half a choice."""
    for lark in (
        'start: "a" b\nb: "c"',
        'start: "a"+',
        "start: a",
        'start: "a" | ',
        'start: "a" |x',
    ):
        assert choices_of(lark) == []
        assert form_of("lark", lark) == "lark"
    assert form_of("lark", 'root ::= "a"') == "ebnf"
    assert form_of("regex", "root ::= a") == "regex"


def test_forms_travel_as_capabilities() -> None:
    """Unknown ones are ignored; the old one means all."""
    assert forms_of(("grammars", "x")) == ALL_FORMS
    assert forms_of(capabilities_of({"regex", "choice"})) == {"regex", "choice"}
    assert forms_of(("grammars:unknown", "invariant")) == frozenset()
