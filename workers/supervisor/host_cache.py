"""The region of host memory that keeps prefixes beyond the engine's life.

Owns the memfd behind it: this process makes it, every engine attaches to it, and a process that
replaces this one takes it over. Memory is taken only where an engine writes. Must not know what the
region holds, nor its size: an engine sets that.
"""

import os
from collections.abc import MutableMapping
from typing import final

from config import WorkerConfig
from housekeeping.sizes import bytes_text
from workers.host_cache import FD_VARIABLE, REGION_NAME, taken_fd
from workers.supervisor.log import WorkerLog


def may_keep(config: WorkerConfig) -> bool:
    """Whether an engine of this configuration may keep prefixes in the host's memory beyond its
    own life. Ranks have memory of their own.
    """
    is_whole = config.engine == "native" and config.tensor_parallel == 1
    return is_whole and config.host_cache_bytes != 0


@final
class HostCache:
    """The region of one worker; `fd` is its descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def take(cls, environ: MutableMapping[str, str]) -> "HostCache | None":
        """The region of the process before, or a new one. None where the system has no memfd. The
        variable is removed, so that only engines get it.
        """
        fd = taken_fd(environ)
        environ.pop(FD_VARIABLE, None)
        try:
            if fd is None:
                fd = os.memfd_create(REGION_NAME, os.MFD_CLOEXEC)
            os.set_inheritable(fd, False)
        except OSError:
            return None
        return cls(fd)

    def __repr__(self) -> str:
        return f"<HostCache of {self.num_bytes} bytes, {self.num_resident} resident>"

    @property
    def num_bytes(self) -> int:
        """The size that the last engine gave it."""
        return os.fstat(self.fd).st_size

    @property
    def num_resident(self) -> int:
        """Bytes of memory that the cache takes."""
        return os.fstat(self.fd).st_blocks * 512

    def variable(self) -> dict[str, str]:
        """The environment variable by which an engine, or the next program of this process, finds
        the cache.
        """
        return {FD_VARIABLE: str(self.fd)}

    def clear(self) -> None:
        """Give all memory back. No engine may have it."""
        os.ftruncate(self.fd, 0)

    def engine_ended(self, *, lacked_memory: bool, was_clearing: bool, log: WorkerLog) -> None:
        """Give all memory back after an engine that was killed for lack of memory, or that ended
        before it had cleared the cache. The end of an engine does not free this memory, so the next
        engine would fail in the same way.
        """
        if lacked_memory and self.num_resident:
            size = bytes_text(self.num_resident)
            log.warning(f"the host lacked memory: {size} of cached prefixes are given back")
        if lacked_memory or was_clearing:
            self.clear()

    def hand_over(self) -> None:
        """Let the next program of this process have it."""
        os.set_inheritable(self.fd, True)
