"""When the memory of the host that outlives an engine is given back, and when it is not."""

import io
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from config import CacheConfig, WorkerConfig
from tests.fakes import stub_engine
from tests.fakes.moody import Mood
from tests.fakes.worker_process import BOUND_S, wait_dead
from workers.supervisor import engine_supervisor
from workers.supervisor.engine_supervisor import EngineSupervisor
from workers.supervisor.frame_relay import FrameRelay
from workers.supervisor.host_cache import HostCache
from workers.supervisor.identity import worker_identity
from workers.supervisor.log import WorkerLog
from workers.supervisor.restart_policy import RestartPolicy

MIB = 2**20
KEPT = replace(
    WorkerConfig(name="w", model="m", serves="m", gateways=(), token_budget=256),
    max_seqs=4,
    max_context=64,
    cache=CacheConfig("64MiB"),
)


class _Readies(RestartPolicy):
    """Counts the starts that got ready."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def ready(self, now: float) -> None:
        super().ready(now)
        self.count += 1


class Served:
    """A worker whose engine is a stub, over a region that an engine has filled."""

    def __init__(self, folder: Path, **mood: Any) -> None:
        self.lines = io.StringIO()
        self.cache = HostCache(os.memfd_create("herma-cache"))
        os.ftruncate(self.cache.fd, 5 * MIB)
        os.pwrite(self.cache.fd, b"kept" * MIB, MIB)
        moody = Mood(folder)
        moody.set(**mood)
        self.log = WorkerLog("w", self.lines)
        self._readies = _Readies()
        self.supervisor = EngineSupervisor(
            KEPT,
            self.log,
            command=[sys.executable, str(Path(stub_engine.__file__)), str(moody.path)],
            policy=self._readies,
            cache=self.cache,
        )
        self.relay = FrameRelay(
            worker_identity(KEPT, "test"),
            self.log,
            self.supervisor.lifecycle,
            on_work=self.supervisor.work_sent,
            on_drain=lambda _: None,
            on_siblings=lambda _: None,
            on_distrust=lambda _: None,
        )

    async def ready(self, count: int) -> None:
        """Return when so many starts got ready."""
        while self._readies.count < count:  # noqa: ASYNC110 (it tells nobody)
            await trio.sleep(0.01)

    async def kill(self) -> None:
        """Kill the engine, and return when the next one is ready."""
        assert self.supervisor._life is not None
        count, pid = self._readies.count, self.supervisor._life.process.pid
        os.kill(pid, signal.SIGKILL)
        await wait_dead(pid)
        await self.ready(count + 1)


@asynccontextmanager
async def _served(folder: Path, **mood: Any) -> AsyncIterator[Served]:
    served = Served(folder, **mood)
    try:
        with trio.fail_after(BOUND_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(served.supervisor.run, served.relay)
                await served.ready(1)
                yield served
                nursery.cancel_scope.cancel()
    finally:
        served.log.close()
        os.close(served.cache.fd)


async def test_an_engine_that_dies_leaves_its_prefixes(tmp_path: Path) -> None:
    async with _served(tmp_path) as served:
        await served.kill()
        assert served.cache.num_bytes == 5 * MIB


async def test_an_engine_that_dies_before_it_has_cleared_leaves_nothing(tmp_path: Path) -> None:
    """The operator was told that all is forgotten."""
    async with _served(tmp_path) as served:
        served.supervisor.clear_cache()
        served.supervisor.clear_cache()
        await served.kill()
        assert (served.cache.num_bytes, served.cache.num_resident) == (0, 0)


async def test_an_engine_that_starts_takes_the_wish_to_clear(tmp_path: Path) -> None:
    """An engine that is starting takes the order to clear at once: it may take minutes to be ready,
    or never be, and memory to be forgotten is not kept for it.
    """
    gate = tmp_path / "gate"
    gate.touch()
    async with _served(tmp_path, waits_for=str(gate)) as served:
        gate.unlink()
        first = served.supervisor._life
        assert first is not None
        os.kill(first.process.pid, signal.SIGKILL)
        while served.supervisor._life in (None, first):  # noqa: ASYNC110 (it tells nobody)
            await trio.sleep(0.01)
        second = served.supervisor._life
        assert second is not None
        assert not second.is_ready
        served.supervisor.clear_cache()
        os.kill(second.process.pid, signal.SIGKILL)
        await wait_dead(second.process.pid)
        gate.touch()
        await served.ready(2)
        assert served.cache.num_bytes == 0


async def test_an_engine_that_has_cleared_leaves_what_came_later(tmp_path: Path) -> None:
    async with _served(tmp_path, clears=True) as served:
        served.supervisor.clear_cache()
        served.supervisor.clear_cache()
        life = served.supervisor._life
        assert life is not None
        while life.num_clears:  # noqa: ASYNC110 (it tells nobody)
            await trio.sleep(0.01)
        await served.kill()
        assert served.cache.num_bytes == 5 * MIB


async def test_an_engine_killed_for_want_of_memory_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel frees what the engine had, and not this: the next one would meet the same."""
    counts = iter(range(100))
    monkeypatch.setattr(engine_supervisor, "count_oom_kills", lambda: next(counts))
    async with _served(tmp_path) as served:
        await served.kill()
        assert served.cache.num_bytes == 0
        assert "lacked memory: 4.0 MiB of cached prefixes are given back" in served.lines.getvalue()


@pytest.mark.parametrize(
    "change",
    [
        lambda config: replace(config, cache=CacheConfig("0")),
        lambda config: replace(config, engine="synthetic", cache=CacheConfig()),
        lambda config: replace(config, tensor_parallel=2, device="cpu"),
    ],
)
async def test_an_engine_that_keeps_none_has_the_memory_given_back(
    tmp_path: Path, change: Callable[[WorkerConfig], WorkerConfig]
) -> None:
    async with _served(tmp_path) as served:
        served.supervisor.restart(change(KEPT), force=True)
        await served.ready(2)
        assert (served.cache.num_bytes, served.cache.num_resident) == (0, 0)
