"""What is wrong with a body that is no JSON."""

from typing import Any

import pytest

from gateway.api.chat_parser import ChatBody
from gateway.api.errors import ApiError
from gateway.api.request import decode_object, typed_body


@pytest.mark.parametrize(
    "text", [rb"\ud800", rb"\uDBFF, and much more", rb"\udc00\ud800", rb"\\\ud999"]
)
@pytest.mark.parametrize("shape", [b'{"messages":[{"content":"%b"}]}', b'{"%b":1,"temperature":1}'])
def test_half_a_surrogate_pair_is_called_so(shape: bytes, text: bytes) -> None:
    """Also where a strict reader takes the end of the body for the end of the pair."""
    with pytest.raises(ApiError, match="stands without its other half") as caught:
        decode_object(shape % text)
    assert caught.value.code == "invalid_json"


@pytest.mark.parametrize("body", [b'{"a":"', rb'{"a":"\ud8', rb'{"a":"\ud800"'])
def test_a_body_that_is_cut_is_called_so(body: bytes) -> None:
    """With any content."""
    with pytest.raises(ApiError, match="truncated"):
        decode_object(body)


def test_pairs_and_written_out_escapes_are_text() -> None:
    """Only a half that is one is refused."""
    assert decode_object(rb'{"a":"\ud83d\ude00 \\ud800"}') == {"a": "\U0001f600 \\ud800"}


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ({"model": 5}, "'model': Expected a string, got an integer."),
        ({"messages": []}, "'messages': Expected an array of length >= 1."),
        ({"temperature": "hot"}, "'temperature': Expected a number or null, got a string."),
        ({"stop": 5}, "'stop': Expected a string, an array or null, got an integer."),
        ({"stream": 1}, "'stream': Expected a boolean or null, got an integer."),
    ],
)
def test_types_are_named_as_json_does(field: dict[str, Any], said: str) -> None:
    """Clients are written in many languages."""
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **field}
    with pytest.raises(ApiError) as caught:
        typed_body(body, ChatBody)
    assert str(caught.value) == said
