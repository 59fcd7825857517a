"""What the configuration leaves to the environment: secrets, and the ledger's default path.

Owns where a secret is found and how it is hashed. Must not log or print one.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from config.places import state_dir
from config.tables import Config, LedgerConfig, ProviderConfig
from housekeeping.audit import FILE_NAME
from protocol.addresses import is_loopback_host
from protocol.errors import ConfigError


def hash_api_key(secret: str) -> str:
    """The form in which `[[keys]]` holds an API key. Keys are random, so no salt is needed."""
    return "sha256:" + hashlib.sha256(secret.encode()).hexdigest()


def provider_api_key(name: str, provider: ProviderConfig, environ: Mapping[str, str]) -> str | None:
    """The provider's key; None if the provider needs none. Raises as `secret_of`."""
    return secret_of(f"provider `{name}`", provider.api_key_env, provider.api_key_file, environ)


def secret_of(
    place: str, variable: str | None, path: str | None, environ: Mapping[str, str]
) -> str | None:
    """The secret in the environment variable, or else in the file; None if neither is named.

    Raises `ConfigError`, which begins with `place`, when the variable is unset, the file is missing
    or empty, or either holds what no header can, such as a second line.
    """
    if variable is not None:
        secret = environ.get(variable, "").strip()
        if not secret:
            raise ConfigError(
                f"{place}: the environment variable {variable} is not set; export it before the "
                "start, or write it into the EnvironmentFile of the unit"
            )
        return _one_line(secret, f"{place}: the environment variable {variable}")
    if path is not None:
        try:
            secret = Path(path).read_text(encoding="utf-8-sig").strip()
        except (OSError, ValueError) as error:  # no such file; bytes that are not UTF-8
            raise ConfigError(f"{place}: cannot read its key file: {error}") from error
        if not secret:
            raise ConfigError(f"{place}: its key file {path} is empty")
        return _one_line(secret, f"{place}: its key file {path}")
    return None


def _one_line(secret: str, source: str) -> str:
    if all(char >= " " and char != "\x7f" for char in secret):
        return secret
    raise ConfigError(f"{source} holds a line break or another control character within the key")


def clear_password(ledger: LedgerConfig) -> str | None:
    """The mistake if the password of the server for shared limits goes to another host in clear
    text; None if it does not.
    """
    parts = urlsplit(ledger.shared or "")
    if ledger.shared_password_env is None or parts.scheme != "redis":
        return None
    if parts.hostname is None or is_loopback_host(parts.hostname):
        return None
    return f"[ledger] shared sends its password to {parts.hostname} in clear text"


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


def audit_path(config: Config, environ: Mapping[str, str]) -> Path:
    """The audit file of a gateway, beside its ledger. Raises as `ledger_path`."""
    return ledger_path(config.ledger, environ).with_name(FILE_NAME)


def _expanded(path: str, setting: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # `~user` of an unknown user
        raise ConfigError(f"{setting} {path} cannot be read: {error}") from error
