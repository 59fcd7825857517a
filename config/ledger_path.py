"""Where the ledger lies.

Owns the default path, after the XDG base directories. Must not create or open anything.
"""

from collections.abc import Mapping
from pathlib import Path

from config.model import LedgerConfig
from protocol.errors import ConfigError


def ledger_path(config: LedgerConfig, environ: Mapping[str, str]) -> Path:
    """The ledger's file. Raises `ConfigError` if neither the file nor the environment says."""
    if config.path is not None:
        return Path(config.path).expanduser()
    if state := environ.get("XDG_STATE_HOME"):
        return Path(state) / "herma" / "ledger.sqlite"
    if home := environ.get("HOME"):
        return Path(home) / ".local" / "state" / "herma" / "ledger.sqlite"
    raise ConfigError("the ledger has no place: set [ledger] path, or XDG_STATE_HOME or HOME")
