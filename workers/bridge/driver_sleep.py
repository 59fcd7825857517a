"""The sleep of a launched engine's processes by the driver's checkpoint: what any engine can do.

Owns the helper process that calls the driver, one for each engine, and what it answers. Must not
know the driver's calls, nor whether the engine answers afterwards.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Final, final

import msgspec
import trio

from protocol.reading import FAULTS
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
    seconds: float = 0.0


@final
class DriverSleep:
    """Puts the processes of the engine, whose first is `pid`, to sleep, and wakes them. `close` it.

    Where the driver can do it the helper stays between the calls: a wake would otherwise wait for
    the start of Python and of the driver. `note` says what its last call took.
    """

    name = CHECKPOINT

    def __init__(self, pid: int, library: str = LIBRARY) -> None:
        self._pid = pid
        self._library = library
        self.note = ""
        self._asleep: tuple[int, ...] = ()
        self._helper: trio.Process | None = None

    async def refusal(self) -> str:
        """Why these processes cannot sleep by a checkpoint, as far as the driver says
        beforehand; "" if they can.
        """
        with trio.move_on_after(_ASK_S):
            if why := (await self._helped("ask", self._pid)).why:
                await self.close()
            return why
        return f"the driver did not answer within {_ASK_S:g} s"

    async def sleep(self) -> str:
        """Put the processes to sleep; returns why they do not sleep, "" if they do. If one
        process cannot sleep, all stay awake.
        """
        answer = await self._helped("sleep", self._pid)
        self._asleep = () if answer.why else answer.pids
        self.note = _note_of(answer)
        return answer.why

    async def wake(self) -> str:
        """Wake the processes; returns why they do not go on, "" if they do."""
        answer = await self._helped("wake", *self._asleep)
        self._asleep = ()
        self.note = _note_of(answer)
        return answer.why

    async def close(self) -> None:
        """End the helper process."""
        if (helper := self._helper) is None:
            return
        self._helper = None
        helper.kill()  # a call of the driver may hold the helper for long
        with trio.CancelScope(shield=True):
            for pipe in (helper.stdin, helper.stdout):
                assert pipe is not None
                await pipe.aclose()
            await helper.wait()

    async def _helped(self, action: str, *pids: int) -> _Answer:
        """The answer of the helper process, started if there is none. One that is cancelled, or
        that breaks, is ended: the engine is to end, or another helper follows.
        """
        try:
            if self._helper is not None and self._helper.returncode is not None:
                await self.close()  # the helper has died between the calls
            if self._helper is None:
                self._helper = await self._started()
            return await _asked(self._helper, " ".join([action, *map(str, pids)]))
        except OSError as error:
            return _Answer((), f"the helper process cannot start: {error.strerror}")
        except _NoAnswerError as error:
            await self.close()
            return _Answer((), str(error))
        except trio.Cancelled:
            await self.close()
            raise

    async def _started(self) -> trio.Process:
        command = [sys.executable, "-I", str(Path(checkpoint_helper.__file__)), self._library]
        return await trio.lowlevel.open_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )


def _note_of(answer: _Answer) -> str:
    return "" if answer.why else f"the driver's calls took {answer.seconds:.2f} s"


class _NoAnswerError(Exception):
    """The helper process has ended, or answers something else; the words say what."""


async def _asked(helper: trio.Process, line: str) -> _Answer:
    """The helper's answer to a line. Raises `_NoAnswerError`."""
    assert helper.stdin is not None
    assert helper.stdout is not None
    said = bytearray()
    try:
        await helper.stdin.send_all(f"{line}\n".encode())
        while not said.endswith(b"\n"):
            if not (part := await helper.stdout.receive_some()):
                break
            said += part
    except trio.BrokenResourceError:
        pass  # the helper has ended, and its exit code says how
    if said.endswith(b"\n"):
        try:
            return msgspec.json.decode(said, type=_Answer)
        except FAULTS as error:
            raise _NoAnswerError(f"the helper process answers {bytes(said[:200])!r}") from error
    code = await helper.wait()
    ended = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    raise _NoAnswerError(f"the helper process ended {ended}")
