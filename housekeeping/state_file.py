"""State files, which outlive their processes: replaced whole, changed by one process at a time.

Owns their folders, the replacement and the lock. Must not know what is in the files.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from housekeeping.errors import ConfigError


def make_private(folder: Path) -> None:
    """Make the folder and those above it that are missing, each for this user only, as the XDG base
    directories want it. (`Path.mkdir` gives its mode to the last one alone.) Raises `OSError`.
    """
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)
    if not missing:
        folder.mkdir(exist_ok=True)  # raises if `folder` is a file


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file; create its folder if it is missing. Only this user may read it. A reader
    sees either the old or the new content, also after a power cut. Raises `OSError`.
    """
    make_private(path.parent)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.unlink(missing_ok=True)
    with open(new, "wb", opener=_private) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@contextmanager
def held_alone(path: Path, what: str) -> Iterator[None]:
    """Hold the lock of `path` during the block; the kernel releases it when the process ends.

    Raises `ConfigError` if another process holds it (`what` describes the work), or if the file
    cannot be created.
    """
    try:
        make_private(path.parent)
        file = os.fdopen(_private(str(path), os.O_WRONLY | os.O_CREAT), "w", encoding="ascii")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"{what} is under way already ({path} is locked)") from error
        yield
