"""Tool calls in the Hermes format, across every split."""

import json
from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.events import TextDelta, ToolCallDelta
from gateway.core.tools import HermesToolParser

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def parser() -> HermesToolParser:
    drawn = count(1)
    return HermesToolParser(lambda n: next(drawn).to_bytes(n, "big"))


def read(*chunks: str) -> list[str | tuple[str, str]]:
    """The stream as text and (name, arguments), neighbouring text joined."""
    tool_parser = parser()
    events = [event for chunk in chunks for event in tool_parser.push(chunk)]
    out: list[str | tuple[str, str]] = []
    for event in [*events, *tool_parser.flush()]:
        if isinstance(event, ToolCallDelta):
            out.append((event.name, event.arguments))
        elif out and isinstance(out[-1], str):
            out[-1] += event.text
        else:
            out.append(event.text)
    return out


NESTED = '{"code": "if (a) { print(\\"</tool_call>}\\") }", "deep": {"x": [{}]}}'

CASES: list[tuple[str, list[str | tuple[str, str]]]] = [
    ("plain text", ["plain text"]),
    (" a < b <tool and c\n", [" a < b <tool and c\n"]),
    (CALL, [("f", '{"a": 1}')]),
    (f"Let me see.\n\n{CALL}\n", ["Let me see.", ("f", '{"a": 1}')]),
    (f"{CALL}\n{CALL}", [("f", '{"a": 1}'), ("f", '{"a": 1}')]),
    (
        '<tool_call>{"name":"f","arguments":"no"}</tool_call>',
        ['<tool_call>{"name":"f","arguments":"no"}</tool_call>'],
    ),
    ('<tool_call>{"name":"f","arguments":null}</tool_call>', [("f", "{}")]),
    ("<tool_call>7</tool_call>", ["<tool_call>7</tool_call>"]),
    (f"{CALL} and more", [("f", '{"a": 1}'), "and more"]),
    (f'<tool_call>{{"name":"g","arguments":{NESTED}}}</tool_call>', [("g", NESTED)]),
    ('<tool_call>{"name":"f","arguments":{}}', [("f", "{}")]),
    ('<tool_call>{"name":"f"}</tool_call>', [("f", "{}")]),
    ('<tool_call>{"name":"f","arguments":"{\\"a\\":1}"}</tool_call>', [("f", '{"a": 1}')]),
    ('<tool_call>{"name":"f","arguments":{"a":"x\ny"}}</tool_call>', [("f", '{"a": "x\\ny"}')]),
    ('<tool_call>{"name":"f","argum', ['<tool_call>{"name":"f","argum']),
    ("a <tool_call>oops</tool_call> b", ["a <tool_call>oops</tool_call> b"]),
    (f"<tool_call>[1]</tool_call>{CALL}", ["<tool_call>[1]</tool_call>", ("f", '{"a": 1}')]),
    (
        f'<tool_call>{{"name": "f</tool_call>\n{CALL}',
        ['<tool_call>{"name": "f</tool_call>', ("f", '{"a": 1}')],
    ),
    (
        '<tool_call>{"name":"","arguments":{}}</tool_call>',
        ['<tool_call>{"name":"","arguments":{}}</tool_call>'],
    ),
    (
        '<tool_call>{"name":"f","arguments":[NaN]}</tool_call>',
        ['<tool_call>{"name":"f","arguments":[NaN]}</tool_call>'],
    ),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_every_split_reads_the_same(text: str, expected: list[str | tuple[str, str]]) -> None:
    """Calls and text come out the same wherever the stream is split, in two and in characters."""
    for cut in range(len(text) + 1):
        assert read(text[:cut], text[cut:]) == expected
    assert read(*text) == expected


FRAGMENTS = st.sampled_from(
    ["<tool_call>", "</tool_call>", CALL, '"', "{", "}", "\\", " ", "\n", "x", "<", '{"name":"f"}']
)


@given(st.lists(FRAGMENTS, max_size=10).map("".join), st.data())
def test_any_text_reads_the_same_in_any_pieces(text: str, data: st.DataObject) -> None:
    """No text, however broken, reads differently when it comes in pieces."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    bounds = [0, *cuts, len(text)]
    chunks = [text[a:b] for a, b in pairwise(bounds)]
    assert read(*chunks) == read(text)


@given(st.lists(FRAGMENTS, max_size=10).map("".join))
def test_no_text_is_lost_but_space_beside_calls(text: str) -> None:
    """Without calls the text comes out as it went in."""
    out = read(text)
    if not any(isinstance(item, tuple) for item in out):
        assert "".join(item for item in out if isinstance(item, str)) == text


def test_text_before_a_possible_tag_is_not_held() -> None:
    """Only what could become a tag waits for more."""
    assert parser().push("hello <tool") == [TextDelta(0, "hello")]
    assert parser().push("hello <b>") == [TextDelta(0, "hello <b>")]


def test_calls_are_numbered_with_fresh_ids() -> None:
    """Parallel calls count up and each draws its own id of 24 hex digits."""
    tool_parser = parser()
    events = tool_parser.push(CALL * 3)
    calls = [event for event in events if isinstance(event, ToolCallDelta)]
    assert [call.call_index for call in calls] == [0, 1, 2]
    assert [call.id for call in calls] == [f"call_{at:024x}" for at in (1, 2, 3)]


def test_a_long_string_full_of_tags_is_read_once() -> None:
    """Closing tags inside an argument do not end the call, however many there are."""
    arguments = json.dumps({"text": "</tool_call>" * 2000})
    text = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
    chunks = [text[at : at + 50] for at in range(0, len(text), 50)]
    assert read(*chunks) == [("f", arguments)]
