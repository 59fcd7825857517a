"""External engines that sleep by their own APIs, in real worker processes.

The engines are stub servers that the worker launches; a program says what their card holds.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from protocol.control_messages import AskSleep, AskWake, WorkerStatus
from protocol.messages import Fault, Finished, Load, Register, Residency
from tests.fakes.foreign_process import kill_launched
from tests.fakes.gateway_end import GatewayEnd, open_gateway_end, submission
from tests.fakes.stub_driver import COMPILER, driver_folder
from tests.fakes.turning_card import TurningCard
from tests.fakes.worker_process import WorkerProcess
from tests.workers.bridge.test_foreign_worker import expected, launching_worker
from tests.workers.supervisor.test_hold import done, wait_status

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler makes the stub")
WAYS = {"vllm": "vLLM's sleep mode", "sglang": "SGLang's memory saver"}


@dataclass
class Sleeper:
    """A worker on demand with a launched engine, alone on a card."""

    gateway: GatewayEnd
    worker: WorkerProcess
    port: str

    async def sleep(self) -> WorkerStatus:
        await done(self.worker, AskSleep())
        return await wait_status(self.worker, state="asleep")

    async def wake(self) -> WorkerStatus:
        await done(self.worker, AskWake())
        return await wait_status(self.worker, state="ready")

    async def answers(self, number: int) -> bool:
        """Whether a request gets the model's tokens."""
        request_id = bytes([number]) * 16
        self.gateway.send(submission(request_id))
        await self.gateway.wait(Finished, lambda m: m.request_id == request_id)
        return self.gateway.ids_of(request_id) == expected(8)

    @property
    def troubles(self) -> list[str]:
        """What gateways were told, each once."""
        said = [message.trouble for message in self.gateway.all_of(Residency)]
        return [
            one for one, before in zip(said, ["", *said], strict=False) if one not in ("", before)
        ]


@asynccontextmanager
async def sleeper(
    folder: Path,
    kind: str = "vllm",
    keys: dict[str, Any] | None = None,
    environ: dict[str, str] | None = None,
    awake_mib: int = 60_000,
    **settings: Any,
) -> AsyncIterator[Sleeper]:
    """A worker that is awake and holds memory of its card."""
    card = TurningCard(folder / "card", 80_000, {"w": awake_mib}, {"w": awake_mib // 60})
    environ = {**card.environ, **(environ or {})}
    settings = {"kind": kind, "can_sleep": True, **settings}
    given = {"residency": "on-demand", "device": "cuda:0", "probe_context": 0, **(keys or {})}
    async with open_gateway_end() as gateway:
        with launching_worker(folder, gateway, settings, environ=environ, **given) as (
            worker,
            port,
        ):
            await wait_status(worker, state="ready")
            yield Sleeper(gateway, worker, port)


@pytest.mark.parametrize("kind", WAYS)
async def test_a_process_sleeps_without_an_end(tmp_path: Path, kind: str) -> None:
    """The same process serves before and after a sleep, in another epoch; gateways know that it
    sleeps.
    """
    async with sleeper(tmp_path, kind) as one:
        assert await one.answers(1)
        before = await wait_status(one.worker)
        asleep = await one.sleep()
        assert asleep.engine_pid == before.engine_pid
        assert "takes 58.59 GiB of cuda-0 awake; 1000.0 MiB asleep" in asleep.turn
        assert f"by {WAYS[kind]}" in asleep.turn
        following = before.epoch + 1
        await one.gateway.wait(Register, lambda m: (m.engine, m.epoch) == (None, following))
        awake = await one.wake()
        assert (awake.engine_pid, awake.restarts) == (before.engine_pid, 0)
        assert "wakes in" in awake.turn
        assert await one.answers(2)
        await one.gateway.wait(Load, lambda m: m.epoch == awake.epoch)
        assert await one.sleep()
        assert await one.wake()
        assert await one.answers(3)
        assert not one.troubles
        assert not one.gateway.all_of(Fault)


async def test_a_server_that_only_says_that_it_sleeps(tmp_path: Path) -> None:
    """A server that answers 200 to a sleep and keeps its memory: its process ends, and this way is
    not tried again.
    """
    async with sleeper(tmp_path, sleep_fault="memory") as one:
        asleep = await one.sleep()
        assert asleep.engine_pid is None
        why = f"not by {WAYS['vllm']}: it says so and holds 58.59 GiB of 58.59 GiB"
        assert why in asleep.turn
        await one.gateway.wait(Residency, lambda m: bool(m.trouble))
        await one.wake()
        assert await one.answers(1)
        assert (await one.sleep()).engine_pid is None
        assert len(one.troubles) == 1
        assert not one.gateway.all_of(Fault)


async def test_a_server_that_has_lost_its_weights(tmp_path: Path) -> None:
    """A server that answers a wake with 200 and then with other tokens than before is replaced by
    another process.
    """
    async with sleeper(tmp_path, wake_fault="weights") as one:
        asleep = await one.sleep()
        woken = await one.wake()
        assert woken.engine_pid not in (None, asleep.engine_pid)
        assert "its weights are not what they were" in woken.turn
        assert len(one.gateway.all_of(Fault)) == 1
        assert await one.answers(1)
        assert not one.troubles


async def test_a_process_that_dies_asleep_is_no_outage(tmp_path: Path) -> None:
    """One event. The worker is asleep all the same, and its next turn starts another."""
    async with sleeper(tmp_path) as one:
        await one.sleep()
        kill_launched(one.port)
        status = await wait_status(one.worker, state="asleep", engine_pid=None)
        await one.gateway.wait(Residency, lambda m: "died asleep" in m.trouble)
        assert len(one.troubles) == 1
        assert f"not by {WAYS['vllm']}" not in status.turn
        await one.wake()
        assert await one.answers(1)
        assert (await one.sleep()).engine_pid is not None
        assert not one.gateway.all_of(Fault)


def _checkpointed() -> dict[str, Any]:
    """A worker of an engine that has no sleep of its own, with a stub of a driver that makes
    checkpoints. What the engine holds of the card fits into the memory of this host.
    """
    environ = {"LD_LIBRARY_PATH": str(driver_folder())}
    return {"can_sleep": False, "environ": environ, "awake_mib": 600}


@needs_compiler
@pytest.mark.parametrize("kind", ["vllm", "llama-cpp"])
async def test_any_engine_sleeps_by_the_driver_s_checkpoint(tmp_path: Path, kind: str) -> None:
    """One process, which answers the same before and after; its status says by which way."""
    async with sleeper(tmp_path, kind, **_checkpointed()) as one:
        assert await one.answers(1)
        before = await wait_status(one.worker)
        for number in (2, 3):
            asleep = await one.sleep()
            assert asleep.engine_pid == before.engine_pid
            assert "takes 600.0 MiB of cuda-0 awake; " in asleep.turn
            assert "by the driver's checkpoint" in asleep.turn
            awake = await one.wake()
            assert (awake.engine_pid, awake.restarts) == (before.engine_pid, 0)
            assert await one.answers(number)
        assert ("not by vLLM's sleep mode: the server has no" in awake.turn) == (kind == "vllm")
        calls = [line.split()[0] for line in _lines(tmp_path / "card" / "calls")]
        moves = [name for name in calls if name not in ("Init", "State")]
        assert moves == ["Lock", "Checkpoint", "Restore", "Unlock"] * 2
        assert not one.troubles
        assert not one.gateway.all_of(Fault)


@needs_compiler
async def test_what_the_driver_refuses_is_one_line_and_an_end(tmp_path: Path) -> None:
    """Memory that is shared between processes: known from then on, and asked no more."""
    async with sleeper(tmp_path, **_checkpointed()) as one:
        (tmp_path / "card" / "fault-Checkpoint").write_text("801")
        asleep = await one.sleep()
        assert asleep.engine_pid is None
        why = "not by the driver's checkpoint: checkpoint of process "
        assert why in asleep.turn
        assert "it is shared between processes (CUDA IPC" in asleep.turn
        await one.wake()
        assert await one.answers(1)
        assert (await one.sleep()).engine_pid is None
        assert len(one.troubles) == 1
        assert not one.gateway.all_of(Fault)


@needs_compiler
async def test_a_wake_that_the_driver_refuses_is_a_start(tmp_path: Path) -> None:
    async with sleeper(tmp_path, **_checkpointed()) as one:
        asleep = await one.sleep()
        (tmp_path / "card" / "fault-Restore").write_text("2")
        woken = await one.wake()
        assert woken.engine_pid not in (None, asleep.engine_pid)
        assert "it did not wake: restore of process " in woken.turn
        assert len(one.gateway.all_of(Fault)) == 1
        assert await one.answers(1)


@needs_compiler
async def test_a_process_that_dies_in_its_checkpoint_is_no_outage(tmp_path: Path) -> None:
    async with sleeper(tmp_path, **_checkpointed()) as one:
        await one.sleep()
        kill_launched(one.port)
        await wait_status(one.worker, state="asleep", engine_pid=None)
        await one.gateway.wait(Residency, lambda m: "died asleep" in m.trouble)
        await one.wake()
        assert await one.answers(1)
        assert len(one.troubles) == 1
        assert not one.gateway.all_of(Fault)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()
