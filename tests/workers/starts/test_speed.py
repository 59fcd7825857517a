"""The speed of a start against the last good one."""

from pathlib import Path

import msgspec

from protocol.messages import SpeedLoss
from tests.fakes.foreign_process import foreign_process
from tests.fakes.gateway_end import open_gateway_end
from tests.fakes.worker_process import worker_process
from workers.ipc import StartSpeed
from workers.starts import StartRecord, StartRecords, judged, load_starts, record_path, save_starts

GOOD = StartSpeed(79.4, 1000.0, 8192)
PATH = Path("/state/w.json")


def starts_of(speed: StartSpeed) -> StartRecords:
    return StartRecords().with_good(StartRecord(1.0, speed=speed, kernel="6.8"))


def warnings_of(before: StartSpeed, now: StartSpeed) -> tuple[str, ...]:
    return judged(starts_of(before), StartRecord(2.0, speed=now, kernel="6.8"), PATH)[1].warnings


def test_a_slower_start_is_warned_about_and_does_not_become_the_measure() -> None:
    """Ten percent, each figure by itself, with what has changed at the end."""
    slow = StartRecord(2.0, speed=StartSpeed(71.4, 1000.0, 8192), kernel="6.17")
    starts, verdict = judged(starts_of(GOOD), slow, PATH)
    warnings = verdict.warnings
    assert warnings[0].startswith("answers at 71.4 tokens/s, 10% slower than the 79.4")
    assert "host: kernel was 6.8, is 6.17" in warnings[1]
    assert str(PATH) in warnings[1]
    assert starts.last_good is not None
    assert starts.last_good.speed == GOOD
    assert starts.latest == slow
    assert warnings_of(GOOD, StartSpeed(79.4, 500.0, 8192))[0].startswith(
        "prompts of 8192 tokens at 500.0"
    )
    assert warnings_of(GOOD, StartSpeed(72.0, 1000.0, 8192)) == ()


def test_what_is_unknown_is_not_compared() -> None:
    """Another length of the prompt, a figure that was not taken, and a first start."""
    assert warnings_of(GOOD, StartSpeed(0.0, 10.0, 4096)) == ()
    starts, verdict = judged(StartRecords(), StartRecord(1.0, speed=GOOD), PATH)
    assert verdict.warnings == ()
    assert starts.last_good == starts.latest


def test_the_records_are_bounded() -> None:
    """The last five good starts that differ stay; the last of equal ones is kept."""
    starts = StartRecords()
    for at in range(9):
        starts, verdict = judged(starts, StartRecord(float(at), kernel=f"6.{at}"), PATH)
    assert verdict.changes == "host: kernel was 6.7, is 6.8"
    starts, verdict = judged(starts, StartRecord(9.0, kernel="6.8"), PATH)
    assert verdict.changes == ""
    assert [one.at for one in starts.good] == [4, 5, 6, 7, 9]


async def test_a_slower_start_is_in_the_log_and_in_the_status(tmp_path: Path) -> None:
    """It serves all the same."""
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    path = record_path("w", environ)
    save_starts(path, starts_of(StartSpeed(1e9, 1e9, 64)))
    keys = {"engine": "vllm", "model": "builtin:herma-tiny", "probe_context": 64}
    with foreign_process() as engine:
        async with open_gateway_end() as gateway:
            keys |= {"url": engine.url, "environ": environ}
            with worker_process(tmp_path, gateway.address, **keys) as worker:  # type: ignore[arg-type]
                await gateway.wait_ready()
                line = await worker.wait_line("warning: prompts of 64 tokens at")
                loss = await gateway.wait(SpeedLoss)
                assert any(figure in line for figure in loss.figures)
                assert loss.num_changes > 0
                line = await worker.wait_line("changed since the last good start")
                assert "code: engine was empty, is 0." in line
                code, text = await worker.command("status", "w")
                assert code == 0
                assert "w: answers at" in text
    starts = load_starts(path)
    assert len(starts.good) == 1
    assert starts.latest is not None
    assert "model.safetensors" in starts.latest.weights
    assert starts.latest.arguments[:1] == ("--config",)


async def test_a_record_that_cannot_be_read_or_kept_is_said(tmp_path: Path) -> None:
    """It costs the comparison and nothing else."""
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    path = record_path("w", environ)
    path.parent.mkdir(parents=True)
    path.write_text("{")
    async with open_gateway_end() as gateway:
        with worker_process(tmp_path, gateway.address, environ=environ) as worker:
            await gateway.wait_ready()
            line = await worker.wait_line("starts are not compared")
            assert f"remove {path}" in line


def test_any_name_is_a_file_of_its_own(tmp_path: Path) -> None:
    """Names may hold slashes."""
    path = record_path("../a/b", {"HOME": "/h"})
    assert path == Path("/h/.local/state/herma/starts/..%2Fa%2Fb.json")
    save_starts(tmp_path / "w.json", starts_of(GOOD))
    save_starts(tmp_path / "w.json", StartRecords())
    assert [one.name for one in tmp_path.iterdir()] == ["w.json"]
    assert (
        msgspec.json.decode((tmp_path / "w.json").read_bytes(), type=StartRecords) == StartRecords()
    )
