"""A worker's seat at the table of its device."""

import io
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
import trio

from config import WorkerConfig
from tests.fakes.worker_process import BOUND_S
from workers.supervisor import turn_taker
from workers.supervisor.card_memory import CardMemory
from workers.supervisor.lifecycle import Lifecycle, LifeEvent
from workers.supervisor.log import WorkerLog
from workers.supervisor.turn_taker import TurnTaker
from workers.turns import Change

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


def _seat(lifecycle: Lifecycle, lines: io.StringIO | None = None) -> TurnTaker:
    memory = CardMemory(_CONFIG, {})
    log = WorkerLog("w", lines or io.StringIO())
    return TurnTaker(_CONFIG, lifecycle, memory, log, None, "f")


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


@pytest.mark.parametrize(
    ("name", "mode", "why"),
    [("open", 0o755, "mode 0700"), ("long" * 30, 0o700, "107 are the limit")],
)
async def test_where_no_other_worker_can_come_it_wakes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, mode: int, why: str
) -> None:
    """A folder that others may use, or whose sockets have no name, is no reason to sleep on."""
    folder, lines = tmp_path / name, io.StringIO()
    folder.mkdir()
    folder.chmod(mode)
    monkeypatch.setenv("HERMA_RUNTIME_DIR", str(folder))
    seat = _seat(Lifecycle(begins_asleep=True), lines)
    orders: list[Change] = []
    ordered = trio.Event()

    def take(change: Change) -> None:
        orders.append(change)
        ordered.set()

    seat.on_order = take
    with trio.fail_after(BOUND_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(seat.run)
            seat.wish("wake")
            await ordered.wait()
            nursery.cancel_scope.cancel()
    assert orders[0] == "wake"
    assert why in lines.getvalue()


async def test_a_table_that_cannot_open_opens_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk: a worker must not die of that."""
    monkeypatch.setattr(turn_taker, "AGAIN_S", 0.01)
    with TemporaryDirectory(prefix="turns-") as folder:
        monkeypatch.setenv("HERMA_RUNTIME_DIR", folder)
        (address := Path(folder) / "turns-cpu.sock").mkdir()
        lines = io.StringIO()
        seat = _seat(Lifecycle(begins_asleep=True), lines)
        with trio.fail_after(BOUND_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(seat.run)
                while "cannot open" not in lines.getvalue():  # noqa: ASYNC110 (a log)
                    await trio.sleep(0.01)
                address.rmdir()
                await _wait_for(address)
                nursery.cancel_scope.cancel()
        assert lines.getvalue().count("cannot open") == 1


async def test_a_worker_that_is_awake_has_no_forecast() -> None:
    """The last forecast, of less than a second, is not taken back."""
    lifecycle = Lifecycle()
    seat = _seat(lifecycle)
    seat.due_s = 0.4
    assert "awake in about 0 s" in seat.line()
    for event in (LifeEvent.START, LifeEvent.LOADED, LifeEvent.PROVEN):
        lifecycle.on(event)
    seat.note()
    assert "awake in about" not in seat.line()


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
