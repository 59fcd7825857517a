"""A worker's seat at the table of its device."""

import io
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
import trio

from config import WorkerConfig
from tests.fakes.worker_process import BOUND_S
from workers.supervisor.card_memory import CardMemory
from workers.supervisor.lifecycle import Lifecycle, LifeEvent
from workers.supervisor.log import WorkerLog
from workers.supervisor.turn_taker import TurnTaker

_CONFIG = WorkerConfig(
    name="w",
    model="m",
    serves="m",
    gateways=(),
    max_seqs=1,
    token_budget=256,
    device="cpu",
    residency="on-demand",
)


def _seat(lifecycle: Lifecycle) -> TurnTaker:
    memory = CardMemory(_CONFIG, {})
    return TurnTaker(_CONFIG, lifecycle, memory, WorkerLog("w", io.StringIO()), None, "f")


async def test_a_worker_that_moves_sits_down_at_the_other_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And what was measured of it on the first device counts no more."""
    with TemporaryDirectory(prefix="turns-") as folder:
        monkeypatch.setenv("HERMA_RUNTIME_DIR", folder)
        seat = _seat(Lifecycle(begins_asleep=True))
        with trio.fail_after(BOUND_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(seat.run)
                await _wait_for(Path(folder) / "turns-cpu.sock")
                await seat.measured(awake_bytes=5)
                assert not seat.reconfigure(msgspec.structs.replace(_CONFIG, idle_s=3.0))
                assert seat.record.awake_bytes == 5
                assert seat.reconfigure(msgspec.structs.replace(_CONFIG, device="cuda:1"))
                assert (seat.record.device, seat.record.awake_bytes) == ("cuda-1", None)
                await _wait_for(Path(folder) / "turns-cuda-1.sock")
                nursery.cancel_scope.cancel()


async def test_a_wish_ends_with_the_worker_that_cannot_fulfil_it() -> None:
    """Otherwise a restart, hours later, would take the place of another model at once."""
    lifecycle = Lifecycle(begins_asleep=True)
    seat = _seat(lifecycle)
    seat.wish("wake")
    for event in (LifeEvent.START, LifeEvent.EXITED, LifeEvent.GIVE_UP):
        assert seat.report(trio.current_time()).wish == "wake"
        lifecycle.on(event)
        seat.note()
    assert seat.report(trio.current_time()).wish is None


async def _wait_for(path: Path) -> None:
    while not path.exists():  # noqa: ASYNC110, ASYNC240 (a file has no event)
        await trio.sleep(0.01)
