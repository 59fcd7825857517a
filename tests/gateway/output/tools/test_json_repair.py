"""JSON as models write it becomes JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.output.tools.json_repair import JsonRepair

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
STYLES = st.sampled_from(
    [
        {"ensure_ascii": False},
        {"ensure_ascii": True, "separators": (",", ":")},
        {"ensure_ascii": False, "indent": 2},
        {"ensure_ascii": True, "separators": (" ,\n", "\t: ")},
    ]
)


def read(text: str, stop: str = "") -> tuple[str, str]:
    """What became of `text`, and what was not taken."""
    reader = JsonRepair("{" if text[0] == "{" else "[", stop)
    for at, char in enumerate(text[1:], 1):
        if reader.is_done:
            return reader.take(), text[at:]
        if not reader.feed(char):
            return reader.close_early(), text[at:]
    return reader.take() + (reader.close() or ""), ""


@given(st.dictionaries(st.text(), VALUES, max_size=4) | st.lists(VALUES), STYLES, st.text())
def test_json_passes_unchanged(value: object, style: dict[str, object], rest: str) -> None:
    """Whatever its style, JSON keeps every character, and what follows is not taken."""
    text = json.dumps(value, **style)  # type: ignore[arg-type]
    assert read(text + rest, "<") == (text, rest)


BROKEN = [
    ('{"a": "say "hi" now"}', {"a": 'say "hi" now'}),
    ('{"a": "x\ny\tz\x01"}', {"a": "x\ny\tz\x01"}),
    ("{'a': 'it's \"so\"'}", {"a": 'it\'s "so"'}),
    ('{a: yes, "b": 01, c: 1.5}', {"a": "yes", "b": "01", "c": 1.5}),
    ('{"a": True, "b": False, "c": None, "d": NaN}', {"a": True, "b": False, "c": None, "d": None}),
    ('{"a": 1,, "b": [1, 2,],}', {"a": 1, "b": [1, 2]}),
    ('{"a": 1 "b" 2}', {"a": 1, "b": 2}),
    ('{"a": , "b": }', {"a": None, "b": None}),
    ('{"a": [1, {"b": 2}', {"a": [1, {"b": 2}]}),
    ('{"a": [1, {"b": 2}}', {"a": [1, {"b": 2}]}),
    ('{"a": 1]}', {"a": 1}),
    (r'{"a": "\d+\u12 \' \\"}', {"a": r"\d+\u12 ' " + "\\"}),
    ('{"a": "b', None),
    ('{"a": ', None),
    ('{"a', None),
    ('{"a": 12', {"a": 12}),
    ("{}", {}),
]


@pytest.mark.parametrize(("text", "expected"), BROKEN)
def test_what_is_nearly_json_is_repaired(text: str, expected: object) -> None:
    """Each rule of repair; what breaks off within a string, a key or before a value stays cut."""
    repaired, rest = read(text)
    assert rest == ""
    if expected is not None:
        assert json.loads(repaired) == expected
    else:
        with pytest.raises(ValueError, match=r"."):
            json.loads(repaired)


def test_a_stop_ends_what_was_forgotten_to_be_ended() -> None:
    """An end tag outside of strings completes the value; within one it is text."""
    assert read('{"a": [1</x>', "<") == ('{"a": [1]}', "</x>")
    assert read('{"a": "1"</x>', "<") == ('{"a": "1"}', "</x>")
    assert read('{"a":</x>', "<") == ('{"a":null}', "</x>")
    assert read('{"a": "</x>"}', "<") == ('{"a": "</x>"}', "")


SIGNS = st.text(st.sampled_from("{}[]\"':,\\ \n<u1-.eEtrueNab\x00🙂"), max_size=40)


@given(st.sampled_from("{["), SIGNS | st.text(max_size=20), st.sampled_from(["", "<"]))
def test_anything_becomes_json(first: str, text: str, stop: str) -> None:
    """There is no text that breaks the reader, and it can always be completed."""
    reader = JsonRepair("{" if first == "{" else "[", stop)
    pieces = [reader.take()]
    for char in text:
        if reader.is_done or not reader.feed(char):
            break
        pieces.append(reader.take())
    if not reader.is_done:
        pieces.append(reader.close_early())
    json.loads("".join(pieces))


@given(SIGNS)
def test_runs_change_nothing(text: str) -> None:
    """Plain characters of a string may be taken at once."""
    slow, fast = JsonRepair("{"), JsonRepair("{")
    at = 0
    while at < len(text) and not fast.is_done:
        at = fast.feed_plain(text, at)
        if at < len(text):
            fast.feed(text[at])
            at += 1
    for char in text[:at]:
        slow.feed(char)
    assert slow.take() == fast.take()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"{'s': '\x1b[0m'}", "\x1b[0m"),
        (r"{'s': '\x22\xe9'}", '"é'),
        (r"{'s': '\x1'}", "\\x1"),
        (r"{'s': '\xzz'}", r"\xzz"),
        (r'{"s": "\x1b[0m"}', r"\x1b[0m"),
        (r"{'s': '\u00e9\x41'}", "éA"),
    ],
)
def test_pythons_escapes_are_read_between_its_quotes(text: str, value: str) -> None:
    """Python writes what cannot be printed by two digits; in JSON a backslash was forgotten."""
    assert json.loads(read(text)[0]) == {"s": value}
