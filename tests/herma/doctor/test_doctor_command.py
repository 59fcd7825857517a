"""The command: its report, its exit status, its repairs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from herma.commands.doctor import looked_at, mend, report
from herma.doctor import Finding, Fix
from tests.herma.doctor.machine import Machine

BAD = Finding("error", "units", "it is gone", "nothing starts", "install it")
SLOW = Finding("warning", "memory", "cache", "looks full", "drop it")


def doctor(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "herma", "doctor", *words],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ),
    )


def test_the_report_begins_with_the_worst() -> None:
    lines = report([SLOW, BAD, SLOW])
    assert lines[:3] == [
        "✗ units: it is gone",
        "    why     nothing starts",
        "    remedy  install it",
    ]
    assert lines[-1] == "1 error, 2 warnings"
    assert report([]) == ["all is well: nothing found"]


def test_this_host_with_a_broken_model(tmp_path: Path) -> None:
    """Exit status 1, and the finding as JSON beside what else this host has."""
    model = tmp_path / "m"
    model.mkdir()
    (model / "config.json").write_text("{}")
    file = tmp_path / "herma.toml"
    file.write_text(
        f'[gateway]\nport = 0\n[[models]]\nname = "m"\n[[workers]]\nname = "w"\nmodel = "{model}"\n'
    )
    done = doctor("--config", str(file), "--json")
    assert done.returncode == 1, done.stderr
    whats = [one["what"] for one in json.loads(done.stdout)]
    assert f"{model}/tokenizer.json does not exist" in whats


def test_repairs(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    stale = machine.write("/dev/shm/psm_1", "x")
    file = machine.write("/proc/sys/vm/drop_caches", "0")
    fix = Fix(write=(file, "1\n"), remove=(stale, stale.with_name("gone")))
    missing = Fix(write=(machine.root / "no/such/folder", ""))
    mend(
        [
            BAD,
            Finding("warning", "memory", "stale", "", "", fix),
            Finding("warning", "memory", "odd", "", "", missing),
        ]
    )
    assert not stale.exists()
    assert file.read_text() == "1\n"
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "mended: stale (2 done)"
    assert said[1].startswith("not mended: odd: No such file or directory")
    assert len(said) == 2


def test_it_says_what_it_looked_at(tmp_path: Path) -> None:
    """The report says what was examined, also where nothing was found."""
    file = tmp_path / "herma.toml"
    file.write_text("[gateway]\nport = 0\n")
    told = [*looked_at(None)], [*looked_at(file)]
    assert all(lines[0].startswith("looked at this host: units, driver, ") for lines in told)
    assert "--config FILE looks at those of a file" in told[0][1]
    assert told[1][1].startswith(f"looked at {file}: ports, ")
