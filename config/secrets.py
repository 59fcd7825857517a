"""Secrets from the environment or from files, never from the configuration.

Owns how a secret is found and hashed. Must not log or print one.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from config.model import ProviderConfig
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
