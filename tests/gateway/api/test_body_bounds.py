"""How many values a body may have."""

import pytest

from gateway.api import ApiError, check_counts


def test_a_form_is_not_counted() -> None:
    """A sound of 25 MB has over 100,000 quotes and brackets by chance."""
    sound = bytes(range(256)) * 100_000
    check_counts(b"--edge\r\n\r\n" + sound)
    with pytest.raises(ApiError, match="over 100000 values"):
        check_counts(b'{"a": [' + b"{}, " * 100_001 + b"{}]}")
