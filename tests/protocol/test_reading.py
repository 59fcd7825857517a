"""What others write: JSON, or anything else."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ConfigError, WireError
from protocol.reading import decoded, objects_in, read_json, read_object, read_state

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_json_is_read_as_what_it_is(value: Any) -> None:
    """JSON is read as what it is, as bytes and as text; only objects count as objects."""
    text = json.dumps(value)
    assert read_json(text) == read_json(text.encode()) == value
    assert read_object(text) == (value if isinstance(value, dict) else None)


@given(st.binary())
def test_no_bytes_are_an_error(data: bytes) -> None:
    """What is no JSON reads as None."""
    found = read_json(data)
    assert found is None or found == json.loads(data)


@pytest.mark.parametrize(
    "text", ["", "{", b"\xff", "[" * 100_000, "\ud800", '{"a": 1e999}', "NaN", "{} {}"]
)
def test_no_fault_of_a_decoder_passes(text: str | bytes) -> None:
    """Half characters, deep nesting and numbers that are none among them."""
    assert read_json(text) is None
    assert read_object(text) is None


def test_a_list_gives_its_objects() -> None:
    """A list gives its objects in their order; anything else has none."""
    assert objects_in([{"a": 1}, 2, None, [{}], {}]) == [{"a": 1}, {}]
    assert objects_in({"a": {}}) == objects_in(None) == objects_in("x") == []


def test_the_error_names_what_was_expected() -> None:
    """The error names what was expected; a value of the type passes."""
    decoder = msgspec.json.Decoder(list[int])
    assert decoded(decoder, b"[1]", "a list of numbers") == [1]
    for data in (b'["a"]', b"[", b"\xff"):
        with pytest.raises(WireError, match=r"^not a list of numbers: "):
            decoded(decoder, data, "a list of numbers")


class Kept(msgspec.Struct):
    """What a state file holds."""

    name: str


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"name": 1}', b'{"name": "\xff"}'])
def test_a_state_file_that_cannot_be_read_is_said(tmp_path: Path, content: bytes) -> None:
    """With its path and the remedy, whatever was written there. One that is missing is no error."""
    path = tmp_path / "kept.json"
    assert read_state(path, Kept) is None
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"kept\.json cannot be read: .*; make it again$"):
        read_state(path, Kept, "make it again")
    path.write_bytes(b'{"name": "n"}')
    assert read_state(path, Kept) == Kept("n")
