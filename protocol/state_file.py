"""State files, which outlive their processes: replaced whole, changed by one process at a time.

Owns the replacement and the lock. Must not know what is in the files.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from protocol.errors import ConfigError


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file; create its folder if it is missing. Only this user may read it. A reader
    sees either the old or the new content, also after a power cut. Raises `OSError`.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
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
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.fdopen(_private(str(path), os.O_WRONLY | os.O_CREAT), "w", encoding="ascii")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"{what} is under way already ({path} is locked)") from error
        yield
