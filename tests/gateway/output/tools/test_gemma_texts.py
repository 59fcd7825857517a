"""Texts of JSON in calls of Gemma's formats."""

import pytest

from tests.gateway.output.tools.test_odd_calls import called

QUOTED = {
    '{path:"a, b",content:"[x]"}': {"path": "a, b", "content": "[x]"},
    '{"path":"a}","content":"b"}': {"path": "a}", "content": "b"},
    r'{path:"a\\",content:"say \"hi\", {x}"}': {"path": "a\\", "content": 'say "hi", {x}'},
    '{path:"a\nb",content:"5"}': {"path": "a\nb", "content": "5"},
    '{path:[{"p": "x]", "q,": [1, "2", null]}],content:""}': {
        "path": [{"p": "x]", "q,": [1, "2", None]}],
        "content": "",
    },
}


@pytest.mark.parametrize("written", QUOTED)
@pytest.mark.parametrize(
    ("form", "start", "end"),
    [
        ("function_gemma", "<start_function_call>", "<end_function_call>"),
        ("gemma4", "<|tool_call>", "<tool_call|>"),
    ],
)
def test_texts_of_json_are_read_between_gemmas_tags(
    form: str, start: str, end: str, written: str
) -> None:
    """FunctionGemma's template shows objects within lists as JSON, whose texts hold brackets."""
    assert called(form, f"{start}call:write{written}{end}") == [("write", QUOTED[written])]
