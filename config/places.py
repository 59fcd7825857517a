"""Where this user's processes keep what belongs to a configuration file on this host.

Owns the state directory and, in it, the default address for workers and the folder of made keys.
Both depend on the path of the file, so that two fleets on one host never meet. Must not know what
is kept there.
"""

import functools
import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from housekeeping.state_file import make_private
from protocol.addresses import IPC_PREFIX, too_long
from protocol.errors import ConfigError

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_LAST_PROCESS: Final = "-63"
"""The end of the address of the last of 64 gateway processes."""
_ID_CHARS: Final = 12
_REMEDY: Final = "name a folder that can be written in XDG_STATE_HOME"


def state_dir(environ: Mapping[str, str]) -> Path:
    """Where Herma keeps what outlives its processes, by the XDG base directories.

    Raises `ConfigError` if the environment names no home either.
    """
    if state := environ.get("XDG_STATE_HOME"):
        return Path(state) / "herma"
    if home := environ.get("HOME"):
        return Path(home) / ".local" / "state" / "herma"
    raise ConfigError("set XDG_STATE_HOME or HOME")


def worker_address(source: str, environ: Mapping[str, str]) -> str:
    """The default `worker_bind` of the configuration file `source`; "" is the set-up without one.

    It is a Unix socket in the state directory. Two hosts that share a home directory get two
    addresses: a host's boot id is part of the name, and is the same in all its containers. Without
    a home, or if the path is too long for a socket, it is in the temporary directory: the two ends
    check each other's user wherever the socket is.
    """
    name = f"workers-{_id_of(source, _boot_id())}"
    try:
        address = f"{IPC_PREFIX}{state_dir(environ).absolute() / name}"
    except ConfigError:
        address = ""
    if not address or too_long(address + _LAST_PROCESS):
        address = f"{IPC_PREFIX}{Path(tempfile.gettempdir()) / f'herma-{os.geteuid()}-{name}'}"
    return address


def keys_dir(source: str, environ: Mapping[str, str]) -> Path:
    """The folder of the key pairs that are made for the configuration file `source`.

    Raises as `state_dir`.
    """
    return state_dir(environ) / f"keys-{_id_of(source)}"


def make_place(address: str, environ: Mapping[str, str]) -> None:
    """Make the state directory, for this user only, if the socket `address` belongs there.

    Raises `ConfigError` if it cannot be made.
    """
    try:
        folder = state_dir(environ).absolute()
        if Path(address.removeprefix(IPC_PREFIX)).parent == folder:
            make_private(folder)
    except ConfigError:
        return
    except OSError as error:
        raise ConfigError(
            f"{error.filename} cannot be made: {error.strerror}; {_REMEDY}"
        ) from error


def _id_of(source: str, more: str = "") -> str:
    where = str(Path(source).resolve()) if source else ""
    return hashlib.sha256(f"{where}\n{more}".encode()).hexdigest()[:_ID_CHARS]


@functools.cache
def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
