"""Where a benchmark writes its figures is checked before it measures."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.result_file import result_file


def test_the_directory_of_a_result_is_made(tmp_path: Path) -> None:
    named = tmp_path / "new" / "below" / "figures.json"
    assert result_file(str(named)) == named
    assert named.parent.is_dir()
    assert not named.exists()


@pytest.mark.parametrize("name", ["", "file/figures.json", "file/below/figures.json"])
def test_a_place_that_cannot_be_written_is_said_at_once(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(argparse.ArgumentTypeError, match=r"name (another|a) file"):
        result_file(str(tmp_path / name))


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_no_benchmark_begins_without_a_place_for_its_figures(tmp_path: Path, option: str) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    command = [sys.executable, "-m", "herma", "bench", "http", option, f"{tmp_path}/file/figures"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"argument {option}: {tmp_path}/file cannot be made" in done.stderr
