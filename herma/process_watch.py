"""One of several gateway processes on a port, as their parent sees it.

Owns the judgement whether the process's event loop turns, the socket of its heartbeats, and its end
if the loop does not turn. Must not know HTTP, nor how and when a process is started again.

A process sends heartbeats from its event loop by the protocol of service managers
(`housekeeping/service_manager.py`), as it would to systemd.
"""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple, final

import trio

from herma.shared_port import SharedPort
from housekeeping.process_files import make_scratch, remove
from housekeeping.process_start import ProcessStart
from housekeeping.processes import is_stopped

BEAT_S: Final = 1.0
"""A process sends one datagram in this time."""
LOOK_S: Final = 0.2
SILENT_S: Final = 3.0
"""A process without a beat for this long gets no new connections."""
_STOPPED_LOOKS: Final = 5
"""Looks that find a process stopped (SIGSTOP) before it is ended."""
_TRACEBACK_S: Final = 0.2
_MAX_BEATS: Final = 64
"""Datagrams that one look reads; the kernel keeps some ten."""

Verdict = Literal["starting", "turns", "silent", "hangs", "stopped"]
_WHY: Final[dict[Verdict, str]] = {
    "hangs": "it hung: its event loop did not turn for {hang_s:g} s",
    "stopped": "it was stopped (SIGSTOP), and clients waited for it",
}


class Sight(NamedTuple):
    """The result of one look at a process. `passed_s` is the time since the last look by the
    parent's clock; for `waited_s` of it the process was ready to run and had no processor.
    """

    num_beats: int
    passed_s: float
    waited_s: float = 0.0
    is_stopped: bool = False


@final
class Heartbeats:
    """Judges one process. A late look counts nothing: after a suspend, after Ctrl-Z and `fg`, or on
    an overloaded machine. For a hang only the time counts in which the process had a processor or
    needed none.
    """

    def __init__(self, hang_s: float) -> None:
        self.verdict: Verdict = "starting"
        self._silent_s = 0.0
        self._hung_s = 0.0
        self._hang_s = hang_s
        self._num_stopped = 0

    def look(self, sight: Sight) -> Verdict:
        """The verdict after one look. Before the first beat the process is starting, and only a
        stop is judged.
        """
        is_late = sight.passed_s > 2 * LOOK_S
        self._num_stopped = self._num_stopped + 1 if sight.is_stopped and not is_late else 0
        if sight.num_beats:
            self._silent_s, self._hung_s, self.verdict = 0.0, 0.0, "turns"
        elif self.verdict != "starting" and not is_late:
            self._silent_s += sight.passed_s
            self._hung_s += max(0.0, sight.passed_s - sight.waited_s)
            self.verdict = self._of_silence()
        if self._num_stopped >= _STOPPED_LOOKS:
            self.verdict = "stopped"
        return self.verdict

    def _of_silence(self) -> Verdict:
        if self._hung_s >= self._hang_s:
            return "hangs"
        return "silent" if self._silent_s >= SILENT_S else "turns"


@final
class ProcessWatch:
    """Watches the processes of one index, one after another. `beats` receives their heartbeats. A
    process that hangs for `hang_s` or is stopped is ended.
    """

    def __init__(self, hang_s: float, beats: socket.socket, port: SharedPort) -> None:
        self._hang_s = hang_s
        self._beats = beats
        self._port = port
        self._num_replaced = 0
        self._why = ""

    @property
    def environ(self) -> dict[str, str]:
        """The environment of the next process."""
        return {
            **os.environ,
            "NOTIFY_SOCKET": self._beats.getsockname(),
            # A service sends two signs of life in the time of its watchdog.
            "WATCHDOG_USEC": str(int(2e6 * BEAT_S)),
            **ProcessStart(self._num_replaced, self._why).environ,
        }

    async def run(self, process: "subprocess.Popen[bytes]") -> None:
        """Look at the process until it must be ended, and end it."""
        self._why = ""
        self._num_beats()
        judge, pid = Heartbeats(self._hang_s), process.pid
        try:
            looked_at, waited_s = trio.current_time(), run_queue_s(pid)
            while judge.verdict not in _WHY:
                await trio.sleep(LOOK_S)
                now, waited = trio.current_time(), run_queue_s(pid)
                sight = Sight(
                    self._num_beats(), now - looked_at, waited - waited_s, is_stopped(pid)
                )
                looked_at, waited_s = now, waited
                self._place(pid, judge.look(sight))
            await self._end(process, judge.verdict)
        finally:
            self._port.forget(pid)

    def ended(self, how: str) -> str:
        """Note the end of the process. Returns its cause: `how`, unless this watch has ended it."""
        self._num_replaced += 1
        self._why = self._why or how
        return self._why

    def _place(self, pid: int, verdict: Verdict) -> None:
        if verdict == "turns":
            self._port.admit(pid)
        elif verdict != "starting":
            self._port.take_off(pid)

    async def _end(self, process: "subprocess.Popen[bytes]", verdict: Verdict) -> None:
        self._why = _WHY[verdict].format(hang_s=self._hang_s)
        if verdict == "hangs":
            process.send_signal(signal.SIGUSR2)  # the process prints its stack
            await trio.sleep(_TRACEBACK_S)
        process.kill()

    def _num_beats(self) -> int:
        """The number of heartbeats since the last look."""
        num_beats = 0
        with suppress(BlockingIOError):
            while num_beats < _MAX_BEATS:
                self._beats.recv(1)
                num_beats += 1
        return num_beats


def run_queue_s(pid: int) -> float:
    """The total time that the process's main thread, which has the event loop, was ready to run and
    had no processor. 0 if the kernel does not report it.
    """
    try:
        text = Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii")
    except OSError:
        return 0.0
    return int(text.split()[1]) / 1e9


@contextmanager
def watches(count: int, hang_s: float, port: int) -> Iterator[list[ProcessWatch]]:
    """A watch for each of `count` processes that share `port`."""
    folder, shared = make_scratch("beats"), SharedPort(port)
    try:
        with ExitStack() as stack:
            found: list[ProcessWatch] = []
            for index in range(count):
                beats = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                stack.enter_context(beats)
                beats.setblocking(False)
                beats.bind(str(folder / str(index)))
                found.append(ProcessWatch(hang_s, beats, shared))
            yield found
    finally:
        remove(folder)
