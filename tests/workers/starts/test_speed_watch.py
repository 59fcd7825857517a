"""Steps against those of good starts: equal work, lasting losses, the best as the measure."""

from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from protocol.messages import DraftResults, Finished, Load, SpeedLoss
from tests.fakes.gateway_end import open_gateway_end, submission
from tests.fakes.worker_process import WorkerProcess, worker_process
from workers.ipc import StartSpeed
from workers.starts import (
    SpeedWatch,
    StartRecord,
    StartRecords,
    judged,
    load_starts,
    record_path,
    save_starts,
    with_steps,
)
from workers.starts.speed_watch import IN_A_ROW, MAX_KINDS, WINDOW, kind_of_work

PATH = Path("/state/w.json")
DRAFTS = DraftResults("suffix", 1, 1, (1,), (1,), 2.0, 1.0)


def _load(steps: int, step_ms: float, running: int = 4, held: int = 96, **fields: object) -> Load:
    load = Load(1, running, 0, 1000 - held, 1000, steps, 0, step_ms, 0.0)
    return msgspec.structs.replace(load, **fields)


class _Engine:
    """Reports of an engine that works without a pause."""

    def __init__(self, **measure: float) -> None:
        self.watch = SpeedWatch(measure or {"4/96": 10.0})
        self._steps = 0
        self.watch.add(_load(0, 1.0))  # the first one of a kind counts for nothing

    def work(self, step_ms: float, windows: float = 1, **fields: int) -> tuple[str, ...]:
        for _ in range(int(windows * WINDOW)):
            self._steps += 5
            self.watch.add(_load(self._steps, step_ms, **fields))
        return self.watch.figures


def test_a_lasting_loss_is_said_and_its_end_too() -> None:
    """One slow window may be the host's; two in a row are a loss."""
    engine = _Engine()
    assert engine.work(10.9, 3) == ()
    assert engine.work(12.0) == ()
    (figure,) = engine.work(12.0)
    assert figure == (
        "steps of 4 sequences with 96 blocks at 12.00 ms, 20% slower than the 10.00 of the last "
        "good start"
    )
    assert engine.work(13.0) == (figure,), "the words stay as long as it lasts"
    assert engine.work(10.5) == ()


def test_what_a_start_has_reached_is_its_measure_too() -> None:
    """A card that gets slower within a start is found without another start."""
    engine = _Engine(unknown=1.0)
    assert engine.work(5.0) == ()
    assert engine.watch.steps == {"4/96": 5.0}
    assert len(engine.work(6.0, IN_A_ROW)) == 1
    assert engine.watch.steps == {"4/96": 5.0}


def test_prompts_between_the_steps_are_no_loss() -> None:
    """Prompts between the steps are no loss: they raise the average of most reports, and not that
    of the fastest.
    """
    engine = _Engine()
    for _ in range(3 * WINDOW // 10):
        engine.work(10.0, 0.02)
        engine.work(200.0, 0.08)
    assert engine.watch.figures == ()


@pytest.mark.parametrize(
    "fields",
    [{"running": 0}, {"waiting": 3}, {"step_ms": 0.0}, {"drafting": DRAFTS}],
)
def test_work_that_says_nothing_is_left_out(fields: dict[str, object]) -> None:
    """Nothing runs, a prompt waits, no step yet, drafts."""
    assert kind_of_work(_load(1, 10.0)) == "4/96"
    assert kind_of_work(msgspec.structs.replace(_load(1, 10.0), **fields)) == ""


def test_work_is_compared_with_equal_work() -> None:
    """More sequences or longer ones are another kind; a change of kind settles for one report."""
    kinds = {kind_of_work(_load(1, 1.0, running, held)) for running, held in ((16, 96), (19, 111))}
    assert kinds == {"16/96"}
    assert kind_of_work(_load(1, 1.0, 20, 112)) == "20/112"
    engine = _Engine()
    assert engine.work(30.0, 4, running=20) == ()
    assert engine.work(30.0, 4, held=700) == ()


@given(
    st.lists(
        st.tuples(st.integers(0, 70), st.integers(0, 1000), st.floats(0, 1e3), st.integers(0, 3)),
        max_size=400,
    )
)
def test_any_reports_leave_it_bounded(reports: list[tuple[int, int, float, int]]) -> None:
    """The memory stays bounded for any reports, and the speed that a start has reached is that of
    one of its windows: never better than every report.
    """
    watch, steps = SpeedWatch({}), 0
    for running, held, step_ms, num_steps in reports:
        steps += num_steps
        for _ in range(WINDOW // 20):
            watch.add(_load(steps, step_ms, running, held))
            steps += 1
    assert len(watch.steps) <= MAX_KINDS
    assert all(min(one[2] for one in reports) <= ms for ms in watch.steps.values())


def test_starts_that_get_slower_bit_by_bit_are_found() -> None:
    """Each is 6 % slower than the one before, and made of the same: the best one is the measure."""
    starts, slower = StartRecords(), []
    for number in range(4):
        speed = StartSpeed(100.0 * 0.94**number, 1000.0, 8192)
        starts, verdict = judged(starts, StartRecord(float(number), speed=speed), PATH)
        slower.append(bool(verdict.figures))
    assert slower == [False, False, True, True]
    assert starts.last_good is not None
    assert starts.last_good.speed.decode_tokens_per_s == 100.0


def test_an_older_start_of_the_same_make_is_a_measure_too() -> None:
    """An older start of the same make is a measure too: after a change that cost 9 % and is taken
    back, the speed must be that from before.
    """
    starts = StartRecords()
    for at, kernel, speed in ((1.0, "6.8", 100.0), (2.0, "6.17", 91.0)):
        record = StartRecord(at, kernel=kernel, speed=StartSpeed(speed))
        starts, verdict = judged(starts, record, PATH)
        assert not verdict.figures
    _, verdict = judged(starts, StartRecord(3.0, kernel="6.8", speed=StartSpeed(85.0)), PATH)
    assert verdict.figures[0].startswith("answers at 85.0 tokens/s, 15% slower than the 100.0")
    assert verdict.num_changes == 1
    _, verdict = judged(starts, StartRecord(3.0, kernel="6.17", speed=StartSpeed(85.0)), PATH)
    assert not verdict.figures


def test_steps_are_kept_with_the_record() -> None:
    """The best of each kind, over starts of the same make."""
    starts, _ = judged(StartRecords(), StartRecord(1.0), PATH)
    starts = with_steps(starts, {"4/96": 10.0, "1/8": 3.0})
    starts = with_steps(starts, {"4/96": 12.0, "1/8": 2.5})
    again, verdict = judged(starts, StartRecord(2.0), PATH)
    assert verdict.steps == {"4/96": 10.0, "1/8": 2.5}
    assert again.last_good is not None
    assert again.last_good.steps == verdict.steps
    assert with_steps(StartRecords(), {"1/8": 1.0}) == StartRecords()


@pytest.mark.slow
async def test_a_native_engine_that_got_slower_says_so(tmp_path: Path) -> None:
    """Over real processes: in the log, in the status, and to the gateway."""
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    path = record_path("w", environ, str(tmp_path / "herma.toml"))
    async with open_gateway_end() as gateway:
        settings = {"environ": environ, "step_ms": 20.0}
        with worker_process(tmp_path, gateway.address, **settings) as worker:  # type: ignore[arg-type]
            await gateway.wait_ready()
            await worker.wait_line("recorded as good")
        starts = load_starts(path)
        fast = {f"1/{held}": 1.0 for held in range(64)}
        save_starts(path, with_steps(starts, fast))
        async with open_gateway_end() as second:
            with worker_process(tmp_path, second.address, **settings) as worker:  # type: ignore[arg-type]
                await second.wait_ready()
                with trio.fail_after(300):
                    for number in range(90):
                        request_id = number.to_bytes(16, "big")
                        second.send(submission(request_id, max_tokens=24))
                        await second.wait(Finished, partial(_is_of, request_id))
                    line = await _line(worker, "WARNING worker w: steps of 1 sequences")
                    loss = await second.wait(SpeedLoss)
                    assert "slower than the 1.00 of the last good start" in line
                    assert loss.figures[0] in line
                    _, text = await worker.command("status", "w")
                    assert "slower than the 1.00 of the last good start" in text


def _is_of(request_id: bytes, message: Finished) -> bool:
    return message.request_id == request_id


async def _line(worker: WorkerProcess, text: str) -> str:
    """`wait_line` with more patience: the figures are looked at every ten seconds."""
    while True:
        for line in list(worker.lines):
            if text in line:
                return line
        await trio.sleep(0.2)
