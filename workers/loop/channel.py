"""The engine's end of the socketpair to its supervisor.

Owns the descriptor, the order of writes, and the thread that waits for the end of file. The end of
file ends this process at once, also in the middle of a step: an engine without a supervisor would
only hold the GPU. Must not know the content of frames.

The loop reads the socket itself: a reading thread and a queue cost 0.1 ms per request, the time of
two wake-ups. Frames that come during a step wait in the socket, then at the supervisor.
"""

import os
import select
import signal
import socket
import threading
from collections.abc import Callable
from typing import Final, NoReturn, final

from protocol.errors import WireError
from workers.ipc import FrameDecoder, encode_frames

_RECEIVE_BYTES: Final = 1 << 18


def leave_at_once() -> None:
    """End this process and, if it leads its group (as under a supervisor), all processes of the
    group.
    """
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


@final
class EngineChannel:
    """Frames to and from the supervisor. `send` may be called from any thread, `take` from one."""

    def __init__(self, sock: socket.socket, on_gone: Callable[[], None] = leave_at_once) -> None:
        # A compiler that the engine starts must not keep the socket open after its death.
        sock.set_inheritable(False)
        sock.setblocking(True)
        self._socket = sock
        self._on_gone = on_gone
        self._send_lock = threading.Lock()
        self._decoder = FrameDecoder()
        threading.Thread(target=self._wait_for_end, name="supervisor's end", daemon=True).start()

    def take(self, timeout_s: float | None) -> list[tuple[int, bytes]]:
        """All frames that have arrived; waits for the first up to `timeout_s` (None: for ever)."""
        if timeout_s is None:
            # A frame may be long: the first bytes need not complete it.
            while not (frames := self._read(0)):
                pass
            return frames
        if timeout_s > 0:
            # A poll would round up to milliseconds.
            select.select((self._socket,), (), (), timeout_s)
        try:
            return self._read(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []

    def send(self, frames: list[tuple[int, bytes]]) -> None:
        """Write (link, payload) frames in order, in one go."""
        if not frames:
            return
        data = encode_frames(frames)
        with self._send_lock:
            try:
                self._socket.sendall(data)
            except OSError:
                return  # the supervisor is gone, which ends this process

    def _read(self, flags: int) -> list[tuple[int, bytes]]:
        """The frames that the bytes in the socket complete. Raises `BlockingIOError` if there are
        no bytes and `flags` say not to wait.
        """
        try:
            data = self._socket.recv(_RECEIVE_BYTES, flags)
            frames = self._decoder.feed(data)
            while len(data) == _RECEIVE_BYTES:
                try:
                    data = self._socket.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    break
                frames += self._decoder.feed(data)
        except BlockingIOError:
            raise
        except (OSError, WireError):
            self._leave()
        if not data:
            self._leave()
        return frames

    def _leave(self) -> NoReturn:
        self._on_gone()
        while True:  # `_on_gone` ends the process
            threading.Event().wait()

    def _wait_for_end(self) -> None:
        end = select.poll()
        end.register(self._socket, select.POLLRDHUP)
        end.poll()
        self._on_gone()
        self._socket.close()
