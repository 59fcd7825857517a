"""Bounds on what a request can use."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.chat_parser import parse_chat_request
from gateway.api.chat_request import ChatRequest
from gateway.spending.worst_case import PART_TOKENS, output_bound, prompt_bound


def request(**fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields}
    return parse_chat_request(json.dumps(body).encode())


@given(st.text())
def test_a_prompt_has_no_more_tokens_than_bytes(text: str) -> None:
    """Also where each byte is a token of its own."""
    content = [{"role": "user", "content": text}]
    assert prompt_bound(request(messages=content)) > len(text.encode())


def test_tools_and_images_count() -> None:
    """Schemas by their bytes, what is not text by a flat number."""
    plain = prompt_bound(request())
    tool = {"type": "function", "function": {"name": "f", "description": "x" * 1000}}
    assert prompt_bound(request(tools=[tool])) > plain + 1000
    image = {"type": "image_url", "image_url": {"url": "https://a/b.png"}}
    parts = [{"role": "user", "content": [{"type": "text", "text": "?"}, image, image]}]
    assert prompt_bound(request(messages=parts)) > plain + 2 * PART_TOKENS


@pytest.mark.parametrize(
    ("fields", "model_bound", "bound"),
    [
        ({}, None, None),
        ({}, 100, 100),
        ({"max_tokens": 7}, None, 7),
        ({"max_completion_tokens": 7}, None, 7),
        ({"max_tokens": 7, "max_completion_tokens": 9}, None, 9),
        ({"max_tokens": 65_536}, 8192, 8192),
        ({"max_tokens": 7, "n": 3}, 100, 21),
        ({"max_tokens": None, "n": 2}, 100, 200),
    ],
)
def test_the_output_is_bounded_by_the_request_or_the_model(
    fields: dict[str, Any], model_bound: int | None, bound: int | None
) -> None:
    """Whoever says less, for every choice; of two caps the larger, as providers differ in which
    they obey.
    """
    assert output_bound(request(**fields), model_bound) == bound
