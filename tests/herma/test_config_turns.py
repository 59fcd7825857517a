"""`herma config check` with what earlier starts have measured."""

from pathlib import Path

import msgspec
import pytest

from config import load_config
from herma.commands.config import measured_workers
from workers.turns import TurnRecord, engine_id, overfull, record_path, together, write_record

GIB = 2**30
CONFIG = """
[[models]]
name = "a"
[[models]]
name = "b"
[[workers]]
name = "a"
model = "builtin:herma-tiny"
serves = "a"
device = "cuda:0"
[[workers]]
name = "b"
model = "builtin:herma-tiny"
serves = "b"
device = "cuda:0"
"""


def record(worker: str, gib: int, residency: str = "always") -> TurnRecord:
    total = 80 * GIB
    return TurnRecord(
        worker, "f", "cuda-0", "e", residency=residency, total_bytes=total, awake_bytes=gib * GIB
    )


def test_always_resident_workers_that_do_not_fit_are_named() -> None:
    (line,) = overfull([record("a", 60), record("b", 30), record("c", 70, "on-demand")])
    assert line.startswith("cuda-0 has 80.00 GiB")
    assert "(a 60.00 GiB, b 30.00 GiB)" in line
    assert not list(overfull([record("a", 60), record("b", 20)]))
    assert not list(overfull([record("a", 60)]))


def test_a_worker_that_finds_no_room_beside_the_always_resident_ones_is_named() -> None:
    """A worker without room beside the always resident ones is named: its requests would wait for
    ever.
    """
    (line,) = overfull(
        [record("a", 60), record("b", 30, "on-demand"), record("c", 20, "on-demand")]
    )
    assert "b was measured to take 30.00 GiB: it never wakes beside" in line
    assert "(a 60.00 GiB)" in line
    asleep = msgspec.structs.replace(record("b", 30, "on-demand"), asleep_bytes=20 * GIB)
    (line,) = overfull([record("a", 70, "on-demand"), asleep])
    assert "a was measured to take 70.00 GiB: it never wakes; set" in line


def test_the_sets_that_fit_together_are_named() -> None:
    found = [
        record("always", 10),
        record("a", 40, "on-demand"),
        record("b", 30, "on-demand"),
        record("c", 60, "on-demand"),
    ]
    (line,) = together(found)
    assert line == "cuda-0 (80.00 GiB) holds together: always + a + b; or always + c"


def test_the_check_refuses_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check refuses what was measured, by records of this file alone, and of workers whose
    engines have the same keys.
    """
    from herma.cli import main

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "herma.toml"
    path.write_text(CONFIG)
    config, folder = load_config(path), tmp_path / "state" / "herma" / "turns"
    for worker, gib in zip(config.workers, (60, 30), strict=True):
        one = record(worker.name, gib)
        one = msgspec.structs.replace(one, file=str(path), engine=engine_id(worker))
        write_record(record_path(folder, worker.name, str(path)), one)
    assert {one.worker for one in measured_workers(config, path)} == {"a", "b"}
    assert main(["config", "check", str(path)]) != 0
    on_demand = CONFIG.replace('name = "b"\n[[w', 'name = "b"\nresidency = "on-demand"\n[[w')
    path.write_text(on_demand)
    assert main(["config", "check", str(path)]) != 0  # it would never wake
    path.write_text(
        on_demand.replace('name = "a"\n[[m', 'name = "a"\nresidency = "on-demand"\n[[m')
    )
    assert main(["config", "check", str(path)]) == 0
    path.write_text(f"{CONFIG}kv_tokens = 4096\n")
    assert main(["config", "check", str(path)]) == 0
