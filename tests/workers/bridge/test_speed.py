"""The speed of a start against the last good one."""

from pathlib import Path

import msgspec

from tests.fakes.foreign_process import foreign_process
from tests.fakes.gateway_end import open_gateway_end
from tests.fakes.worker_process import worker_process
from workers.bridge.speed import StartSpeed, compare_and_record, judged, record_path

GOOD = StartSpeed(79.4, 1000.0, 8192)


def test_a_slower_start_is_warned_about_and_does_not_become_the_measure(tmp_path: Path) -> None:
    """Ten percent, each figure by itself; the file is what the next start is held against."""
    path = tmp_path / "starts" / "w.json"
    assert compare_and_record(path, GOOD) == []
    (warning,) = compare_and_record(path, StartSpeed(71.4, 1000.0, 8192))
    assert warning.startswith("answers at 71.4 tokens/s, 10% slower than the 79.4")
    assert str(path) in warning
    (warning,) = compare_and_record(path, StartSpeed(79.4, 500.0, 8192))
    assert warning.startswith("prompts of 8192 tokens at 500.0")
    assert msgspec.json.decode(path.read_bytes(), type=StartSpeed) == GOOD
    assert compare_and_record(path, StartSpeed(72.0, 1000.0, 8192)) == []
    assert compare_and_record(path, StartSpeed(66.0, 1000.0, 8192)) == []


def test_what_is_unknown_is_not_compared(tmp_path: Path) -> None:
    """Another length of the prompt, a figure that was not taken."""
    path = tmp_path / "w.json"
    assert compare_and_record(path, GOOD) == []
    assert compare_and_record(path, StartSpeed(0.0, 10.0, 4096)) == []


def test_a_record_that_cannot_be_read_or_kept_is_said(tmp_path: Path) -> None:
    """It costs the comparison and nothing else."""
    path = tmp_path / "w.json"
    path.write_text("{")
    assert "cannot be read" in compare_and_record(path, GOOD)[0]
    (tmp_path / "file").write_text("")
    assert "cannot be" in compare_and_record(tmp_path / "file" / "w.json", GOOD)[0]
    assert judged("w", {}, GOOD) == [
        "speeds of starts are not compared: set XDG_STATE_HOME or HOME"
    ]


def test_any_name_is_a_file_of_its_own() -> None:
    """Names may hold slashes."""
    path = record_path("../a/b", {"HOME": "/h"})
    assert path == Path("/h/.local/state/herma/starts/..%2Fa%2Fb.json")


async def test_a_slower_start_is_in_the_log_and_in_the_status(tmp_path: Path) -> None:
    """It serves all the same."""
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    path = record_path("w", environ)
    path.parent.mkdir(parents=True)
    path.write_bytes(msgspec.json.encode(StartSpeed(1e9, 1e9, 64)))
    keys = {"engine": "vllm", "model": "builtin:herma-tiny", "probe_context": 64}
    with foreign_process() as engine:
        async with open_gateway_end() as gateway:
            keys |= {"url": engine.url, "environ": environ}
            with worker_process(tmp_path, gateway.address, **keys) as worker:  # type: ignore[arg-type]
                await gateway.wait_ready()
                await worker.wait_line("warning: prompts of 64 tokens at")
                code, text = await worker.command("status", "w")
                assert code == 0
                assert "w: answers at" in text
