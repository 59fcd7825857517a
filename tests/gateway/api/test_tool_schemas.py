"""Tools that hardly ever change."""

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.json_body import decode_with_tools
from gateway.api.tool_schemas import JsonForm, ToolSchema, ToolSchemas, json_text

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
FORMS = st.builds(
    JsonForm,
    st.booleans(),
    st.sampled_from([None, 0, 2, 4]),
    st.sampled_from([None, (",", ":")]),
    st.booleans(),
)


@given(st.dictionaries(st.text(max_size=4) | st.just("function"), JSON), st.lists(FORMS))
def test_a_tool_is_written_as_json_dumps_writes_it(
    fields: dict[str, Any], forms: list[JsonForm]
) -> None:
    """A tool is written as `json.dumps` writes it, in every form, also when asked again; so is its
    function by itself.
    """
    schemas = ToolSchemas()
    raw = json.dumps(fields).encode()
    for form in [*forms, *forms, JsonForm()]:
        tool = schemas.read(raw)
        assert tool == fields
        assert tool.text_in(form) == json.dumps(fields, **form._asdict())
        assert json_text(dict(tool), form) == tool.text_in(form)


def test_equal_bytes_are_read_once() -> None:
    """The next turn's tool is the same object, with its texts."""
    schemas = ToolSchemas()
    raw = b'{"type":"function","function":{"name":"f"}}'
    assert schemas.read(raw) is schemas.read(bytes(bytearray(raw)))


def test_what_is_no_object_is_refused() -> None:
    """A tool is a JSON object."""
    with pytest.raises(msgspec.ValidationError):
        ToolSchemas().read(b"[]")


def test_a_body_is_decoded_as_without_the_memory() -> None:
    """A body is decoded as without the memory: only an object among `tools` is a `ToolSchema`, and
    equal to what was sent.
    """
    body = b'{"tools": [{"a": 1}], "messages": [], "tools": [{"function": {"name": "f"}}]}'
    first, second = decode_with_tools(body), decode_with_tools(body)
    assert first == msgspec.json.decode(body)
    assert list(first) == list(msgspec.json.decode(body))
    assert isinstance(first["tools"][0], ToolSchema)
    assert first["tools"][0] is second["tools"][0]


@given(st.dictionaries(st.sampled_from(["tools", "a", "b"]), JSON), st.integers(0, 99), st.data())
def test_any_body_is_decoded_or_refused_as_without_the_memory(
    fields: dict[str, Any], at: int, data: st.DataObject
) -> None:
    """Any body is decoded or refused as without the memory: with any `tools`, and wherever a body
    is broken, the error is that of the whole body.
    """
    body = json.dumps(fields).encode()
    if data.draw(st.booleans()):
        body = body[:at] + data.draw(st.sampled_from([b"", b"\xff", b"}", b"\\"])) + body[at + 1 :]
    try:
        expected = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        with pytest.raises(type(error), match=re.escape(str(error))):
            decode_with_tools(body)
    else:
        assert decode_with_tools(body) == expected
