"""Patterns of formats allow what independent readers of the format take, and enough of it."""

import ipaddress
import json
import re
import uuid
from collections.abc import Callable
from datetime import date, datetime, time
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from gateway.schemas import FORMAT_PATTERNS
from workers.model_dir import builtin_dir

READERS: dict[str, Callable[[str], object]] = {
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "date-time": datetime.fromisoformat,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "uuid": uuid.UUID,
}
"""Readers of the standard library; all formats have the reader of the engines' library."""

VALID = {
    "date": ["2026-11-29", "2024-02-29", "1999-12-31"],
    "time": ["08:30:00Z", "23:59:59.5+02:00"],
    "date-time": ["2026-11-29T08:30:00Z", "2024-02-29T00:00:00-05:00"],
    "duration": ["P1D", "PT5M", "P1Y2M3DT4H5M6S", "P3W"],
    "email": ["a@b.org", "first.last+tag@mail.example.com"],
    "hostname": ["localhost", "a-b.example.com"],
    "ipv4": ["127.0.0.1", "255.255.255.255"],
    "ipv6": ["::1", "2001:db8::8a2e:370:7334", "1:2:3:4:5:6:7:8"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
    "uri": ["https://example.com/a?b=c%20d#e", "mailto:a@b.org", "urn:x:y"],
}
INVALID = {
    "date": ["2026-02-29", "2026-04-31", "26-1-1", "2026-13-01"],
    "time": ["24:00:00Z", "08:30:00", "08:30"],
    "date-time": ["2026-11-29 08:30:00Z", "2026-11-29"],
    "duration": ["P", "PT", "1D", "P1D2Y"],
    "email": ["a@b", "a b@c.org", "@b.org"],
    "hostname": ["-a.org", "a..b", ""],
    "ipv4": ["256.1.1.1", "1.2.3", "01.2.3.4"],
    "ipv6": ["1::2::3", "g::1", "1:2:3"],
    "uuid": ["123e4567e89b12d3a456426614174000"],
    "uri": ["//example.com", "a b:c", "https://%zz"],
}


@cache
def _tokenizer() -> LLTokenizer:
    return LLTokenizer((builtin_dir("builtin:herma-tiny") / "tokenizer.json").read_text())


def _is_taken(name: str, text: str) -> bool:
    """Whether the engines' grammar of the format allows the text."""
    schema = json.dumps({"type": "string", "format": name})
    matcher = LLMatcher(_tokenizer(), LLMatcher.grammar_from_json_schema(schema))
    tokens = _tokenizer().tokenize_str(json.dumps(text))
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize("name", FORMAT_PATTERNS)
@given(data=st.data())
def test_what_a_pattern_allows_is_of_the_format(name: str, data: st.DataObject) -> None:
    """Drawn from the pattern, read by others."""
    text = data.draw(st.from_regex(re.compile(FORMAT_PATTERNS[name], re.ASCII), fullmatch=True))
    READERS.get(name, str)(text)
    assert _is_taken(name, text)


@pytest.mark.parametrize("name", FORMAT_PATTERNS)
def test_common_values_are_allowed_and_wrong_ones_are_not(name: str) -> None:
    """Each by the whole text."""
    pattern = re.compile(FORMAT_PATTERNS[name])
    assert all(pattern.fullmatch(text) for text in VALID[name])
    assert not any(pattern.fullmatch(text) for text in INVALID[name])
