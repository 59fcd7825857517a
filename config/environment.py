"""What the configuration leaves to the environment: secrets, and the ledger's default path.

Owns where a secret is found and how it is hashed. Must not log or print one.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from config.model import Config, LedgerConfig, ProviderConfig
from protocol.errors import ConfigError


def hash_api_key(secret: str) -> str:
    """The form in which `[[keys]]` holds an API key. Keys are random, so no salt is needed."""
    return "sha256:" + hashlib.sha256(secret.encode()).hexdigest()


def provider_api_key(name: str, provider: ProviderConfig, environ: Mapping[str, str]) -> str | None:
    """The provider's key; None if the provider needs none.

    Raises `ConfigError` when the variable is unset or the file is missing or empty.
    """
    if provider.api_key_env is not None:
        secret = environ.get(provider.api_key_env, "").strip()
        if not secret:
            raise ConfigError(
                f"provider `{name}`: the environment variable {provider.api_key_env} is not set"
            )
        return secret
    if provider.api_key_file is not None:
        try:
            secret = Path(provider.api_key_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError(f"provider `{name}`: cannot read its key file: {error}") from error
        if not secret:
            raise ConfigError(f"provider `{name}`: its key file {provider.api_key_file} is empty")
        return secret
    return None


def ledger_path(config: LedgerConfig, environ: Mapping[str, str]) -> Path:
    """The configured path of the ledger, else that of the XDG base directories.

    Raises `ConfigError` if the environment names no home either.
    """
    if config.path is not None:
        return _expanded(config.path, "[ledger] path")
    try:
        return state_dir(environ) / "ledger.sqlite"
    except ConfigError as error:
        raise ConfigError(f"the ledger has no path: set [ledger] path; or {error}") from error


def state_dir(environ: Mapping[str, str]) -> Path:
    """Where Herma keeps what outlives its processes, by the XDG base directories.

    Raises `ConfigError` if the environment names no home either.
    """
    if state := environ.get("XDG_STATE_HOME"):
        return Path(state) / "herma"
    if home := environ.get("HOME"):
        return Path(home) / ".local" / "state" / "herma"
    raise ConfigError("set XDG_STATE_HOME or HOME")


def responses_path(config: Config, environ: Mapping[str, str]) -> Path:
    """The configured path of the stored responses, else one beside the ledger, which all gateway
    processes share. Raises as `ledger_path`.
    """
    if config.gateway.responses.path is not None:
        return _expanded(config.gateway.responses.path, "[gateway.responses] path")
    return ledger_path(config.ledger, environ).with_name("responses.sqlite")


def signing_key_path(config: Config, environ: Mapping[str, str]) -> Path:
    """The configured path of the key that signs reasoning, else one beside the ledger, which all
    gateway processes share. Raises as `ledger_path`.
    """
    if config.gateway.signing_key_file is not None:
        return _expanded(config.gateway.signing_key_file, "[gateway] signing_key_file")
    return ledger_path(config.ledger, environ).with_name("signing.key")


def _expanded(path: str, setting: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # `~user` of an unknown user
        raise ConfigError(f"{setting} {path} cannot be read: {error}") from error
