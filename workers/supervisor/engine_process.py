"""One life of the engine process: spawn, carry frames both ways, kill, reap.

Owns the child, the guard of its process group (`kill_orphaned_group.py`), its socketpair and its
log lines. Must not know the content of frames, nor when to restart. The child is spawned on the
main thread with `subprocess.Popen`: Linux ties a parent-death signal to the spawning thread, and
trio's own helper would use a short-lived one.
"""

import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, final

import trio

from housekeeping.own_code import module_argv
from housekeeping.processes import is_exiting, stat_of
from protocol.errors import WireError
from workers.ipc import FrameDecoder, encode_frame
from workers.supervisor.diagnosis import KEPT_LINES, MAX_LINE_CHARS, clean_line, shell_code

NATIVE_ENGINE: Final = tuple(module_argv("workers.engine"))

_RECEIVE_BYTES: Final = 1 << 18
_MAX_BACKLOG_BYTES: Final = 64 * 2**20
"""More than every gateway's backlog of 8 MiB on a small fleet. Above it the engine is stuck."""

_LOG_AFTER_EXIT_S: Final = 0.1
"""How long the log is read after the exit. The last lines are in the pipe already; only a surviving
child could keep the pipe open.
"""

_EXIT_CODE_S: Final = 0.25
"""The report to the gateways waits this long for the exit code. A process with a full GPU may need
seconds to die, and its work must move earlier.
"""

_REAP_WHEN_CANCELLED_S: Final = 2.0

_PAUSED_CHECK_S: Final = 0.1
"""How often a paused engine is checked: the report of its death must not wait for slow gateways."""


_SCRIPT: Final = Path(__file__).with_name("kill_orphaned_group.py")


@final
class Guard:
    """Kills one process group if the supervisor dies, until dismissed."""

    def __init__(self, group: int) -> None:
        """Start the guard's process. Raises `OSError`."""
        self._process = subprocess.Popen(
            # Isolated and without site-packages: the guard does not need them, and starts sooner.
            [sys.executable, "-I", "-S", str(_SCRIPT), str(group)],
            # Close-on-exec in this process, so that no other child keeps the pipe open.
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a signal to our own group must not end the guard
        )

    def dismiss(self) -> None:
        """End the guard. Call it before the engine is reaped: until then the group's number cannot
        be reused.
        """
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


@final
class EngineProcess:
    """A spawned engine. `run` carries its frames until the channel ends; `reap` waits until the
    process has ended.

    `on_frames` receives the (link, payload) pairs of one read, `on_line` a log line. Both are
    synchronous and must not block.
    """

    def __init__(
        self,
        name: str,
        on_frames: Callable[[list[tuple[int, bytes]]], None],
        on_line: Callable[[str], None],
        *,
        command: Sequence[str] = NATIVE_ENGINE,
        environ: Mapping[str, str],
        fds: Sequence[int] = (),
    ) -> None:
        """Spawn `command` with the options of an engine; it inherits `fds`. Raises `OSError`."""
        self._on_frames = on_frames
        self._on_line = on_line
        self._put: list[bytes] = []
        self._backlog = bytearray()
        self._send_wakeup = trio.Event()
        self._frames = trio.CancelScope()
        self._resumed: trio.Event | None = None
        self.last_lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.killed_for: str | None = None
        ours, theirs = socket.socketpair()
        self._socket = ours
        try:
            self._process = _spawn(command, name, theirs, environ, fds)
            self._guard = _guard(self._process)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._socket.setblocking(False)

    @property
    def pid(self) -> int:
        """The engine's process id, which is also its group's."""
        return self._process.pid

    def send(self, link: int, payload: bytes) -> None:
        """Send a frame to the engine now."""
        self.put(link, payload)
        self.flush()

    def put(self, link: int, payload: bytes) -> None:
        """Queue a frame for the next `flush`."""
        self._put.append(encode_frame(link, payload))

    def flush(self) -> None:
        """Write the queued frames in one piece; never blocks. Kills an engine that does not read;
        drops data for a dead one.
        """
        if not self._put:
            return
        data = b"".join(self._put)
        self._put.clear()
        if self._process.returncode is not None:
            return
        if not self._backlog:
            data = data[self._write(data) :]
        if not data:
            return
        self._backlog += data
        self._send_wakeup.set()
        if len(self._backlog) > _MAX_BACKLOG_BYTES:
            self.kill(f"hung: {len(self._backlog)} bytes wait for the engine, which does not read")

    @property
    def is_paused(self) -> bool:
        """Whether the engine's frames stay in the channel for now."""
        return self._resumed is not None

    def pause(self, is_paused: bool) -> None:
        """Leave the engine's frames in the channel, so that the engine waits with its next step; or
        read on.
        """
        if is_paused and self._resumed is None:
            self._resumed = trio.Event()
        elif not is_paused and self._resumed is not None:
            self._resumed.set()
            self._resumed = None

    def terminate(self) -> None:
        """Send SIGTERM to the engine's process group."""
        self._signal_group(signal.SIGTERM)

    def kill(self, reason: str) -> None:
        """Kill the engine's process group; ignore its later frames. The first reason is kept."""
        if self.killed_for is None:
            self.killed_for = reason
        self._frames.cancel()
        self._signal_group(signal.SIGKILL)

    async def run(self) -> int | None:
        """Carry frames and log lines until the channel ends or the engine is killed. Returns the
        exit code as in a shell, None if the engine needs longer than 0.25 s to die.

        Cancelling kills the engine.
        """
        log_ended = trio.Event()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read_log, log_ended)
                nursery.start_soon(self._write_frames)
                with self._frames:
                    await self._read_frames()
                exit_code = await self._exit_code()
                with trio.move_on_after(_LOG_AFTER_EXIT_S):
                    await log_ended.wait()
                nursery.cancel_scope.cancel()
            return exit_code
        finally:
            # Kills a cancelled engine, and the processes that a dead engine left in its group.
            self._signal_group(signal.SIGKILL)

    async def reap(self) -> int:
        """Wait until the process has ended, without a bound. Returns its exit code as in a shell.

        When cancelled, it waits two seconds more; a process that hangs in the kernel is then left
        behind.
        """
        try:
            return await trio.to_thread.run_sync(self._block_until_exit, abandon_on_cancel=True)
        finally:
            self._signal_group(signal.SIGKILL)
            with trio.CancelScope(shield=True), trio.move_on_after(_REAP_WHEN_CANCELLED_S):
                await trio.to_thread.run_sync(self._block_until_exit, abandon_on_cancel=True)
            self._guard.dismiss()
            self._process.poll()
            self._socket.close()

    async def _exit_code(self) -> int | None:
        with trio.move_on_after(_EXIT_CODE_S):
            return await trio.to_thread.run_sync(self._block_until_exit, abandon_on_cancel=True)
        if self.killed_for is None and not is_exiting(stat_of(self._process.pid)):
            self.kill("the engine closed its channel but lived on")
        return None

    def _block_until_exit(self) -> int:
        """The exit code as in a shell, without reaping: the process id cannot be reused yet."""
        done = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        assert done is not None  # only WNOHANG may return nothing
        is_exit = done.si_code == os.CLD_EXITED
        return shell_code(done.si_status if is_exit else -done.si_status)

    async def _read_frames(self) -> None:
        decoder = FrameDecoder()
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                continue
            except ConnectionResetError:
                return  # the engine died before it had read all our frames
            if not data:
                return
            try:
                frames = decoder.feed(data)
            except WireError as error:
                self.kill(f"the engine's stream is broken: {error}")
                return
            self._on_frames(frames)
            if self._resumed is not None:
                await self._wait_resumed()

    async def _wait_resumed(self) -> None:
        """Wait while the engine is paused and alive, without reading."""
        while self._resumed is not None and not self._has_exited():
            with trio.move_on_after(_PAUSED_CHECK_S):
                await self._resumed.wait()

    def _has_exited(self) -> bool:
        options = os.WEXITED | os.WNOWAIT | os.WNOHANG
        return os.waitid(os.P_PID, self._process.pid, options) is not None

    async def _write_frames(self) -> None:
        while True:
            await self._send_wakeup.wait()
            self._send_wakeup = trio.Event()
            while self._backlog:
                await trio.lowlevel.wait_writable(self._socket)
                self._write_backlog()

    def _write_backlog(self) -> None:
        while self._backlog:
            num_written = self._write(self._backlog[:_RECEIVE_BYTES])
            if num_written == 0:
                return
            del self._backlog[:num_written]

    def _write(self, data: bytes | bytearray) -> int:
        """The number of bytes that need no further write: written, or lost with the engine."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except (BrokenPipeError, ConnectionResetError):
            return len(data)  # the reader sees the end of file

    async def _read_log(self, ended: trio.Event) -> None:
        assert self._process.stdout is not None
        stream = trio.lowlevel.FdStream(os.dup(self._process.stdout.fileno()))
        self._process.stdout.close()
        pending = b""
        async with stream:
            async for data in stream:
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    self._keep(line)
                if len(pending) > MAX_LINE_CHARS:
                    self._keep(pending)
                    pending = b""
        self._keep(pending)
        ended.set()

    def _keep(self, line: bytes) -> None:
        if text := clean_line(line):
            self.last_lines.append(text)
            self._on_line(text)

    def _signal_group(self, number: int) -> None:
        if self._process.returncode is None:  # not reaped, so its id cannot have been reused
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def _spawn(
    command: Sequence[str],
    name: str,
    theirs: socket.socket,
    environ: Mapping[str, str],
    fds: Sequence[int],
) -> "subprocess.Popen[bytes]":
    options = ("--fd", str(theirs.fileno()), "--name", name, "--parent", str(os.getpid()))
    return subprocess.Popen(
        [*command, *options],
        pass_fds=(theirs.fileno(), *fds),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,  # its own group, so that a kill also ends its compilers
    )


def _guard(process: "subprocess.Popen[bytes]") -> Guard:
    try:
        return Guard(process.pid)
    except OSError:
        process.kill()
        process.wait()
        raise
