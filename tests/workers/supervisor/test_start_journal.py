"""What a journal makes of the steps of a native engine."""

import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import trio
import trio.testing
from trio.testing import MockClock

from protocol.messages import Load
from workers.starts import StartRecord, StartRecords, StartVerdict, load_starts, save_starts
from workers.starts.speed_watch import IN_A_ROW, WINDOW
from workers.supervisor.engine_life import EngineLife
from workers.supervisor.log import WorkerLog
from workers.supervisor.start_journal import LOOK_EVERY_S, StartJournal


class _Life:
    """The engine: its reports go where the journal wants them."""

    def __init__(self) -> None:
        self.on_load = lambda _load: None
        self.said: list[tuple[str, ...]] = []
        self._steps = 0

    def report_speed_loss(
        self, figures: tuple[str, ...], warnings: tuple[str, ...], _changes: int
    ) -> None:
        assert bool(figures) == bool(warnings)
        self.said.append(figures)

    def work(self, step_ms: float) -> None:
        for _ in range(IN_A_ROW * WINDOW + 1):
            self._steps += 1
            self.on_load(Load(1, 1, 0, 98, 100, self._steps, 0, step_ms, 0.0))


async def _look_until(clock: MockClock, is_so: Callable[[], bool]) -> None:
    """Looks become due until `is_so`: one that is due while a thread keeps the last is lost.
    Threads run in real time, whatever the clock says.
    """
    for _ in range(6_000):
        clock.jump(LOOK_EVERY_S)
        await trio.testing.wait_all_tasks_blocked()
        if is_so():
            return
        await trio.to_thread.run_sync(time.sleep, 0.01)
    raise AssertionError("it did not come")


def _kept(path: Path) -> dict[str, float]:
    last = load_starts(path).last_good
    assert last is not None
    return last.steps


async def test_steps_are_compared_and_kept(mock_clock: MockClock, tmp_path: Path) -> None:
    """A loss and its end are said once each, in the log too; what was reached is recorded."""
    path, output = tmp_path / "w.json", io.StringIO()
    save_starts(path, StartRecords().with_good(StartRecord(1.0)))
    log, life = WorkerLog("w", output), _Life()
    async with trio.open_nursery() as nursery:
        good = StartVerdict(steps={"1/2": 10.0})
        watch = StartJournal((), log)._watch
        nursery.start_soon(watch, cast("EngineLife", life), path, good)
        await trio.testing.wait_all_tasks_blocked()
        for step_ms, said, kept in (
            (12.0, 1, {}),
            (13.0, 1, {}),
            (10.0, 2, {"1/2": 10.0}),
            (9.5, 3, {"1/2": 9.5}),
        ):
            life.work(step_ms)
            await _look_until(
                mock_clock,
                lambda: len(life.said) >= said and _kept(path) == kept,  # noqa: B023
            )
        nursery.cancel_scope.cancel()
    log.close()
    assert len(life.said[0]) == 1
    assert not any(life.said[1:])
    assert (
        output.getvalue().count("WARNING worker w: steps of 1 sequences with 2 blocks at 12.00 ms")
        == 1
    )
    assert output.getvalue().count("as fast as those of the last good start again") == 1
