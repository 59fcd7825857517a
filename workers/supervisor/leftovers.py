"""What processes leave lying about: named for their owner, removed once that is dead.

Owns the folders where such things lie and the look at who lives. `workers/ipc/leftover_names.py`
owns the names. Only things of our own user are touched, and no link is followed.
"""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from protocol.errors import ConfigError
from workers.ipc import Owner, left_behind, owner_of, start_ticks

_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 -- looked through, never written to
_PRIVATE: Final = 0o700


def this_process() -> Owner:
    """Who we are, for the names of what we own. Where there is no /proc, nothing is swept."""
    try:
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        namespace = 0
    return Owner(namespace, os.getpid(), _start_ticks(os.getpid()) or 0)


def runtime_dir() -> Path:
    """The folder of control sockets, made if need be and open to this user only: HERMA_RUNTIME_DIR,
    else `herma` in XDG_RUNTIME_DIR, else one in the temporary directory.

    Raises `ConfigError` if it is not ours alone.
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
        why = error.strerror
        raise ConfigError(f"{folder} cannot be used for control sockets: {why}") from error
    is_private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
    if not is_private or found.st_uid != os.geteuid():
        raise ConfigError(
            f"{folder} must be a directory of this user with mode 0700; correct it, or name "
            "another in HERMA_RUNTIME_DIR"
        )
    return folder


def engine_folders() -> tuple[Path, ...]:
    """Where engines leave things: the temporary directory and shared memory."""
    return Path(tempfile.gettempdir()), _SHARED_MEMORY


def make_scratch(what: str) -> Path:
    """A new private directory that belongs to this process."""
    return Path(tempfile.mkdtemp(prefix=this_process().name(f"{what}-")))


def sweep(folders: Iterable[Path]) -> list[Path]:
    """Remove what dead processes have left in `folders`; returns what is gone. Blocks: call it in
    a thread.
    """
    if not (namespace := this_process().namespace):
        return []  # nobody could say who lives
    removed: list[Path] = []
    for folder in folders:
        names = _names(folder)
        owners = {owner for name in names if (owner := owner_of(name)) is not None}
        living = {owner for owner in owners if _start_ticks(owner.pid) == owner.start_ticks}
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
        return False  # somebody was faster, or it cannot be removed: nothing depends on it
    return True


def _names(folder: Path) -> list[str]:
    with suppress(OSError):
        return os.listdir(folder)  # noqa: PTH208 -- names are what is needed
    return []


def _start_ticks(pid: int) -> int | None:
    with suppress(OSError):
        return start_ticks(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace"))
    return None
