"""A worker's seat at the table of its device."""

import io
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
import trio

from config import WorkerConfig
from protocol.errors import ConfigError
from protocol.messages import Wanted
from tests.fakes.worker_process import BOUND_S
from workers.supervisor import turn_table, turn_taker
from workers.supervisor.card_memory import CardMemory
from workers.supervisor.lifecycle import SHOWN, EngineState, Lifecycle, LifeEvent
from workers.supervisor.log import WorkerLog
from workers.supervisor.seat_states import SleepTrial, TrialEvent
from workers.supervisor.turn_taker import _SEEN, TurnTaker
from workers.turns import Change, MemberState, Order, encode_order

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


def _seat(
    lifecycle: Lifecycle,
    lines: io.StringIO | None = None,
    *,
    config: WorkerConfig = _CONFIG,
    path: Path | None = None,
) -> TurnTaker:
    memory = CardMemory(config, {})
    log = WorkerLog("w", lines or io.StringIO())
    return TurnTaker(config, lifecycle, memory, log, path, "f")


async def test_a_worker_that_moves_sits_down_at_the_other_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that moves to another device takes a seat at that device's table; measurements and
    orders of the first device no longer count.
    """
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
                seat._take(encode_order(Order(7, "sleep")))
                assert seat.report(0.0).order == 7
                assert seat.reconfigure(msgspec.structs.replace(_CONFIG, device="cuda:1"))
                assert (seat.record.device, seat.record.awake_bytes) == ("cuda-1", None)
                await _wait_for(Path(folder) / "turns-cuda-1.sock")
                while seat.report(0.0).order:  # noqa: ASYNC110 (the connection tells nobody)
                    await trio.sleep(0.01)
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
    """A table that cannot open, as on a full disk, opens later: a worker must not die of that."""
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


@pytest.mark.parametrize("gone", ["socket", "lock", "both", "folder"])
async def test_files_that_are_gone_keep_nobody_from_the_table(
    monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    """A cleaner of temporary files takes them, or the last session of the user ends: a worker that
    comes then gets its turns, and so do those that were there.
    """
    monkeypatch.setattr(turn_table, "LOOK_S", 0.05)
    monkeypatch.setattr(turn_taker, "AGAIN_S", 0.05)
    with TemporaryDirectory(prefix="turns-") as base:
        folder = Path(base) / "herma"
        monkeypatch.setenv("HERMA_RUNTIME_DIR", str(folder))
        first, second = (_seat(Lifecycle(begins_asleep=True)) for _ in range(2))
        orders: list[str] = []
        first.on_order, second.on_order = (
            lambda _, name=name: orders.append(name) for name in ("first", "second")
        )
        with trio.fail_after(BOUND_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(first.run)
                await _wait_for(folder / "turns-cpu.sock")
                if gone == "folder":
                    shutil.rmtree(folder)
                if gone in ("socket", "both"):
                    (folder / "turns-cpu.sock").unlink()
                if gone in ("lock", "both"):
                    (folder / "turns-cpu.lock").unlink()
                nursery.start_soon(second.run)
                for name, seat in (("second", second), ("first", first)):
                    seat.wish("wake")
                    while name not in orders:  # noqa: ASYNC110 (another task's list)
                        await trio.sleep(0.01)
                    seat.wish("sleep")
                nursery.cancel_scope.cancel()


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


SEEN_BY_WORD = {
    "waiting": "waking",
    "starting": "waking",
    "ready": "awake",
    "draining": "awake",
    "ending": "waking",
    "stopped": "away",
    "falling asleep": "falling asleep",
    "asleep": "asleep",
    "waking": "waking",
    "leaving": "awake",
}
"""By the word of a worker's status. What is about to hold memory, or may hold some yet, is waking;
what serves is awake, also for a version on trial and until its process has left.
"""


@pytest.mark.parametrize("state", EngineState)
def test_the_table_sees_what_the_status_says(state: EngineState) -> None:
    assert _SEEN[state] == SEEN_BY_WORD[SHOWN[state]]


@pytest.mark.parametrize(("state", "seen"), _SEEN.items())
async def test_gateways_are_told_of_no_worker_that_is_away(
    state: EngineState, seen: MemberState
) -> None:
    """Gateways are not told that a worker is away: they wait for it, as for one that wakes, because
    an operator may start it.
    """
    lifecycle = Lifecycle()
    lifecycle.state = state
    assert _seat(lifecycle).shown == ("waking" if seen == "away" else seen)


async def test_a_wish_ends_when_it_is_fulfilled() -> None:
    """A wish ends when it is fulfilled. It also ends a pause, and an operator's change is no
    trial.
    """
    lifecycle = Lifecycle(begins_asleep=True)
    seat = _seat(lifecycle)
    seat.failed("it does not wake")
    now = trio.current_time()
    assert seat.report(now).must_wait_until > now
    seat.tries(TrialEvent.FIND)
    seat.wish("wake")
    report = seat.report(now)
    assert (report.wish, report.must_wait_until) == ("wake", now)
    assert seat.trial is SleepTrial.NEEDLESS
    for event in (LifeEvent.START, LifeEvent.LOADED, LifeEvent.PROVEN):
        lifecycle.on(event)
    seat.note()
    assert seat.report(trio.current_time()).wish is None
    assert seat.trouble == ""
    seat.wish("sleep")
    for event in (LifeEvent.SLEEP, LifeEvent.RESTED, LifeEvent.SLEPT):
        assert seat.report(trio.current_time()).wish == "sleep"
        lifecycle.on(event)
        seat.note()
    assert seat.report(trio.current_time()).wish is None


@pytest.mark.parametrize("change", ["sleep", "wake"])
@pytest.mark.parametrize("is_stopped", [True, False], ids=["before", "meanwhile"])
async def test_a_wish_ends_where_the_engine_stops(change: Change, is_stopped: bool) -> None:
    """A wish ends where the engine stops: a later start is not answered by a sleep that was asked
    for before.
    """
    lifecycle = Lifecycle()
    seat = _seat(lifecycle)
    stop = (LifeEvent.START, LifeEvent.EXITED, LifeEvent.GIVE_UP)
    if not is_stopped:
        seat.wish(change)
    for event in stop:
        lifecycle.on(event)
    if is_stopped:
        seat.wish(change)
    seat.note()
    assert seat.report(trio.current_time()).state == "away"
    for event in (LifeEvent.RESTART, LifeEvent.START, LifeEvent.LOADED, LifeEvent.PROVEN):
        lifecycle.on(event)
    assert seat.report(trio.current_time()).wish is None


async def test_an_operators_sleep_is_no_trial() -> None:
    """An operator's sleep is no trial, because a trial would wake the worker to test its wake."""
    seat = _seat(Lifecycle())
    seat.tries(TrialEvent.FIND)
    seat.tries(TrialEvent.SLEEP)
    assert seat.trial is SleepTrial.BEGUN
    seat.wish("sleep")
    seat.tries(TrialEvent.FIND)
    seat.tries(TrialEvent.SLEEP)
    assert seat.trial is SleepTrial.NEEDLESS


async def test_the_wishes_of_an_always_resident_worker_are_refused() -> None:
    config = msgspec.structs.replace(_CONFIG, residency="always")
    seat = _seat(Lifecycle(), config=config)
    with pytest.raises(ConfigError, match='set residency = "on-demand"'):
        seat.wish("sleep")
    assert seat.report(trio.current_time()).wish is None


async def test_the_demand_of_a_gateway_goes_with_it() -> None:
    seat = _seat(Lifecycle())
    seat.wanted(1, Wanted(2, 1, 3.0, 4.0))
    seat.wanted(2, Wanted(1, 0, 1.0, 1.0))
    seat.gone(1)
    report = seat.report(trio.current_time())
    assert (report.waiting, report.running) == (1, 0)
    seat.gone(2)
    seat.gone(3)
    report = seat.report(trio.current_time())
    assert (report.waiting, report.running, report.oldest_at) == (0, 0, None)


async def test_gateways_are_told_of_a_change_that_failed() -> None:
    seat = _seat(Lifecycle(begins_asleep=True))
    told: list[str] = []
    seat.on_news = lambda: told.append(seat.trouble)
    seat.failed("it does not wake: no room")
    assert told == ["it does not wake: no room"]


@pytest.mark.parametrize("engine", ["same", "other"])
async def test_only_measurements_of_the_same_engine_count(tmp_path: Path, engine: str) -> None:
    """Only measurements of the same engine count: with other keys it may take another part of the
    card.
    """
    path = tmp_path / "turns.json"
    seat = _seat(Lifecycle(), path=path)
    await seat.measured(awake_bytes=5)
    config = _CONFIG if engine == "same" else msgspec.structs.replace(_CONFIG, max_seqs=2)
    again = _seat(Lifecycle(), config=config, path=path)
    again.load()
    assert again.record.awake_bytes == (5 if engine == "same" else None)


async def _wait_for(path: Path) -> None:
    while not path.exists():  # noqa: ASYNC110, ASYNC240 (a file has no event)
        await trio.sleep(0.01)


async def test_what_is_soon_done_was_work_too(autojump_clock: object) -> None:
    """No gateway ever says that there was some."""
    seat = _seat(Lifecycle(begins_asleep=True))
    await trio.sleep(9.0)
    seat.used()
    begun = trio.current_time()
    await trio.sleep(0.01)
    seat.used()
    report = seat.report(trio.current_time())
    assert (report.uses, report.idle_since) == (2, begun)
    seat.wanted(1, Wanted(0, 1, 0.0, 0.5))
    await trio.sleep(2.0)
    seat.used()
    report = seat.report(trio.current_time())
    assert (report.uses, report.idle_since) == (3, begun)
