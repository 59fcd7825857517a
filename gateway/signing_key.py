"""The file of the key that signs reasoning.

Owns the creation of the key: 32 random bytes that only the gateway's user can read. The file is
never replaced, because clients keep texts that the key has signed. Must not know what is signed.
"""

import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from config import Config, signing_key_path
from gateway.api import KEY_BYTES
from housekeeping.state_file import make_private
from protocol.errors import ConfigError

_log = logging.getLogger(__name__)


def signing_key(config: Config, environ: Mapping[str, str]) -> bytes:
    """The key in the configured file, else in the state directory. A missing file is created.

    If the file in the state directory cannot be used, the key is random, lasts as long as this
    process, and a log line says so. Raises `ConfigError` for a configured file that cannot be used.
    """
    try:
        return _read_or_create(signing_key_path(config, environ))
    except (OSError, ConfigError) as error:
        if config.gateway.signing_key_file is not None:
            text = f"cannot use [gateway] signing_key_file: {error}"
            raise ConfigError(text) from error
        _log.warning("reasoning that clients send back is dropped after a restart: %s", error)
        return os.urandom(KEY_BYTES)


def read_key(path: Path) -> bytes:
    """The key in an existing file. Raises `ConfigError` for a file of another length or kind."""
    if not path.is_file():
        raise ConfigError(f"{path} is no regular file; remove it for a new one")
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise ConfigError(f"{path} has {len(key)} bytes, not {KEY_BYTES}; delete it for a new one")
    return key


def _read_or_create(path: Path) -> bytes:
    if not path.exists():
        _create(path)
    return read_key(path)


def _create(path: Path) -> None:
    """Create the file in one step, by a hard link: it is never half-written, and of several
    processes that start at once the first one's key stays.
    """
    make_private(path.parent)
    with tempfile.NamedTemporaryFile(dir=path.parent) as draft:  # the file has mode 0600
        draft.write(os.urandom(KEY_BYTES))
        draft.flush()
        try:
            os.link(draft.name, path)
        except FileExistsError:
            return
