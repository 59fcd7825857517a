"""`herma keys new NAME` and `herma keys curve FILE`.

A new API key is shown once and not stored.
"""

import argparse
import secrets

import msgspec

from config import Name, hash_api_key
from protocol.errors import ConfigError

_KEY_BYTES = 24
_NEXT = "# For the gateway's configuration file; `herma reload` takes it without a restart."
_PUBLIC = (
    "public key, for the other side (curve_server_key of workers, curve_worker_keys of [gateway])"
)


def run(arguments: argparse.Namespace) -> int:
    """Make a secret and print the lines for the configuration."""
    if arguments.action == "new":
        secret, table = new_api_key(arguments.name)
        print(f"key (shown once): {secret}\n\n{table}\n\n{_NEXT}")
        return 0
    from protocol.transport import write_curve_pair

    public = write_curve_pair(arguments.file)
    print(
        f"secret written to {arguments.file}: curve_secret_file of this side\n{_PUBLIC}: {public}"
    )
    return 0


def new_api_key(name: str) -> tuple[str, str]:
    """A new secret, and its table for the configuration. Raises `ConfigError` for a bad name."""
    try:
        msgspec.convert(name, Name)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{name!r} cannot name a key: take 1 to 128 letters, digits or . _ : / @ -"
        ) from error
    secret = f"sk-herma-{secrets.token_urlsafe(_KEY_BYTES)}"
    return secret, f'[[keys]]\nname = "{name}"\nhash = "{hash_api_key(secret)}"'
