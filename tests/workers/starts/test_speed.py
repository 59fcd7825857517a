"""The speed of a start against the last good one."""

from pathlib import Path

import msgspec

from housekeeping.process_files import make_scratch, remove
from protocol.messages import SpeedLoss
from tests.fakes.foreign_process import foreign_process
from tests.fakes.gateway_end import open_gateway_end
from tests.fakes.worker_process import worker_process
from workers.ipc import StartSpeed
from workers.starts import (
    StartRecord,
    StartRecords,
    claim_record,
    hashes_path,
    judged,
    load_starts,
    record_of,
    record_path,
    recorded_workers,
    save_starts,
)

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


def test_another_model_is_measured_by_itself() -> None:
    """A larger model is slower than a small one, which is no loss: its first start is good, later
    ones have it as their measure, and the small one keeps its own.
    """

    def start(at: float, model: str, speed: float) -> StartRecord:
        return StartRecord(at, config={"model": model}, speed=StartSpeed(speed, 1000.0, 8192))

    starts, verdict = judged(StartRecords(), start(1.0, "small", 300.0), PATH)
    starts, verdict = judged(starts, start(2.0, "large", 30.0), PATH)
    assert (verdict.warnings, verdict.changes) == ((), "config: model was small, is large")
    assert starts.last_good == start(2.0, "large", 30.0)
    assert judged(starts, start(3.0, "large", 20.0), PATH)[1].figures
    assert judged(starts, start(3.0, "small", 200.0), PATH)[1].figures
    starts, verdict = judged(starts, start(3.0, "small", 290.0), PATH)
    assert (verdict.warnings, verdict.changes) == ((), "")
    assert [(one.at, one.speed.decode_tokens_per_s) for one in starts.good] == [(2, 30), (3, 300)]


async def test_a_slower_start_is_in_the_log_and_in_the_status(tmp_path: Path) -> None:
    """A slower start is in the log and in the status, and serves."""
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    path = record_path("w", environ, str(tmp_path / "herma.toml"))
    save_starts(path, starts_of(StartSpeed(1e9, 1e9, 64)))
    keys = {"engine": "vllm", "model": "builtin:herma-tiny", "probe_context": 64}
    with foreign_process() as engine:
        async with open_gateway_end() as gateway:
            keys |= {"url": engine.url, "environ": environ}
            with worker_process(tmp_path, gateway.address, **keys) as worker:  # type: ignore[arg-type]
                await gateway.wait_ready()
                line = await worker.wait_line("WARNING worker w: prompts of 64 tokens at")
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
    """A record that cannot be read or kept is reported, and costs only the comparison."""
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    path = record_path("w", environ, str(tmp_path / "herma.toml"))
    path.parent.mkdir(parents=True)
    path.write_text("{")
    async with open_gateway_end() as gateway:
        with worker_process(tmp_path, gateway.address, environ=environ) as worker:
            await gateway.wait_ready()
            line = await worker.wait_line("starts are not compared")
            assert f"remove {path}" in line


def _of_file(file: Path) -> StartRecord:
    """A start by that configuration file."""
    words = ("--config", file.name, "--name", "w")
    return StartRecord(1.0, arguments=words, folder=str(file.parent))


def test_workers_of_two_files_have_records_of_their_own(tmp_path: Path) -> None:
    """Although they have one name. A file that `herma up` makes of its words lasts for one start:
    all such starts have one record.
    """
    environ = {"HOME": "/h"}
    one, two = record_path("w", environ, "/etc/a.toml"), record_path("w", environ, "/etc/b.toml")
    assert one != two
    assert {path.name[:2] for path in (one, two)} == {"w@"}
    scratch = make_scratch("up")
    try:
        path = record_path("w", environ, str(scratch / "herma.toml"))
    finally:
        remove(scratch)
    assert path == record_path("w", environ)


def test_the_record_of_before_goes_to_the_file_of_its_latest_start(tmp_path: Path) -> None:
    """The record of before goes to the file of its latest start, with the hashes of its model's
    files. Until then commands find it by the name alone.
    """
    old, one, two = tmp_path / "w.json", tmp_path / "one.toml", tmp_path / "two.toml"
    save_starts(old, StartRecords().with_good(_of_file(one)))
    hashes_path(old).write_text("{}")
    assert record_of(tmp_path, "w", str(one)) == old
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    mine, other = (tmp_path / record_path("w", environ, str(file)).name for file in (one, two))
    claim_record(other, str(two))
    claim_record(tmp_path / "v@0.json", str(one))
    assert not other.exists()
    claim_record(mine, str(one))
    assert load_starts(mine).good == (_of_file(one),)
    assert not old.exists()
    assert hashes_path(mine).read_text() == "{}"
    assert record_of(tmp_path, "w", str(one)) == mine
    assert record_of(tmp_path, "w", str(two)) is None
    assert recorded_workers(tmp_path) == [("w", mine)]
    save_starts(old, StartRecords())
    claim_record(mine, str(one))
    assert load_starts(mine).good == (_of_file(one),)


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
