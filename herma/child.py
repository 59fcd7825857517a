"""A child process of `herma up`.

Owns its start, its end and the wait for it. Must not know what it runs. It is forked from the
main thread: Linux ties a child's parent-death signal to the thread that forked it, and
`trio.lowlevel.open_process` forks in a worker thread that ends after ten idle seconds.
"""

import subprocess
from typing import Final

import trio

STOP_S: Final = 15.0
"""A little more than the 10 s that gateway and workers take to drain."""


class Child:
    """One child at a time, started again as often as `run` is called."""

    def __init__(self, name: str, argv: list[str]) -> None:
        self.name = name
        self._argv = argv
        self._process: subprocess.Popen[bytes] | None = None

    async def run(self) -> int:
        """Start the child and wait for its end. Returns its exit status, negative for a signal.

        Cancelling asks the child to stop, waits up to 15 s and then kills it.
        """
        process = subprocess.Popen(self._argv, stdin=subprocess.DEVNULL)  # noqa: ASYNC220
        self._process = process
        try:
            return await _wait(process)
        finally:
            if process.returncode is None:
                with trio.CancelScope(shield=True):
                    await _stop(process)

    def hurry(self, number: int) -> None:
        """Pass a repeated signal on: a child that drains leaves at once."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)


async def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    with trio.move_on_after(STOP_S):
        await _wait(process)
    if process.poll() is None:
        process.kill()
        await _wait(process)


async def _wait(process: "subprocess.Popen[bytes]") -> int:
    return await trio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
