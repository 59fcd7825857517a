"""Secrets come from the environment or a file."""

from pathlib import Path

import pytest

from config import ProviderConfig, hash_api_key, provider_api_key
from protocol.errors import ConfigError

URL = "http://127.0.0.1:1/v1"


def test_the_environment_variable_wins() -> None:
    """A provider's key is read from the variable that the file names."""
    provider = ProviderConfig(base_url=URL, api_key_env="K")
    assert provider_api_key("p", provider, {"K": " secret \n"}) == "secret"


def test_a_key_file_is_read(tmp_path: Path) -> None:
    """A provider's key is read from a file, without the newline at its end."""
    path = tmp_path / "key"
    path.write_text("secret\n")
    provider = ProviderConfig(base_url=URL, api_key_file=str(path))
    assert provider_api_key("p", provider, {}) == "secret"


@pytest.mark.parametrize("data", [b"\xef\xbb\xbfsecret\r\n", b"secret\r\n", b"  secret"])
def test_a_key_file_of_windows_is_read(data: bytes, tmp_path: Path) -> None:
    """Editors on Windows begin a file with a byte order mark, which no header can hold."""
    path = tmp_path / "key"
    path.write_bytes(data)
    provider = ProviderConfig(base_url=URL, api_key_file=str(path))
    assert provider_api_key("p", provider, {}) == "secret"


def test_no_key_is_needed_when_none_is_named() -> None:
    """A provider without key settings is called without a key."""
    assert provider_api_key("p", ProviderConfig(base_url=URL), {}) is None


def test_a_missing_secret_names_its_source(tmp_path: Path) -> None:
    """An unset variable, a missing file and an empty one are errors that name the place."""
    with pytest.raises(ConfigError, match=r"`p`.*MISSING is not set; export it"):
        provider_api_key("p", ProviderConfig(base_url=URL, api_key_env="MISSING"), {})
    nowhere = str(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="nowhere"):
        provider_api_key("p", ProviderConfig(base_url=URL, api_key_file=nowhere), {})
    empty = tmp_path / "empty"
    empty.touch()
    with pytest.raises(ConfigError, match="empty"):
        provider_api_key("p", ProviderConfig(base_url=URL, api_key_file=str(empty)), {})
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"`p`: cannot read its key file"):
        provider_api_key("p", ProviderConfig(base_url=URL, api_key_file=str(binary)), {})


@pytest.mark.parametrize("secret", ["sk-1\nsk-2", "sk\0-1", "sk-1\r\nx: y", "sk-\x7f1"])
def test_a_key_that_no_header_can_hold_is_a_mistake(secret: str, tmp_path: Path) -> None:
    """Two keys in one file, say: each request would fail without the reason."""
    path = tmp_path / "key"
    path.write_text(secret)
    for provider in (
        ProviderConfig(base_url=URL, api_key_file=str(path)),
        ProviderConfig(base_url=URL, api_key_env="K"),
    ):
        with pytest.raises(ConfigError, match=r"`p`: .*line break") as error:
            provider_api_key("p", provider, {"K": secret})
        assert "sk" not in str(error.value).replace(str(tmp_path), "")


def test_the_hash_is_what_the_file_holds() -> None:
    """The published SHA-256 of "abc" in the form of `[[keys]] hash`."""
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert hash_api_key("abc") == f"sha256:{digest}"
