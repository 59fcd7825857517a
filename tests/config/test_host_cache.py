"""The host's memory for prefixes, as a worker's table asks for it."""

import pytest
from msgspec import ValidationError, convert

from config import WorkerConfig
from protocol.errors import ConfigError
from workers.memory_room import MemoryRoom
from workers.tier_size import check_size

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


def test_more_than_the_whole_host_has_is_refused_before_anything_is_loaded() -> None:
    """In units that a person reads, with the limit that holds."""
    config = convert({**TABLE, "cache": {"host": "64GiB"}}, WorkerConfig)
    check_size(config, MemoryRoom(64 * 2**30, "the host"))
    with pytest.raises(
        ConfigError,
        match=r"cache.host needs 64.00 GiB, and the control group a has 23.40 GiB in all: lower it",
    ):
        check_size(config, MemoryRoom(int(23.4 * 2**30), "the control group a"))
    check_size(convert(TABLE, WorkerConfig), MemoryRoom(0, "the host"))
