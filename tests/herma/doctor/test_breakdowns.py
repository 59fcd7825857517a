"""Three breakdowns of real fleets, each named in one line."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from config import Config
from herma.commands.doctor import report
from herma.doctor import examine
from tests.fakes.foreign_process import stub_argv
from tests.fakes.gateway_end import open_gateway_end
from tests.fakes.ports import free_ports
from tests.fakes.worker_process import worker_process
from tests.herma.doctor.machine import Machine
from workers.ipc import StartSpeed
from workers.starts import StartRecords, load_starts, save_starts

GIB_KB = 2**20
UNIT = """[Service]
ExecStart=/usr/bin/docker exec vllm-head /opt/start_dsv4.sh
Restart=always
RestartSec=30
"""
GOOD = ["--max-model-len", "131072", "--enable-expert-parallel"]
DRIFTED = ["--max-model-len", "200000"]


def lines_of(machine: Machine) -> list[str]:
    """The first line of each finding that is an error or a warning."""
    found = report(examine(machine.host, Config()))
    return [line for line in found if line[0] in "✗!"]


def test_a_ghost_unit(machine: Machine) -> None:
    """A unit whose script was in the writable layer of a container that was made anew: status 127
    every 30 seconds.
    """
    machine.write("/etc/systemd/system/engine.service", UNIT)
    machine.write("/usr/bin/docker", mode=0o755)
    machine.answer("docker diff vllm-head", "C /opt\n")
    machine.answer("docker exec vllm-head test -e /opt/start_dsv4.sh", "", 1)
    (line,) = lines_of(machine)
    assert line.startswith("✗ units: /etc/systemd/system/engine.service starts /opt/start_dsv4.sh")
    assert line.endswith("in vllm-head, which does not exist")


def test_page_cache_that_looks_like_used_memory(machine: Machine) -> None:
    """Two hosts of unified memory had 110 GiB of weights in their page cache."""
    machine.with_gpu("[N/A]")
    machine.write(
        "/proc/meminfo",
        f"MemTotal: {128 * GIB_KB} kB\nMemFree: {11 * GIB_KB} kB\nCached: {110 * GIB_KB} kB\n",
    )
    machine.write("/proc/sys/vm/drop_caches", "0")
    assert lines_of(machine) == [
        "! memory: page cache holds 110 of 128 GiB of unified memory",
    ]


def herma(*words: str, state: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "herma", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XDG_STATE_HOME": str(state)},
    )


async def good_start(folder: Path, state: Path, port: str, flags: list[str]) -> None:
    """A worker that launches its engine with `flags`, until it has proved good."""
    async with open_gateway_end() as gateway:
        keys: dict[str, Any] = {
            "engine": "vllm",
            "model": "builtin:herma-tiny",
            "probe_context": 0,
            "url": f"http://127.0.0.1:{port}",
            "launch": {"argv": [*stub_argv(port), *flags], "env": {"STUB_TOKEN": "hunter2"}},
            "environ": {"XDG_STATE_HOME": str(state), "OMP_NUM_THREADS": "8"},
        }
        with worker_process(folder, gateway.address, **keys) as worker:
            await gateway.wait_ready()
            await worker.wait_line("the start is recorded")


def forget_speed(path: Path) -> None:
    """A busy machine may be 10 % slower at the next start."""
    starts = load_starts(path)
    good = tuple(msgspec.structs.replace(one, speed=StartSpeed()) for one in starts.good)
    save_starts(path, StartRecords(good, good[-1]))


async def test_drifted_settings(tmp_path: Path) -> None:
    """A start by hand with other arguments: before it both commands name them, after it only the
    comparison with the good start before it. Secrets are in none of the files.
    """
    state, port = tmp_path / "state", str(free_ports(1))
    await good_start(tmp_path, state, port, GOOD)
    same = herma("diff", "w", state=state)
    assert (same.returncode, same.stderr) == (0, "")
    assert same.stdout.startswith("w: nothing has changed since the good start of 20")

    file = tmp_path / "herma.toml"
    file.write_text(file.read_text().replace(json.dumps(GOOD)[1:-1], json.dumps(DRIFTED)[1:-1]))
    drift = "--enable-expert-parallel is gone; --max-model-len was 131072, is 200000"
    examined = herma("doctor", state=state)
    assert f"! settings: worker `w` has drifted from its last good start: {drift}" in (
        examined.stdout.splitlines()
    )
    differs = herma("diff", "--json", state=state)
    assert differs.returncode == 1, differs.stderr
    (one,) = json.loads(differs.stdout)
    assert [found["boundary"] for found in one["differences"]] == ["arguments", "arguments"]

    (record,) = (state / "herma" / "starts").glob("w@*.json")
    kept = file.rename(tmp_path / "moved.toml")
    lines = herma("doctor", state=state).stdout.splitlines()
    (at,) = [at for at, line in enumerate(lines) if line.startswith("! settings: ")]
    assert "cannot be read" in lines[at]
    assert f"rm {record}" in lines[at + 2]
    assert "herma diff" not in lines[at + 2]
    kept.rename(file)

    forget_speed(record)
    await good_start(tmp_path, state, port, DRIFTED)
    before = herma("diff", "w", "--before", "--deep", state=state)
    assert before.returncode == 1
    assert "--max-model-len was 131072, is 200000" in before.stdout
    records = [path.read_text() for path in (state / "herma" / "starts").iterdir()]
    assert len(records) == 2
    assert not any("hunter2" in text for text in records)


def test_what_cannot_be_compared_is_one_line(tmp_path: Path) -> None:
    """No record, and one that is broken."""
    for words, part in (([], "start one first"), (["nobody"], "there are records of none")):
        done = herma("diff", *words, state=tmp_path)
        assert done.returncode == 2
        assert part in done.stderr
    folder = tmp_path / "herma" / "starts"
    folder.mkdir(parents=True)
    (folder / "w.json").write_text("{}")
    done = herma("diff", state=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "none of its starts has proved good" in done.stderr
    (folder / "w.json").write_text("{")
    assert "cannot be read" in herma("diff", state=tmp_path).stderr
    assert "remove" in herma("doctor", state=tmp_path).stdout
