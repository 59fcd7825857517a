"""Asking nvidia-smi: a program of that name on the PATH, which prints what the test recorded."""

import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from protocol.control_messages import Answer, AskRestart, Done, decode_answer, encode_line
from protocol.messages import Fault
from tests.fakes.gateway_end import GatewayEnd, open_gateway_end
from tests.fakes.moody import moody_worker
from tests.fakes.worker_process import BOUND_S, WorkerProcess
from workers.supervisor.gpu_memory import GpuMemory

SCRIPT = """#!/bin/sh
echo "$@" >> {folder}/asked
case "$1" in
  --query-gpu=utilization*) cat {folder}/busy 2>/dev/null ;;
  --query-gpu*) cat {folder}/used ;;
  --query-compute-apps=pid,*) cat {folder}/apps 2>/dev/null ;;
  *) cat {folder}/pids ;;
esac
"""


class FakeSmi:
    """nvidia-smi with chosen tables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        script = folder / "nvidia-smi"
        script.write_text(SCRIPT.format(folder=folder))
        script.chmod(0o755)
        self.say("1000", "")

    def say(self, used: str, pids: str) -> None:
        (self.folder / "used").write_text(used + "\n")
        (self.folder / "pids").write_text(pids + "\n")

    @property
    def asked(self) -> str:
        path = self.folder / "asked"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSmi]:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return FakeSmi(folder)


def silent(text: str) -> None:
    raise AssertionError(text)


async def test_memory_is_waited_for_until_it_is_back(smi: FakeSmi) -> None:
    """Memory is waited for until it is back, and the dead engine's process is no longer listed with
    more than before.
    """
    memory = GpuMemory("cuda:1")
    await memory.remember()
    smi.say("90000", "4242")
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(0.5) as waiting:
            await memory.wait_drained(frozenset((4242,)), silent)
        assert waiting.cancelled_caught
        smi.say("1100", "")
        nursery.start_soon(memory.wait_drained, frozenset((4242,)), silent)
    assert "--query-gpu=memory.used --format=csv,noheader,nounits --id=1" in smi.asked


async def test_no_program_or_a_failing_one_is_no_wait(
    smi: FakeSmi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU that answers there is nothing to wait for."""
    (smi.folder / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    memory = GpuMemory("auto")
    await memory.remember()
    assert memory.before is None
    await memory.wait_drained(frozenset((1,)), silent)
    monkeypatch.setenv("PATH", "/nowhere")
    await GpuMemory("auto").wait_drained(frozenset((1,)), silent)


async def test_what_still_holds_memory_is_named(smi: FakeSmi) -> None:
    """What still holds memory is named by process id; one of another PID namespace is never taken
    for a process here.
    """
    memory, said = GpuMemory("cuda:0", is_own=True), list[str]()
    await memory.remember()
    smi.say("90000", "999999")
    (smi.folder / "apps").write_text("999999, VLLM::EngineCore, 88000\n")
    await memory.wait_drained(frozenset(), said.append)
    (line,) = said
    assert line.startswith("90000 MiB of GPU memory are held: pid 999999 (VLLM::EngineCore, 88000")
    assert line.endswith("another PID namespace than this one): left alone")


async def test_a_gpu_at_work_is_a_sign_of_life(
    smi: FakeSmi, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that moves, or a GPU that computes and did not before."""

    async def now(function: Callable[[str], object], what: str, **_: object) -> object:
        return function(what)

    monkeypatch.setattr(trio.to_thread, "run_sync", now)
    memory, seen = GpuMemory("cuda:0"), list[str]()
    await memory.remember()
    with trio.move_on_after(15):
        await memory.watch_use(seen.append)
    assert seen == []
    (smi.folder / "busy").write_text("97\n")
    with trio.move_on_after(15):
        await memory.watch_use(seen.append)
    (smi.folder / "busy").write_text("0\n")
    smi.say("1200", "")
    with trio.move_on_after(15):
        await memory.watch_use(seen.append)
    assert seen == ["GPU: 1000 MiB in use, 97 % busy", "GPU: 1200 MiB in use, 0 % busy"]


async def test_a_gpu_without_memory_of_its_own_counts_the_hosts(
    smi: FakeSmi, tmp_path: Path
) -> None:
    """Where nvidia-smi says [N/A], what the host cannot reclaim is what is used."""
    smi.say("[N/A]", "[N/A]")
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 8388608 kB\nMemAvailable: 8388608 kB\n")
    memory = GpuMemory("auto", proc=tmp_path)
    await memory.remember()
    assert memory.before is not None
    assert memory.before.used_bytes == 0
    meminfo.write_text("MemTotal: 8388608 kB\nMemAvailable: 1024 kB\n")
    with trio.move_on_after(0.5) as waiting:
        await memory.wait_drained(frozenset((1,)), silent)
    assert waiting.cancelled_caught
    meminfo.write_text("MemTotal: 8388608 kB\nMemAvailable: 8000000 kB\n")
    await memory.wait_drained(frozenset((1,)), silent)


async def _until_asked(smi: FakeSmi, times: int) -> None:
    with trio.fail_after(BOUND_S):
        while smi.asked.count("--query") < times:  # noqa: ASYNC110
            await trio.sleep(0.01)


@asynccontextmanager
async def _filled_gpu(
    smi: FakeSmi, tmp_path: Path
) -> AsyncIterator[tuple[GatewayEnd, WorkerProcess]]:
    """A worker whose engine is ready and has filled its GPU."""
    async with open_gateway_end() as gateway:
        settings: dict[str, object] = {"engine": "native", "device": "cuda:0"}
        with moody_worker(tmp_path, gateway.address, settings=settings) as (worker, _):
            await gateway.wait_ready()
            await _until_asked(smi, 2)  # the reading from before
            smi.say("90000", str(worker.engine_pids()[0]))
            yield gateway, worker


async def test_a_worker_starts_no_engine_into_memory_that_is_not_free(
    smi: FakeSmi, tmp_path: Path
) -> None:
    """After the death of one that had filled the GPU, the next one waits."""
    async with _filled_gpu(smi, tmp_path) as (gateway, worker):
        os.kill(worker.engine_pids()[0], signal.SIGKILL)
        await gateway.wait(Fault)
        await _until_asked(smi, 8)
        assert len(worker.engine_pids()) == 1
        smi.say("1000", "")
        await gateway.wait_ready(epoch=2)


def _control_socket(worker: WorkerProcess) -> str:
    (path,) = Path(worker.runtime_dir).glob("herma-*-control")
    return str(path)


async def _restart(worker: WorkerProcess) -> Answer:
    with trio.fail_after(BOUND_S):
        async with await trio.open_unix_socket(_control_socket(worker)) as link:
            await link.send_all(encode_line(AskRestart(force=True)))
            return decode_answer(await link.receive_some())


async def test_two_restarts_while_the_memory_drains_are_one(smi: FakeSmi, tmp_path: Path) -> None:
    """The second request gets the start that is pending already."""
    async with _filled_gpu(smi, tmp_path) as (gateway, worker):
        assert await _restart(worker) == Done(epoch=2)
        await _until_asked(smi, 8)
        assert await _restart(worker) == Done(epoch=2)
        smi.say("1000", "")
        await gateway.wait_ready(epoch=2)
