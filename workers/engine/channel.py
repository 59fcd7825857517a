"""The engine's end of the socketpair to its supervisor.

Owns the descriptor, the thread that reads it and the order of writes. A supervisor that is gone
(end of file) ends this process at once: an engine without one would hold its GPU for nobody.
Must not know what frames say.
"""

import os
import queue
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, final

from protocol.errors import WireError
from workers.core.framing import FrameDecoder, encode_frame

_RECEIVE_BYTES: Final = 1 << 18
_MAX_FRAMES: Final = 4096
"""More than a worker's waiting list; when full, the socket pushes back on the supervisor."""


def leave_at_once() -> None:
    """End this process and, if it leads its group (as under a supervisor), all it has started."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


@final
class EngineChannel:
    """Frames to and from the supervisor. `send` may be called from any thread."""

    def __init__(self, sock: socket.socket, on_gone: Callable[[], None] = leave_at_once) -> None:
        # A compiler that the engine starts must not keep the socket open after its death.
        sock.set_inheritable(False)
        sock.setblocking(True)
        self._socket = sock
        self._on_gone = on_gone
        self._send_lock = threading.Lock()
        self._inbox: queue.Queue[tuple[int, bytes]] = queue.Queue(_MAX_FRAMES)
        threading.Thread(target=self._read, name="supervisor reader", daemon=True).start()

    def take(self, timeout_s: float | None) -> list[tuple[int, bytes]]:
        """All frames that are there; waits for the first up to `timeout_s` (None: for ever)."""
        frames: list[tuple[int, bytes]] = []
        with suppress(queue.Empty):
            frames.append(self._inbox.get(timeout_s != 0.0, timeout_s))
            while True:
                frames.append(self._inbox.get_nowait())
        return frames

    def send(self, frames: list[tuple[int, bytes]]) -> None:
        """Write (link, payload) frames in order, in one go."""
        if not frames:
            return
        data = b"".join(encode_frame(link, payload) for link, payload in frames)
        # A send fails only when the other end is gone, and then the reader ends this process.
        with self._send_lock, suppress(OSError):
            self._socket.sendall(data)

    def _read(self) -> None:
        decoder = FrameDecoder()
        with suppress(ConnectionResetError, WireError):
            while data := self._socket.recv(_RECEIVE_BYTES):
                for frame in decoder.feed(data):
                    self._inbox.put(frame)
        self._on_gone()
        self._socket.close()
