"""Slots: which gateway processes use a file.

Owns the locks beside the file, one for each process. The kernel releases a lock when its process
ends in any way, so that the others see the end at once; a process that is only stopped keeps its
slot. Must not know what the file holds.
"""

import fcntl
import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final, final

from gateway.store.sqlite_file import BUSY_S, FileKind
from protocol.errors import ConfigError

MAX_GATEWAYS: Final = 128
"""Twice the most processes on one port, because processes that drain keep their slots."""

_RETRY_S: Final = 0.01


@final
class GatewaySlot:
    """This process's slot, with `index` from 0. `is_first`: no other process has a slot now, and
    none gets one before `admit_others`.

    Raises `ConfigError` if another process uses the file alone, or if all slots are taken.
    """

    def __init__(self, path: Path, kind: FileKind) -> None:
        self._path = path
        self._door = self._open("lock")
        with ExitStack() as stack:
            stack.callback(os.close, self._door)
            self.is_first = _try(self._door, fcntl.LOCK_EX)
            if not self.is_first:
                self._enter(kind)
            self.index, self._own = self._take_any(kind)
            stack.pop_all()

    def admit_others(self) -> None:
        """The file is ready: let other processes take slots."""
        fcntl.flock(self._door, fcntl.LOCK_SH)

    def take_over(self, index: int) -> int | None:
        """The lock of a slot whose process has ended, to be closed; None if it lives."""
        file = self._open(f"lock.{index}")
        if _try(file, fcntl.LOCK_EX):
            return file
        os.close(file)
        return None

    def close(self) -> None:
        """Release the slot."""
        os.close(self._own)
        os.close(self._door)

    def _enter(self, kind: FileKind) -> None:
        # The first one prepares the file; a Herma that shared no file keeps others out for good.
        ends_at = time.monotonic() + BUSY_S
        while not _try(self._door, fcntl.LOCK_SH):
            if time.monotonic() > ends_at:
                raise ConfigError(
                    f"another gateway uses the {kind.name} {self._path} alone; give each its own "
                    f"{kind.setting}, or end that one"
                )
            time.sleep(_RETRY_S)

    def _take_any(self, kind: FileKind) -> tuple[int, int]:
        for index in range(MAX_GATEWAYS):
            if (file := self.take_over(index)) is not None:
                return index, file
        raise ConfigError(f"{MAX_GATEWAYS} gateways use the {kind.name} {self._path}, the most")

    def _open(self, suffix: str) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        return os.open(f"{self._path}.{suffix}", flags, 0o600)


def _try(file: int, how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
