"""A supervisor in the process of a test, with its card and the stub of its engine.

Owns the card, the engine's mood, and what gateways are told. Must not know what a test expects.
"""

import io
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import msgspec
import pytest
import trio

from config import WorkerConfig
from protocol.messages import Fault, FromWorker, Residency
from tests.fakes import stub_engine
from tests.fakes.fixed_card import FixedCard
from tests.fakes.moody import Mood
from tests.fakes.worker_process import BOUND_S
from workers.supervisor.card_memory import CardMemory
from workers.supervisor.engine_supervisor import EngineSupervisor
from workers.supervisor.frame_relay import FrameRelay
from workers.supervisor.identity import worker_identity
from workers.supervisor.lifecycle import EngineState, Lifecycle
from workers.supervisor.log import WorkerLog
from workers.supervisor.seat_states import SeatState
from workers.supervisor.turn_taker import TurnTaker

CONFIG = WorkerConfig(
    name="w", model="m", serves="m", gateways=(), engine="synthetic", max_seqs=4, token_budget=256,
    max_context=64, device="cpu", residency="on-demand",
)  # fmt: skip
WAY = "a nap"
"""How the engine sleeps without an end."""


class World:
    """A supervisor and its card. `said` collects the messages for gateways."""

    def __init__(self, folder: Path, stall_s: float, **mood: object) -> None:
        config = msgspec.structs.replace(CONFIG, stall_s=stall_s)
        self.said: list[FromWorker] = []
        self.card = FixedCard(folder)
        self.mood = Mood(folder)
        self.mood.set(**{"sleep_way": WAY, **mood})
        self.lines = io.StringIO()
        self._log = WorkerLog("w", self.lines)
        command = [sys.executable, str(Path(stub_engine.__file__)), str(self.mood.path)]
        self.supervisor = EngineSupervisor(config, self._log, command=command, turns=self._seat)
        self.relay = FrameRelay(
            worker_identity(config, "test"),
            self._log,
            self.supervisor.lifecycle,
            on_work=self.supervisor.work_sent,
            on_drain=lambda _: None,
            on_siblings=lambda _: None,
            on_distrust=lambda _: None,
        )
        # No gateway is linked, so the test reads what the supervisor broadcasts.
        self.relay.broadcast = self.said.append  # type: ignore[method-assign]

    def _seat(self, lifecycle: Lifecycle) -> TurnTaker:
        memory = cast("CardMemory", self.card)
        return TurnTaker(CONFIG, lifecycle, memory, self._log, None, "f")

    @property
    def turns(self) -> TurnTaker:
        assert self.supervisor.sleeper is not None
        return self.supervisor.sleeper.turns

    @property
    def state(self) -> EngineState:
        return self.supervisor.lifecycle.state

    @property
    def pid(self) -> int | None:
        return self.supervisor.status((0, 0), ()).engine_pid

    def kill(self) -> None:
        """Kill the engine."""
        assert self.pid is not None
        os.kill(self.pid, signal.SIGKILL)

    async def until(self, is_so: Callable[[], bool]) -> None:
        with trio.fail_after(BOUND_S):
            while not is_so():  # noqa: ASYNC110 (processes)
                await trio.sleep(0.01)

    async def sleep(self) -> None:
        self.turns.wish("sleep")
        await self.until(lambda: self.state in (EngineState.ASLEEP, EngineState.DORMANT))

    async def wake(self) -> None:
        self.turns.wish("wake")
        await self.until(
            lambda: self.state is EngineState.READY and self.turns.seat is SeatState.SETTLED
        )
        await self.until(lambda: self.turns.report(0.0).wish is None)

    @property
    def troubles(self) -> list[str]:
        """The troubles that gateways were told, each once."""
        told = [one.trouble for one in self.said if isinstance(one, Residency)]
        pairs = zip(told, ["", *told], strict=False)
        return [one for one, before in pairs if one not in ("", before)]

    @property
    def num_faults(self) -> int:
        return sum(isinstance(one, Fault) for one in self.said)


@asynccontextmanager
async def world(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, stall_s: float = 3.0, **mood: object
) -> AsyncIterator[World]:
    """A worker whose engine is awake and measured; whatever makes no progress for `stall_s` has
    failed.
    """
    with TemporaryDirectory(prefix="turns-") as runtime:
        monkeypatch.setenv("HERMA_RUNTIME_DIR", runtime)
        one = World(folder, stall_s, **mood)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.supervisor.run, one.relay)
            await one.until(
                lambda: one.state is EngineState.READY and one.turns.seat is SeatState.SETTLED
            )
            yield one
            nursery.cancel_scope.cancel()
