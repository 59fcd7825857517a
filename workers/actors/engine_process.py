"""One life of the engine process: spawn, carry frames both ways, ask, wait, kill.

Owns the child, its socketpair and its log lines. Must not know what frames say nor when to
restart. The child is spawned on the main thread with `subprocess.Popen`: Linux ties its
parent-death signal to the spawning thread, and trio's own helper would use a short-lived one.
"""

import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, final

import trio

from protocol.errors import WireError
from workers.core.fault import LAST_LINES, MAX_LINE_CHARS
from workers.core.framing import FrameDecoder, encode_frame
from workers.core.restart import shell_code

_RECEIVE_BYTES: Final = 1 << 18
_MAX_BACKLOG_BYTES: Final = 64 * 2**20
"""More than every gateway's own backlog of 8 MiB on a small fleet: over it the engine is stuck."""

_LOG_AFTER_EXIT_S: Final = 0.1
"""Its last lines are in the pipe already; only a stray child could keep the pipe open."""

_EXIT_AFTER_EOF_S: Final = 1.0
"""A process closes its sockets when it exits, so the exit follows at once or is not one."""


@final
class EngineProcess:
    """A spawned engine; `run` carries its frames and returns when it is gone.

    `on_frame(link, payload)` and `on_line(text)` are synchronous and must not block.
    """

    def __init__(
        self,
        name: str,
        on_frame: Callable[[int, bytes], None],
        on_line: Callable[[str], None],
    ) -> None:
        """Spawn. Raises `OSError` if the interpreter cannot be started."""
        self._on_frame = on_frame
        self._on_line = on_line
        self._backlog = bytearray()
        self._send_wakeup = trio.Event()
        self._log_ended = trio.Event()
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self.killed_for: str | None = None
        ours, theirs = socket.socketpair()
        self._socket = ours
        try:
            self._process = _spawn(name, theirs)
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
        """Hand a frame to the engine; never blocks. An engine that does not read is killed."""
        self._backlog += encode_frame(link, payload)
        self._flush()
        if self._backlog:
            self._send_wakeup.set()
        if len(self._backlog) > _MAX_BACKLOG_BYTES:
            self.kill(f"hung: {len(self._backlog)} bytes wait for the engine, which does not read")

    def kill(self, reason: str) -> None:
        """End the engine and all that it has started, now. The first reason counts."""
        if self.killed_for is None:
            self.killed_for = reason
        self._kill_group()

    async def run(self) -> int:
        """Carry frames and log lines until the engine is gone; its exit code as of a shell.

        Cancelling kills the engine.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read_log)
                nursery.start_soon(self._write_frames)
                await self._read_frames()
                await self._wait_exit()
                with trio.move_on_after(_LOG_AFTER_EXIT_S):
                    await self._log_ended.wait()
                nursery.cancel_scope.cancel()
        finally:
            # Before it is reaped: until then nobody else can get its number. A cancelled life
            # ends here, and so does what a dead engine left in its group.
            self._kill_group()
            with trio.CancelScope(shield=True):
                returncode = await trio.to_thread.run_sync(self._process.wait)
            self._socket.close()
        return shell_code(returncode)

    async def _wait_exit(self) -> None:
        """The end of file means that the engine exits; if it does not, it is made to."""
        with trio.move_on_after(_EXIT_AFTER_EOF_S):
            await trio.to_thread.run_sync(self._block_until_exit, abandon_on_cancel=True)
            return
        self.kill("the engine closed its channel but lived on")

    def _block_until_exit(self) -> None:
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)

    async def _read_frames(self) -> None:
        decoder = FrameDecoder()
        while True:
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._socket)
                continue
            except ConnectionResetError:
                return  # it died with frames of ours unread
            if not data:
                return
            try:
                frames = decoder.feed(data)
            except WireError as error:
                self.kill(f"the engine's stream is broken: {error}")
                return
            for link, payload in frames:
                self._on_frame(link, payload)
            await trio.lowlevel.checkpoint()

    async def _write_frames(self) -> None:
        while True:
            await self._send_wakeup.wait()
            self._send_wakeup = trio.Event()
            while self._backlog:
                await trio.lowlevel.wait_writable(self._socket)
                self._flush()

    def _flush(self) -> None:
        with suppress(BlockingIOError):
            try:
                while self._backlog:
                    sent = self._socket.send(memoryview(self._backlog)[:_RECEIVE_BYTES])
                    del self._backlog[:sent]
            except (BrokenPipeError, ConnectionResetError):
                self._backlog.clear()  # the reader sees the end of file and tells

    async def _read_log(self) -> None:
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
        if pending:
            self._keep(pending)
        self._log_ended.set()

    def _keep(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        if text:
            self.last_lines.append(text[:MAX_LINE_CHARS])
            self._on_line(text)

    def _kill_group(self) -> None:
        if self._process.returncode is None:  # not reaped yet, so the number is still its own
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


def _spawn(name: str, theirs: socket.socket) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "workers.engine", "--fd", str(theirs.fileno()), "--name", name]
    return subprocess.Popen(
        argv,
        pass_fds=(theirs.fileno(),),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,  # its own group, so that a kill takes its compilers along
    )
