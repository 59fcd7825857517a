"""What one more gateway process adds: the table, and a small run of real processes."""

import json
from pathlib import Path

import pytest

from benchmarks.gateway.scaling import Cost, main, table


def test_the_busiest_process_bounds_the_rate() -> None:
    """Two cores serve twice as much only if the connections fall evenly."""
    assert Cost(100.0, 1.0, 0.0).rate_of(1) == 10_000
    assert Cost(100.0, 0.5, 0.0).rate_of(2) == 20_000
    assert Cost(100.0, 0.8, 0.0).rate_of(2) == pytest.approx(12_500)


def test_the_table_says_what_was_calculated() -> None:
    """The table says what was calculated, from the CPU time of the most processes that ran."""
    runs = {
        ("relays", 1): [Cost(100.0, 1.0, 4_000.0)] * 3,
        ("relays", 2): [Cost(125.0, 0.5, 5_000.0)] * 3,
    }
    lines = [line.split() for line in table(runs, (8,)).splitlines()]
    assert lines[1] == ["relays", "1", "100.0", "100%", "4000", "10000"]
    assert lines[2] == ["relays", "2", "125.0", "50%", "5000", "16000"]
    assert lines[3] == ["relays", "8", "(calculated)", "125.0", "64000"]


@pytest.mark.slow
def test_two_processes_are_measured(tmp_path: Path) -> None:
    """Every answer is checked; the processes' shares add up."""
    report = tmp_path / "report.json"
    words = ["--processes", "2", "--runs", "1", "--share", "0.03", "--json", str(report)]
    assert main(words) == 0
    told = json.loads(report.read_text())
    assert told["is_right"]
    assert [run["processes"] for run in told["runs"]] == [2] * 3
    for run in told["runs"]:
        assert run["cpu_us"] > 0
        assert 0.5 <= run["busiest"] <= 1
