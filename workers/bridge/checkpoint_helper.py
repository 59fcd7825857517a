"""Puts the processes of a tree to sleep by the driver's checkpoint, and wakes them: a program.

`python checkpoint_helper.py LIBRARY` reads lines from its input until that ends: `ask PID` or
`sleep PID`, where PID is the root of a tree of processes, or `wake PID...`, with the processes that
`sleep` has named. For each it prints one line of JSON: `pids`, the processes that use a card,
`why`, empty if all went well, and `seconds`, the time of the calls.

Owns the calls of the CUDA driver API (cuCheckpointProcess*, driver 570 and newer) and what undoes
them. A process of its own calls them, because a driver that fails may end or block its caller. It
lives as long as its caller wants, because the driver takes some tenths of a second to start.
Imports the standard library alone. Must not know engines or workers.

The order is the driver's: lock (no more calls of CUDA begin; those that run end, or the lock times
out), checkpoint (the device's memory moves into the process's own), restore, unlock. All processes
of a tree are locked before the first is checkpointed, so that none waits for one that is gone.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

_LOCK_MS: Final = 10_000
"""No request runs when an engine falls asleep, so nothing should hold a lock up."""
_ARGS_BYTES: Final = 64
"""The size of the driver's structures of arguments; zeros are their defaults."""
_FIRST_CUDA: Final = 12_080
_INTEGRATED: Final = 18
"""CU_DEVICE_ATTRIBUTE_INTEGRATED: the card has no memory of its own."""

RUNNING, LOCKED, CHECKPOINTED, FAILED = range(4)
"""CUprocessState."""

_OUT_OF_MEMORY: Final = 2
_ILLEGAL_STATE: Final = 401
_NOT_READY: Final = 600
_NOT_PERMITTED: Final = 800
_NOT_SUPPORTED: Final = 801
_OPERATING_SYSTEM: Final = 304
_NO_PERMISSION: Final = (
    "the driver does not permit it: a process may be traced by its own user, or with CAP_SYS_PTRACE"
)
_WORDS: Final = {
    _OUT_OF_MEMORY: "the driver found no memory for it",
    _ILLEGAL_STATE: "another checkpoint of the process is under way",
    _NOT_READY: "calls of CUDA have not ended in time",
    _NOT_PERMITTED: _NO_PERMISSION,
    _OPERATING_SYSTEM: _NO_PERMISSION,
    _NOT_SUPPORTED: "the driver refuses such memory: it is shared between processes (CUDA IPC, as "
    "between several ranks), or managed",
}


class Driver(Protocol):
    """The driver's calls. Each returns a CUresult, 0 if it went well."""

    def state(self, pid: int) -> tuple[int, int]:
        """The result of the call, and the state of the process."""
        ...

    def lock(self, pid: int) -> int: ...
    def checkpoint(self, pid: int) -> int: ...
    def restore(self, pid: int) -> int: ...
    def unlock(self, pid: int) -> int: ...


class RefusedError(Exception):
    """The words say why a process does not sleep or wake."""


class CudaDriver:
    """The driver in a shared library. Raises `RefusedError` if it cannot make checkpoints here."""

    def __init__(self, library: str) -> None:
        try:
            self._cuda = ctypes.CDLL(library)
        except OSError as error:
            raise RefusedError(f"there is no CUDA driver here ({error})") from error
        if not hasattr(self._cuda, "cuCheckpointProcessLock"):
            raise RefusedError(
                f"the driver has no checkpoint{self._version()}: 570 and newer have it"
            )
        if code := self._cuda.cuInit(0):
            raise RefusedError(f"the driver does not start (CUDA error {code})")
        if self._is_integrated():
            raise RefusedError("the card shares the host's memory: nothing of it would become free")

    def state(self, pid: int) -> tuple[int, int]:
        found = ctypes.c_int(-1)
        code: int = self._cuda.cuCheckpointProcessGetState(ctypes.c_int(pid), ctypes.byref(found))
        return code, found.value

    def lock(self, pid: int) -> int:
        return self._call("Lock", pid, _LOCK_MS)

    def checkpoint(self, pid: int) -> int:
        return self._call("Checkpoint", pid)

    def restore(self, pid: int) -> int:
        return self._call("Restore", pid)

    def unlock(self, pid: int) -> int:
        return self._call("Unlock", pid)

    def _call(self, name: str, pid: int, first: int = 0) -> int:
        arguments = (ctypes.c_uint * (_ARGS_BYTES // 4))(first)
        function = getattr(self._cuda, f"cuCheckpointProcess{name}")
        code: int = function(ctypes.c_int(pid), ctypes.byref(arguments))
        return code

    def _version(self) -> str:
        found = ctypes.c_int()
        if self._cuda.cuDriverGetVersion(ctypes.byref(found)) or found.value >= _FIRST_CUDA:
            return ""
        return f" (it speaks CUDA {found.value // 1000}.{found.value % 1000 // 10})"

    def _is_integrated(self) -> bool:
        """Whether any card here shares the host's memory."""
        count = ctypes.c_int()
        if self._cuda.cuDeviceGetCount(ctypes.byref(count)):
            return False
        for number in range(count.value):
            found = ctypes.c_int()
            asked = ctypes.byref(found), ctypes.c_int(_INTEGRATED), ctypes.c_int(number)
            if self._cuda.cuDeviceGetAttribute(*asked) == 0 and found.value:
                return True
        return False


def users_of_cards(driver: Driver, pids: Sequence[int]) -> list[int]:
    """The processes of `pids` that use a card. Raises `RefusedError` if there is none, or if one of
    them is not running as usual.
    """
    found: list[int] = []
    for pid in pids:
        code, state = driver.state(pid)
        if code in (_NOT_PERMITTED, _NOT_SUPPORTED):
            raise RefusedError(_why(code))
        if code:
            continue  # a process without CUDA
        if state != RUNNING:
            raise RefusedError(f"process {pid} is locked or asleep by another")
        found.append(pid)
    if not found:
        raise RefusedError("the driver knows none of its processes: it uses no card")
    return found


def put_to_sleep(driver: Driver, pids: Sequence[int]) -> None:
    """Move the memory of these processes off the card. If one cannot, none does, and
    `RefusedError` says why.
    """
    touched: list[int] = []
    try:
        for pid in pids:
            touched.append(pid)
            _do(driver.lock, pid, "lock")
        for pid in pids:
            _do(driver.checkpoint, pid, "checkpoint")
    except RefusedError as refusal:
        undone = ""
        try:
            wake(driver, touched)
        except RefusedError as error:
            undone = f", and that could not be undone ({error})"
        raise RefusedError(f"{refusal}{undone}") from refusal


def wake(driver: Driver, pids: Sequence[int]) -> None:
    """Let these processes take their memory back and go on, in whichever state they are. Raises
    `RefusedError` with the first reason; the others are woken all the same.
    """
    reasons: list[str] = []
    for pid in pids:
        try:
            _wake(driver, pid)
        except RefusedError as refusal:
            reasons.append(str(refusal))
    if reasons:
        raise RefusedError(reasons[0])


def _wake(driver: Driver, pid: int) -> None:
    code, state = driver.state(pid)
    if code:
        raise RefusedError(f"process {pid} is gone ({_why(code)})")
    if state == FAILED:
        raise RefusedError(f"the driver says that process {pid} has failed")
    if state == CHECKPOINTED:
        _do(driver.restore, pid, "restore")
        state = LOCKED
    if state == LOCKED:
        _do(driver.unlock, pid, "unlock")


def _do(call: Callable[[int], int], pid: int, name: str) -> None:
    if code := call(pid):
        raise RefusedError(f"{name} of process {pid}: {_why(code)}")


def _why(code: int) -> str:
    words = _WORDS.get(code)
    return f"CUDA error {code}" if words is None else f"{words} (CUDA error {code})"


def tree_of(root: int, proc: Path = Path("/proc")) -> list[int]:
    """The process and all below it, parents first."""
    children: dict[int, list[int]] = {}
    for folder in proc.iterdir():
        if folder.name.isdecimal():
            with suppress(OSError, ValueError, IndexError):
                stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
                parent = int(stat.rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(folder.name))
    found = [root]
    for one in found:
        found += sorted(children.get(one, ()))
    return found


class _NoDriver:
    """A `Driver` for a host whose driver cannot make checkpoints: each call raises
    `RefusedError` with the reason.
    """

    def __init__(self, why: str) -> None:
        self._why = why

    def state(self, pid: int) -> tuple[int, int]:  # noqa: ARG002
        raise RefusedError(self._why)

    def lock(self, pid: int) -> int:  # noqa: ARG002
        raise RefusedError(self._why)

    checkpoint = restore = unlock = lock


def answered(driver: Driver, action: str, pids: Sequence[int]) -> dict[str, object]:
    """Carry out one line. Returns the answer."""
    begun, why = time.perf_counter(), ""
    try:
        if action == "wake":
            wake(driver, pids)
        else:
            pids = users_of_cards(driver, tree_of(pids[0]))
            if action == "sleep":
                put_to_sleep(driver, pids)
    except RefusedError as refusal:
        why = str(refusal)
    return {"pids": pids, "why": why, "seconds": time.perf_counter() - begun}


def main(arguments: Sequence[str], lines: Iterable[str]) -> None:
    """Run the program."""
    (library,) = arguments
    driver: Driver
    try:
        driver = CudaDriver(library)
    except RefusedError as refusal:
        driver = _NoDriver(str(refusal))
    for line in lines:
        action, *named = line.split()
        print(json.dumps(answered(driver, action, [int(each) for each in named])), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:], sys.stdin)
