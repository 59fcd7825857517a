"""The temporary files and sockets of processes, whose names say which process owns them.

Owns the form `herma-NAMESPACE-PID-START-WHAT` of the names, the folders with such files, and the
decision which files of dead processes may be removed. Only files of our own user are touched, and
no link is followed.

A process id alone does not identify an owner: the kernel reuses ids, so the name holds the
process's start time in clock ticks; and containers that share a directory have processes with the
same id, so it holds the inode of the pid namespace. Names of another namespace are left alone.
"""

import os
import re
import shlex
import shutil
import stat
import tempfile
from collections.abc import Iterable, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from housekeeping.errors import ConfigError
from housekeeping.processes import start_ticks, stat_of

_NAME: Final = re.compile(r"herma-(\d{1,20})-(\d{1,10})-(\d{1,20})-[\w.-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, unique also across reuse of its number: `namespace` is the inode of its pid
    namespace, `start_ticks` its start after boot.
    """

    namespace: int
    pid: int
    start_ticks: int

    def name(self, what: str) -> str:
        """The name of something that belongs to this process."""
        return f"herma-{self.namespace}-{self.pid}-{self.start_ticks}-{what}"


def owner_of(name: str) -> Owner | None:
    """The owner in a name; None for other names."""
    match = _NAME.fullmatch(name)
    return None if match is None else Owner(*map(int, match.groups()))


def left_behind(names: Iterable[str], namespace: int, living: Set[Owner]) -> list[str]:
    """The `names` whose owner belongs to `namespace` and is dead."""
    found: list[str] = []
    for name in names:
        owner = owner_of(name)
        if owner is not None and owner.namespace == namespace and owner not in living:
            found.append(name)
    return found


_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 -- looked through, never written to
_PRIVATE: Final = 0o700


def this_process() -> Owner:
    """This process as an owner. Without /proc nothing is swept."""
    try:
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        namespace = 0
    return Owner(namespace, os.getpid(), start_ticks(stat_of(os.getpid())) or 0)


def runtime_dir() -> Path:
    """The folder of control sockets, made if need be and open to this user only: HERMA_RUNTIME_DIR,
    else `herma` in XDG_RUNTIME_DIR, else one in the temporary directory.

    Raises `ConfigError` if others may use it.
    """
    if (named := os.environ.get("HERMA_RUNTIME_DIR")) is not None:
        folder = Path(named)
    elif (session := os.environ.get("XDG_RUNTIME_DIR")) is not None:
        folder = Path(session) / "herma"
    else:
        folder = Path(tempfile.gettempdir()) / f"herma-{os.geteuid()}"
    try:
        folder.mkdir(mode=_PRIVATE, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be used for control sockets: {error.strerror}; make the folder above "
            "it, or name another in HERMA_RUNTIME_DIR"
        ) from error
    if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode):
        raise ConfigError(
            f"{folder} must be a directory of this user, and no link, for control sockets; name "
            "another in HERMA_RUNTIME_DIR"
        )
    if found.st_mode & 0o077:
        raise ConfigError(
            f"{folder} must have mode 0700 for control sockets, and has {found.st_mode & 0o777:04o}"
            f": run `chmod 700 {shlex.quote(str(folder))}`, or name another in HERMA_RUNTIME_DIR"
        )
    return folder


def engine_folders() -> tuple[Path, ...]:
    """Where engines leave things: the temporary directory and shared memory."""
    return Path(tempfile.gettempdir()), _SHARED_MEMORY


def make_scratch(what: str) -> Path:
    """A new private directory that belongs to this process."""
    return Path(tempfile.mkdtemp(prefix=this_process().name(f"{what}-")))


def lasting(file: str) -> str:
    """The path of a file that outlives its process; "" for one in a directory of `make_scratch`."""
    return "" if owner_of(Path(file).parent.name) is not None else file


def sweep(folders: Iterable[Path]) -> list[Path]:
    """Remove what dead processes have left in `folders`; returns what is gone. Blocks: call it in
    a thread.
    """
    if not (namespace := this_process().namespace):
        return []  # without a namespace no owner can be checked
    removed: list[Path] = []
    for folder in folders:
        names = _names(folder)
        owners = {owner for name in names if (owner := owner_of(name)) is not None}
        living = {owner for owner in owners if start_ticks(stat_of(owner.pid)) == owner.start_ticks}
        removed += [
            folder / name for name in left_behind(names, namespace, living) if remove(folder / name)
        ]
    return removed


def remove(path: Path) -> bool:
    """Remove a file, socket or whole directory of ours; False if it is not ours or stays."""
    try:
        found = path.lstat()
        if found.st_uid != os.geteuid():
            return False
        if stat.S_ISDIR(found.st_mode):
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError:
        return False  # already removed, or not removable: nothing depends on it
    return True


def _names(folder: Path) -> list[str]:
    with suppress(OSError):
        return os.listdir(folder)  # noqa: PTH208 -- names are what is needed
    return []
