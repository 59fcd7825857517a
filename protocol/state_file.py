"""Files that outlive their processes: written in one piece, changed by one process at a time.

Owns how that is done. Must not know what is in them.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from protocol.errors import ConfigError


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file and make its folder if need be; a reader sees the old content or the new
    one, also after a power cut. Raises `OSError`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    with new.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


@contextmanager
def held_alone(path: Path, what: str) -> Iterator[None]:
    """No other process is in such a block for `path`; the kernel ends it with the process.

    Raises `ConfigError` if one is, which `what` describes, or if the file cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w", encoding="ascii")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"{what} is under way already ({path} is locked)") from error
        yield
