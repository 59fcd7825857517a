"""Takes one of several processes off the port that they share, and lets it in again.

Owns how a parent does both to a process that hangs, without help from that process. Must not know
when the parent does so.

Linux lets a process copy the descriptor of another process of its user that it may trace
(`pidfd_getfd`; under Yama's default a descendant, in a container only with CAP_SYS_PTRACE). The
copy is held only while the process is off the port: a listener that the parent held all the time
would outlive a process that dies, and accept its connections until the parent notices.
"""

import ctypes
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final, final

from housekeeping.process_start import BACKLOG

_PIDFD_GETFD: Final = 438
"""The number of the system call, the same on x86-64 and aarch64."""


@final
class SharedPort:
    """The processes that listen on `port`. The last of them is never taken off: a port that answers
    late is better than a closed one.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._on: set[int] = set()
        self._off: dict[int, list[socket.socket]] = {}

    def admit(self, pid: int) -> None:
        """Let the process accept connections, for the first time or again."""
        self._on.add(pid)
        for listener in self._off.pop(pid, ()):
            with listener:
                listener.listen(BACKLOG)

    def take_off(self, pid: int) -> None:
        """Send new connections to the other processes; reset connections that this process has not
        accepted. Does nothing for the last process, or if the kernel forbids it.
        """
        if pid in self._off or not self._on - {pid}:
            return
        self._on.discard(pid)
        self._off[pid] = listeners_of(pid, self._port)
        for listener in self._off[pid]:
            # The socket stays bound, so that it can listen again; both descriptors are the same
            # socket.
            listener.shutdown(socket.SHUT_RD)

    def forget(self, pid: int) -> None:
        """Forget a process that has ended."""
        self._on.discard(pid)
        for listener in self._off.pop(pid, ()):
            listener.close()


def listeners_of(pid: int, port: int) -> list[socket.socket]:
    """Copies of the sockets with which the process listens on the port; empty if it is gone or
    cannot be traced.
    """
    found: list[socket.socket] = []
    with suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):  # closed meanwhile
                    if str(link.readlink()).startswith("socket:"):
                        found += _listener(process, int(link.name), port)
        finally:
            os.close(process)
    return found


def _listener(process: int, fd: int, port: int) -> list[socket.socket]:
    """A copy of the descriptor if it listens on the port, else empty. Raises `OSError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    if (copy := libc.syscall(_PIDFD_GETFD, process, fd, 0)) < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    found = socket.socket(fileno=copy)
    is_inet = found.family in (socket.AF_INET, socket.AF_INET6)
    listens = is_inet and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if listens and found.getsockname()[1] == port:
        return [found]
    found.close()
    return []
