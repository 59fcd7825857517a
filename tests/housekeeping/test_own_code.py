"""How a process starts others with its own code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from housekeeping.own_code import module_argv, own_entry
from protocol.errors import ConfigError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("words", "entry", "behind"),
    [
        (
            ["/e/bin/python", "-m", "herma", "--parent", "7", "worker"],
            ("/e/bin/python", "-m", "herma"),
            ("--parent", "7", "worker"),
        ),
        (
            ["/e/bin/python", "-X", "dev", "-P", "-m", "herma", "worker"],
            ("/e/bin/python", "-P", "-m", "herma"),
            ("worker",),
        ),
        (
            ["/e/bin/python", "/e/bin/herma", "worker", "--name", "w"],
            ("/e/bin/herma",),
            ("worker", "--name", "w"),
        ),
        (
            ["/e/bin/python", "-m", "workers", "--name", "w"],
            ("/e/bin/python", "-m", "herma"),
            ("worker", "--name", "w"),
        ),
    ],
)
def test_the_options_of_a_process_are_those_behind_the_program(
    words: list[str], entry: tuple[str, ...], behind: tuple[str, ...]
) -> None:
    """However it was started."""
    assert own_entry(words) == (entry, behind)


def test_links_to_an_environment_are_followed(tmp_path: Path) -> None:
    """The interpreter's own link is not: it is what makes the environment."""
    (tmp_path / "1.0" / "bin").mkdir(parents=True)
    (tmp_path / "1.0" / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "current").symlink_to("1.0")
    python = str(tmp_path / "current" / "bin" / "python")
    assert own_entry([python, "-m", "herma"])[0][0] == str(tmp_path / "1.0" / "bin" / "python")
    script = str(tmp_path / "current" / "bin" / "herma")
    assert own_entry([python, script])[0] == (str(tmp_path / "1.0" / "bin" / "herma"),)


def test_a_process_of_another_kind_has_no_entry() -> None:
    """A process of another kind, as one that a test runs, has no entry."""
    with pytest.raises(ConfigError, match="not started as `herma`"):
        own_entry(["/usr/bin/python", "server.py"])


def test_packages_of_the_working_directory_are_not_taken(tmp_path: Path) -> None:
    """A checkout of another version may lie there."""
    (tmp_path / "protocol").mkdir()
    (tmp_path / "protocol" / "__init__.py").write_text("raise SystemExit('the wrong code')")
    code = "from housekeeping.own_code import module_argv; print(*module_argv('protocol.version'))"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    said = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    words = said.stdout.split()
    assert "-P" in words
    assert subprocess.run(words, cwd=tmp_path, env=environ, check=False).returncode == 0
    assert "-P" in module_argv("herma") or Path.cwd() == ROOT
