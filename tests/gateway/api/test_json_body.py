"""What is wrong with a body that is no JSON."""

from typing import Any

import pytest

from gateway.api.chat_parser import ChatBody
from gateway.api.errors import ApiError
from gateway.api.json_body import decode_object, typed_body


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (rb"\ud800", "\ufffd"),
        (rb"\uDBFF, and much more", "\ufffd, and much more"),
        (rb"\udc00\ud800", "\ufffd\ufffd"),
        (rb"\\\ud999", "\\\ufffd"),
        (rb"\ud83d\ud83d\ude00 \\ud83d", "\ufffd\U0001f600 \\ud83d"),
    ],
)
@pytest.mark.parametrize("tools", [b"[]", b'[{"type":"function"}]'])
def test_half_a_surrogate_pair_is_read_as_unknown(text: bytes, read: str, tools: bytes) -> None:
    """A text that a client has cut in the middle of a character stays in its history: a refusal
    would end the session. Also where a strict reader takes the end of the body for that of the
    pair.
    """
    raw = decode_object(b'{"tools":%b,"%b":["%b"]}' % (tools, text, text))
    assert raw[read] == [read]
    assert decode_object(b'{"%b":"%b"}' % (text, text)) == {read: read}


@pytest.mark.parametrize("body", [b'{"a":"', rb'{"a":"\ud8', rb'{"a":"\ud800"'])
def test_a_body_that_is_cut_is_called_so(body: bytes) -> None:
    """A body that is cut is called so, with any content."""
    with pytest.raises(ApiError, match="truncated"):
        decode_object(body)


def test_pairs_and_written_out_escapes_are_text() -> None:
    """Pairs of surrogates and written-out escapes are text: only a half that stands alone is
    replaced.
    """
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
