"""Messages of a service to its service manager (ready, alive, stopping), and lines for people.

Owns the protocol of sd_notify(3): assignments in one datagram to the Unix socket that NOTIFY_SOCKET
names. Without that variable nothing is sent. Must not know what the service does.
"""

import os
import socket
import sys
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from functools import cache
from typing import Final, TextIO, final

import trio

from housekeeping.log_output import LineWriter

_MICROSECONDS: Final = 1e6
_STATUS_S: Final = 10.0
"""How often the status is sent without a watchdog."""


def say(line: str, stream: TextIO | None = None) -> None:
    """Print `line`, by default on stderr. If the stream takes nothing (a log on a full disk, a pipe
    without a reader or with one that stands still), the line is lost and the service continues.
    """
    stream = stream or sys.stderr
    with suppress(OSError):
        stream.flush()
    # Not by the stream's buffer, which would try the failed write again at exit.
    _writer_of(stream).write(line)


@cache
def _writer_of(stream: TextIO) -> LineWriter:
    return LineWriter(stream)


@final
class ServiceManager:
    """The service manager at `address`, None without one. It expects a sign of life every
    `watchdog_s`, if that is set.
    """

    def __init__(self, address: str | None = None, watchdog_s: float | None = None) -> None:
        self.watchdog_s = watchdog_s
        self._address = address
        self._status = ""

    @classmethod
    def take(cls, environ: MutableMapping[str, str]) -> "ServiceManager":
        """The manager that `environ` names. Removes its variables, which are not for children."""
        address = environ.pop("NOTIFY_SOCKET", None)
        pid = environ.pop("WATCHDOG_PID", None)
        interval_us = environ.pop("WATCHDOG_USEC", "")
        is_meant = pid in (None, str(os.getpid()))
        watchdog_s = int(interval_us) / _MICROSECONDS if interval_us.isdigit() else None
        return cls(address, watchdog_s if is_meant else None)

    @property
    def environ(self) -> dict[str, str]:
        """The variables for a program that replaces this one in the same process."""
        if self._address is None:
            return {}
        found = {"NOTIFY_SOCKET": self._address}
        if self.watchdog_s is not None:
            found |= {
                "WATCHDOG_PID": str(os.getpid()),
                "WATCHDOG_USEC": str(int(self.watchdog_s * _MICROSECONDS)),
            }
        return found

    def ready(self, status: str) -> None:
        """The service has begun. `status` is one line for people."""
        self._status = status
        self._send("READY=1", f"STATUS={status}")

    def stopping(self) -> None:
        """The service finishes what runs, and ends."""
        self._send("STOPPING=1")

    async def keep_alive(self, status: Callable[[], str] | None = None) -> None:
        """Send signs of life, twice per `watchdog_s`, and the status when it changes. They come
        from trio's loop, so a loop that hangs sends none. Returns at once without a manager.
        """
        if self._address is None:
            return
        while True:
            await trio.sleep(_STATUS_S if self.watchdog_s is None else self.watchdog_s / 2)
            parts = [] if self.watchdog_s is None else ["WATCHDOG=1"]
            if status is not None and (line := status()) != self._status:
                self._status = line
                parts.append(f"STATUS={line}")
            if parts:
                self._send(*parts)

    def _send(self, *assignments: str) -> None:
        if self._address is None:
            return
        name = f"\0{self._address[1:]}" if self._address[0] == "@" else self._address
        data = "\n".join(" ".join(one.splitlines()) for one in assignments).encode()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as end:
                end.sendto(data, name)
        except BlockingIOError:
            return  # the manager is busy; the next sign of life comes soon
        except OSError as error:
            say(f"herma: no service manager at {self._address}: {error}")
            self._address = None
