"""A child process of a command of Herma.

Owns its start, its end, what it says on its standard output and the wait for it. Must not know
what it runs. It is forked from the main thread: Linux ties a child's parent-death signal to the
thread that forked it, and `trio.lowlevel.open_process` forks in a worker thread that ends after
ten idle seconds.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Final

import trio

GRACE_S: Final = 5.0
"""What a process may take longer to end than it takes to drain."""
_MAX_LINE_BYTES: Final = 4096


def herma_argv(words: list[str]) -> list[str]:
    """How a child runs `herma WORDS`; it ends with this process."""
    return [sys.executable, "-m", "herma", "--parent", str(os.getpid()), *words]


class Child:
    """One child at a time, started again as often as `run` is called. `stop_s`: how long it may
    take to stop. `on_line` gets the lines of its standard output, which is ours without.
    """

    def __init__(
        self,
        name: str,
        argv: list[str],
        *,
        stop_s: float,
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        self.name = name
        self._argv = argv
        self._stop_s = stop_s
        self._on_line = on_line
        self._process: subprocess.Popen[bytes] | None = None

    async def run(self) -> int:
        """Start the child and wait for its end. Returns its exit status, negative for a signal.

        Cancelling asks the child to stop, waits up to `stop_s` and then kills it.
        """
        out = None if self._on_line is None else subprocess.PIPE
        process = subprocess.Popen(self._argv, stdin=subprocess.DEVNULL, stdout=out)  # noqa: ASYNC220
        self._process = process
        with process:
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._listen, process)
                    status = await _wait(process)
                    nursery.cancel_scope.cancel()
            finally:
                if process.returncode is None:
                    with trio.CancelScope(shield=True):
                        await self._stop(process)
        return status

    def hurry(self) -> None:
        """Have a child that is stopping, and drains, leave at once: by the signal that told it to
        stop, for only the same again hurries.
        """
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()

    async def _listen(self, process: "subprocess.Popen[bytes]") -> None:
        if self._on_line is None or process.stdout is None:
            return
        async with trio.lowlevel.FdStream(os.dup(process.stdout.fileno())) as stream:
            rest = b""
            async for data in stream:
                *lines, rest = (rest + data).split(b"\n")
                rest = rest[-_MAX_LINE_BYTES:]
                for line in lines:
                    self._on_line(line.decode(errors="replace"))

    async def _stop(self, process: "subprocess.Popen[bytes]") -> None:
        process.terminate()
        with trio.move_on_after(self._stop_s):
            await _wait(process)
        if process.poll() is None:
            process.kill()
            await _wait(process)


async def _wait(process: "subprocess.Popen[bytes]") -> int:
    return await trio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
