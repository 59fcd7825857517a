"""The log of the tests on a card: nothing that finished is lost, and nothing is run twice."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu_log import lines, main

ROOT = Path(__file__).parents[1]
FILE = """
import os, pathlib, time
import pytest

def test_a(): pass
@pytest.mark.parametrize("n", [1, 2])
def test_b(n): assert n == 1, "two is wrong"
@pytest.mark.skip(reason="needs another card")
def test_c(): pass
def test_d():
    if pathlib.Path("slow").exists():
        time.sleep(600)
"""


def _argv(*options: str) -> list[str]:
    plain = ["-q", "-p", "tests.gpu_log", "-p", "no:cacheprovider", "-c", "/dev/null"]
    return [sys.executable, "-m", "pytest", *plain, "--rootdir", ".", *options, "test_some.py"]


def _environment(folder: Path, *, resumes: bool) -> dict[str, str]:
    changes = {"HERMA_GPU_LOG": str(folder / "log.jsonl"), "HERMA_GPU_RESUME": str(int(resumes))}
    return {**os.environ, "PYTHONPATH": str(ROOT), **changes}


def _outcomes(folder: Path) -> dict[str, str]:
    return {
        line["test"].partition("::")[2]: line["outcome"] for line in lines(folder / "log.jsonl")
    }


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["alone", "shared"])
def test_a_run_that_is_killed_goes_on_where_it_was(
    tmp_path: Path, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Tests that passed and were skipped are not run again; one that failed is."""
    (tmp_path / "test_some.py").write_text(FILE)
    (tmp_path / "slow").touch()
    argv, environment = _argv(*options), _environment(tmp_path, resumes=False)
    with subprocess.Popen(
        argv, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    ) as process:
        while len(_outcomes(tmp_path)) < 4:
            assert process.poll() is None
        os.killpg(process.pid, signal.SIGKILL)
    before = {"test_a": "passed", "test_b[1]": "passed", "test_b[2]": "failed", "test_c": "skipped"}
    assert _outcomes(tmp_path) == before
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"test": "test_some.py::test_a", "outc')  # the kill came while it was written
        file.write("\n")
    (tmp_path / "slow").unlink()
    environment = _environment(tmp_path, resumes=True)
    said = subprocess.run(
        argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert said.returncode == 1
    assert "1 failed, 1 passed" in said.stdout
    assert "FAILED test_some.py::test_b[2]: AssertionError: two is wrong" in said.stdout
    assert _outcomes(tmp_path) == {**before, "test_d": "passed"}
    assert main(tmp_path / "log.jsonl") == 1
    out = capsys.readouterr().out
    assert "3 passed, 1 failed, 1 skipped" in out
    assert "SKIPPED 1 x Skipped: needs another card" in out


def test_a_new_run_begins_a_new_log(tmp_path: Path) -> None:
    """A new run begins a new log, and a log without tests is no success."""
    (tmp_path / "log.jsonl").write_text(json.dumps({"test": "x", "outcome": "passed"}) + "\n")
    (tmp_path / "test_some.py").write_text("def test_a(): pass\n")
    environment = _environment(tmp_path, resumes=False)
    subprocess.run(_argv(), cwd=tmp_path, env=environment, capture_output=True, check=True)
    assert _outcomes(tmp_path) == {"test_a": "passed"}
    assert main(tmp_path / "log.jsonl") == 0
    assert main(tmp_path / "none.jsonl") == 2
