"""What of a body is surely in its prompt, without decoding it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api import PromptField, long_texts


def found(field: PromptField, **fields: Any) -> list[Any] | None:
    """The texts, decoded."""
    texts = long_texts(json.dumps({"model": "m", **fields}).encode(), field)
    return None if texts is None else [json.loads(bytes(text)) for text in texts.texts]


def said(content: object, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": content}


def part(text: str, kind: str = "text") -> dict[str, Any]:
    return {"type": kind, "text": text}


@pytest.mark.parametrize(
    ("field", "fields", "texts"),
    [
        ("prompt", {"prompt": "a"}, ["a"]),
        ("prompt", {"prompt": ["a"]}, []),
        ("input", {"input": "a"}, ["a"]),
        ("input", {"input": [said("a"), said([part("b", "input_text")])]}, ["a", "b"]),
        ("messages", {"messages": [said("a"), said([part("b"), part("c")])]}, ["a", "b", "c"]),
    ],
)
def test_what_users_say_is_in_a_prompt(
    field: PromptField, fields: dict[str, Any], texts: list[str]
) -> None:
    assert found(field, **fields) == texts


def test_what_a_prompt_may_leave_out_is_left_out() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": "r"}
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages = [
        said("<think>a</think>b", "assistant"),
        said("s", "system"),
        said("r", "tool"),
        said([result, picture, part("a")]),
    ]
    assert found("messages", messages=messages, metadata={"x": "y"}) == ["a"]


@pytest.mark.parametrize(
    ("prompt", "number"),
    [([1, 2, 3], 3), ([], 1), ("a, b", 0), (["a", "b"], 0), ([[1, 2], [3]], 0)],
)
def test_token_ids_are_counted(prompt: object, number: int) -> None:
    texts = long_texts(json.dumps({"model": "m", "prompt": prompt}).encode(), "prompt")
    assert texts is not None
    assert texts.num_ids == number


def test_a_summary_stands_for_all_before_it() -> None:
    summary = {"type": "compaction", "encrypted_content": "x"}
    assert found("input", input=[said("a"), summary, said("b")]) == ["b"]
    block = {"type": "compaction", "content": "x"}
    messages = [said("a"), said([block], "assistant"), said("b")]
    assert found("messages", messages=messages) == ["b"]


@pytest.mark.parametrize(
    "fields",
    [{}, {"messages": "a"}, {"messages": [1]}, {"messages": [{"role": 1}]}, {"input": "a"}],
)
def test_a_body_of_another_shape_is_left_to_its_parser(fields: dict[str, Any]) -> None:
    assert found("messages", **fields) is None


@given(st.binary(max_size=200))
def test_any_bytes_are_taken(body: bytes) -> None:
    long_texts(body, "messages")


@given(st.text(max_size=200))
def test_a_text_is_found_as_it_stands(text: str) -> None:
    assert found("messages", messages=[said(text)]) == [text]
