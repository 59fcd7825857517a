"""The driver's checkpoint of a process, as on-demand workers use it for engines of others.

Owns the measurement. `python -m benchmarks.engine.checkpoint` starts a process with memory on the
card, a captured graph and weights that it multiplies with, and puts it to sleep and wakes it by the
helper of `workers/bridge`: seconds, memory of the card and of the host, and whether it computes the
same afterwards; beside it the end and a new start of the process. Then what the driver refuses:
memory shared between two processes, and managed memory. `--pid` measures an engine that runs
already, with all below it; what it answers is asked by somebody else. Must not know the driver's
calls.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final

import trio

from benchmarks.machine import describe_machine
from housekeeping.sizes import bytes_text
from workers.bridge.driver_sleep import LIBRARY, DriverSleep
from workers.supervisor.card_memory import resident_bytes, tree_of

_MIB: Final = 2**20
_HEAD: Final = (
    "| round | asleep, s | awake, s | card asleep, MiB | host asleep | the same after |\n"
    "|---|---|---|---|---|---|"
)
_SUBJECT: Final = """
import sys, torch
torch.manual_seed(1)
held = [torch.randn(2**28 // 2, dtype=torch.bfloat16, device="cuda") for _ in range({quarters})]
row = torch.randn(8, 2048, dtype=torch.bfloat16, device="cuda")
weights = [torch.randn(2048, 2048, dtype=torch.bfloat16, device="cuda") for _ in range(72)]
def step():
    now = row
    for each in weights:
        now = torch.nn.functional.normalize(now @ each)
    return now
step()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = step()
{extra}
print("ready", flush=True)
for line in sys.stdin:
    graph.replay()
    torch.cuda.synchronize()
    total = sum(int(each[:4096].view(torch.int16).long().sum()) for each in held)
    print(total, int(out.view(torch.int16).long().sum()), flush=True)
"""
_SHARES: Final = """
import pickle, subprocess
from torch.multiprocessing.reductions import reduce_tensor
code = (
    "import pickle, sys; build, args = pickle.load(sys.stdin.buffer); there = build(*args); "
    "there.add_(0); print(1, flush=True); import time; time.sleep(600)"
)
peer = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
pickle.dump(reduce_tensor(held[0]), peer.stdin)
peer.stdin.close()
assert peer.stdout.readline() == b"1\\n"
"""
_MANAGED: Final = """
import ctypes
runtime = ctypes.CDLL("libcuda.so.1")
pointer = ctypes.c_uint64()
code = runtime.cuMemAllocManaged(ctypes.byref(pointer), ctypes.c_size_t(2**20), 1)
assert code == 0, code
"""


class Subject:
    """A process that holds `gib` of the card and multiplies when it is asked."""

    def __init__(self, gib: float, extra: str = "") -> None:
        code = _SUBJECT.format(quarters=round(4 * gib), extra=extra)
        begun = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if self._line() != "ready":
            raise SystemExit("the process did not start: see its error above")
        self.start_s = time.perf_counter() - begun

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def answer(self) -> str:
        """The result of its computation now."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._line()

    def end(self) -> None:
        """End it, and its peer."""
        for pid in reversed(tree_of(self.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def subject(gib: float, extra: str = "") -> Iterator[Subject]:
    """A subject, ended afterwards."""
    one = Subject(gib, extra)
    try:
        yield one
    finally:
        one.end()


def used_mib() -> int:
    """The memory in use on the first card."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return int(done.stdout.split()[0])


def drained_s(idle: int) -> float:
    """The seconds until the card has no more than `idle` MiB in use, at most 30."""
    begun = time.perf_counter()
    while used_mib() > idle + 16 and time.perf_counter() - begun < 30:
        time.sleep(0.02)
    return time.perf_counter() - begun


async def switches(one: Subject | None, sleep: DriverSleep, pid: int, times: int) -> bool:
    """Sleep and wake `times` times; print a row for each. Returns whether all went well."""
    before = None if one is None else one.answer()
    for number in range(1, times + 1):
        asleep_s, why = await _timed(sleep.sleep)
        if why:
            print(f"it does not sleep: {why}", flush=True)
            return False
        card, host = used_mib(), resident_bytes(pid)
        awake_s, why = await _timed(sleep.wake)
        if why:
            print(f"it does not wake: {why}", flush=True)
            return False
        same = "not asked" if one is None else "yes" if one.answer() == before else "NO"
        figures = f"{asleep_s:.2f} | {awake_s:.2f} | {card} | {bytes_text(host)} | {same}"
        print(f"| {number} | {figures} |", flush=True)
        if same == "NO":
            return False
    return True


async def _timed(call: Callable[[], Awaitable[str]]) -> tuple[float, str]:
    begun = time.perf_counter()
    why = await call()
    return time.perf_counter() - begun, why


@asynccontextmanager
async def sleep_of(pid: int, library: str) -> AsyncIterator[DriverSleep]:
    """The sleep of a process and all below it, whose helper has started."""
    sleep = DriverSleep(pid, library)
    try:
        print(f"process {pid}: {await sleep.refusal() or 'can'}")
        yield sleep
    finally:
        await sleep.close()


async def refusals(library: str) -> None:
    """What the driver says of memory that it does not move."""
    for name, extra in (("memory of a peer too (IPC)", _SHARES), ("managed memory", _MANAGED)):
        with subject(0.25, extra) as one:
            before = one.answer()
            async with sleep_of(one.pid, library) as sleep:
                why = await sleep.sleep()
                if not why:
                    why = f"none; awake again: {await sleep.wake() or 'yes'}"
            same = one.answer() == before
            print(f"refusal for {name}: {why}; computes the same afterwards: {same}", flush=True)


async def measured(arguments: argparse.Namespace) -> bool:
    """Measure and print. Returns whether all went well."""
    library, times = arguments.library, arguments.times
    if arguments.pid is not None:
        async with sleep_of(arguments.pid, library) as sleep:
            print(_HEAD)
            return await switches(None, sleep, arguments.pid, times)
    idle = used_mib()
    with subject(arguments.gib) as one:
        held = f"{used_mib() - idle} MiB of the card (idle: {idle} MiB)"
        print(f"a process with {held}, started in {one.start_s:.1f} s")
        async with sleep_of(one.pid, library) as sleep:
            print(_HEAD)
            is_well = await switches(one, sleep, one.pid, times)
    print(f"ended instead: its memory is free within {drained_s(idle):.2f} s", flush=True)
    with subject(arguments.gib) as one:
        print(f"and started again: {one.start_s:.1f} s, without weights to read", flush=True)
    await refusals(library)
    return is_well


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.checkpoint")
    parser.add_argument("--gib", type=float, default=19.5, help="of the card; default: 19.5")
    parser.add_argument("--times", type=int, default=10, help="switches; default: 10")
    parser.add_argument("--pid", type=int, help="an engine that runs, instead of one of ours")
    parser.add_argument("--library", default=LIBRARY, help=f"the driver's; default: {LIBRARY}")
    arguments = parser.parse_args()
    machine = describe_machine(("torch",))
    print("; ".join(machine.values()))
    card = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    print(subprocess.run(card, stdout=subprocess.PIPE, text=True, check=True).stdout.strip())
    return 0 if trio.run(measured, arguments) else 1


if __name__ == "__main__":
    sys.exit(main())
