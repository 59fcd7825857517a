"""The sleep of a launched engine's processes by the driver's checkpoint: what any engine can do.

Owns the helper process that calls the driver, one for each step, and what it answers. Must not know
the driver's calls, nor whether the engine answers afterwards.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Final, final

import msgspec
import trio

from workers.bridge import checkpoint_helper
from workers.ipc import CHECKPOINT

LIBRARY: Final = "libcuda.so.1"
"""The driver's library, as the dynamic linker finds it."""
_ASK_S: Final = 20.0
"""A question takes the start of the driver, 0.2 s. A sleep and a wake take as long as they need:
the supervisor judges them by `stall_s`.
"""


class _Answer(msgspec.Struct):
    pids: tuple[Annotated[int, msgspec.Meta(ge=1)], ...]
    why: str


@final
class DriverSleep:
    """Puts the processes of the engine, whose first is `pid`, to sleep, and wakes them."""

    name = CHECKPOINT

    def __init__(self, pid: int, library: str = LIBRARY) -> None:
        self._pid = pid
        self._library = library
        self._asleep: tuple[int, ...] = ()

    async def refusal(self) -> str:
        """Why these processes cannot sleep so, as far as the driver says before; "" if they can."""
        with trio.move_on_after(_ASK_S):
            return (await self._helped("ask", self._pid)).why
        return f"the driver did not answer within {_ASK_S:g} s"

    async def sleep(self) -> str:
        """Why they do not sleep; "" if they do. One that cannot keeps all others awake."""
        answer = await self._helped("sleep", self._pid)
        self._asleep = () if answer.why else answer.pids
        return answer.why

    async def wake(self) -> str:
        """Why they do not go on; "" if they do."""
        answer = await self._helped("wake", *self._asleep)
        self._asleep = ()
        return answer.why

    async def _helped(self, action: str, *pids: int) -> _Answer:
        """The answer of a helper process. One that is cancelled is killed: the engine is to end."""
        command = [sys.executable, "-I", str(Path(checkpoint_helper.__file__)), self._library]
        try:
            done = await trio.run_process(
                [*command, action, *map(str, pids)],
                stdin=subprocess.DEVNULL,
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
        except OSError as error:
            return _Answer((), f"the helper process cannot start: {error.strerror}")
        try:
            return msgspec.json.decode(done.stdout, type=_Answer)
        except msgspec.MsgspecError:
            last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2][:200]
            ended = f"with exit code {done.returncode}"
            if done.returncode < 0:
                ended = f"by signal {-done.returncode}"
            return _Answer((), f"the helper process ended {ended} {last}".rstrip())
