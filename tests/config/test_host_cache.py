"""The host's memory for prefixes, as a worker's table asks for it."""

import pytest
from msgspec import ValidationError, convert

from config.model import WorkerConfig

TABLE = {"name": "w", "model": "m", "serves": "m", "gateways": (), "token_budget": 1}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, None),
        ({"cache": {}}, None),
        ({"cache": {"host": "auto"}}, None),
        ({"cache": {"host": "0"}}, 0),
        ({"cache": {"host": "512MiB"}}, 2**29),
        ({"cache": {"host": "64GiB"}}, 2**36),
        ({"cache": {"host": "1TiB"}}, 2**40),
        ({"host_bytes": 5000}, 5000),
        ({"host_bytes": 0}, None),
    ],
)
def test_sizes(asked: dict[str, object], expected: int | None) -> None:
    assert convert({**TABLE, **asked}, WorkerConfig).host_cache_bytes == expected


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"cache": {"host": "64GB"}}, "matching regex"),
        ({"cache": {"host": "0GiB"}}, "matching regex"),
        ({"cache": {"host": 64}}, "Expected `str`"),
        ({"cache": {"card": "1GiB"}}, "unknown field `card`"),
        ({"cache": {"host": "1GiB"}, "host_bytes": 5}, "older name"),
        ({"cache": {"host": "1GiB"}, "engine": "synthetic"}, "`cache` is for engine"),
    ],
)
def test_what_is_no_size_is_refused(asked: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        convert({**TABLE, **asked}, WorkerConfig)
