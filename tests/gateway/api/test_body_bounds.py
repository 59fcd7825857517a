"""How many values a body may have."""

import pytest

from gateway.api import ApiError, check_counts, is_quickly_read


def test_a_form_is_not_counted() -> None:
    """A sound of 25 MB has over 100,000 quotes and brackets by chance."""
    sound = bytes(range(256)) * 100_000
    check_counts(b"--edge\r\n\r\n" + sound)
    with pytest.raises(ApiError, match="over 100000 values"):
        check_counts(b'{"a": [' + b"{}, " * 100_001 + b"{}]}")


def test_a_schema_whose_alternatives_are_compared_is_read_in_a_thread() -> None:
    """The comparison grows with the square of their number; one of 16 KB takes 25 ms."""
    padding = b'"' + b"a" * 20_000 + b'"'
    assert is_quickly_read(b'{"a": %b, "anyOf": []}' % padding)
    assert not is_quickly_read(b'{"a": %b, "oneOf": []}' % padding)
    assert is_quickly_read(b'{"oneOf": []}')
