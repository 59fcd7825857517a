"""The key that signs reasoning, on disk."""

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from config import Config, GatewayConfig, LedgerConfig
from gateway.api import KEY_BYTES
from gateway.signing_key import signing_key
from protocol.errors import ConfigError


def config_of(folder: Path, signing_key_file: Path | None = None) -> Config:
    named = None if signing_key_file is None else str(signing_key_file)
    return Config(
        gateway=GatewayConfig(signing_key_file=named),
        ledger=LedgerConfig(path=str(folder / "ledger.sqlite")),
    )


def test_it_is_made_once_beside_the_ledger(tmp_path: Path) -> None:
    """The key is made once beside the ledger. Only the gateway's user can read it; the next start
    finds it.
    """
    folder = tmp_path / "state"
    key = signing_key(config_of(folder), {})
    path = folder / "signing.key"
    assert path.read_bytes() == key
    assert len(key) == KEY_BYTES
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in folder.iterdir()] == ["signing.key"]
    assert signing_key(config_of(folder), {}) == key


def test_processes_that_start_at_once_share_it(tmp_path: Path) -> None:
    """The first one's stays."""
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: signing_key(config_of(tmp_path), {}), range(16)))
    assert len(keys) == 1


def test_a_configured_file_must_be_one(tmp_path: Path) -> None:
    """A configured key file that is missing is created; one of another size is a mistake that is
    named.
    """
    path = tmp_path / "own.key"
    assert signing_key(config_of(tmp_path, path), {}) == path.read_bytes()
    path.write_bytes(b"short")
    with pytest.raises(ConfigError, match=r"own\.key has 5 bytes, not 32"):
        signing_key(config_of(tmp_path, path), {})
    path.unlink()
    os.mkfifo(path)  # reading it would wait for a writer
    with pytest.raises(ConfigError, match=r"own\.key is no regular file"):
        signing_key(config_of(tmp_path, path), {})


def test_without_a_place_it_lasts_as_long_as_the_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The gateway serves, and says what that means."""
    (tmp_path / "file").write_text("no folder")
    with caplog.at_level(logging.WARNING):
        key = signing_key(config_of(tmp_path / "file"), {})
    assert len(key) == KEY_BYTES
    assert "after a restart" in caplog.text
    assert len(signing_key(Config(), {})) == KEY_BYTES
