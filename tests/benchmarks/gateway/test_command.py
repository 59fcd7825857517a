"""`herma bench gateway`: its pure parts, and each test once, in small."""

import json
from pathlib import Path

import pytest

from benchmarks.gateway.bench import GatewayBench, GatewayFigures, Size
from benchmarks.gateway.cases import CASES
from benchmarks.gateway.command import named_tests
from benchmarks.gateway.job import LoadOutcome, Spread, spread
from benchmarks.gateway.soak import leaving_job
from benchmarks.gateway.table import table
from herma.cli import main
from protocol.errors import ConfigError

KEYS = {
    "cpu_us_per_request_repeated",
    "cpu_us_per_request_fresh",
    "cpu_us_per_chunk_paced",
    "cpu_us_per_token_256",
    "provider_us_per_event",
    "added_ms_p50",
    "added_ms_p99",
    "gap_ms_p99",
    "gap_direct_ms_p99",
    "idle_kb_per_stream",
    "rss_mb",
    "start_s",
}


def outcome(**fields: object) -> LoadOutcome:
    none = Spread(0, 0.0, 0.0, 0.0)
    values = {"seconds": 1.0, "answers": 2, "tokens": 6, "latencies": none, "gaps": none}
    rest = {"errors": [], "num_errors": 0, "num_left": 0, "deaf_cut": 0, "cpu_s": 0.0}
    return LoadOutcome(**{**values, **rest, **fields})  # type: ignore[arg-type]


def test_names_of_tests_are_checked() -> None:
    """`all` is everything short; an unknown name is told with the known ones."""
    assert named_tests("all") == tuple(CASES)
    assert named_tests("wide,leak,wide") == ("wide", "leak")
    with pytest.raises(ConfigError, match=r"'speed'.*streams, burst, two, leak, idle"):
        named_tests("speed")


def test_percentiles_are_in_milliseconds() -> None:
    """Percentiles are of all values, and zeros if there are none."""
    values = spread([number / 1e3 for number in range(101)])
    assert (values.count, values.p50, values.p99, values.most) == (101, 50.0, 99.0, 100.0)
    assert spread([]).count == 0


def test_a_run_that_warms_up_does_not_count() -> None:
    """One before those that do, unless there is nothing to warm."""
    bench = GatewayBench(Size(runs=2), lambda _: None)
    assert list(bench.runs("x")) == [False, True, True]
    assert list(bench.runs("x", is_warmed=False)) == [True, True]


def test_figures_are_medians_and_memory_is_the_worst() -> None:
    """Times are the median of all runs, memory is the largest of all runs."""
    figures = GatewayFigures()
    for value in (3.0, 1.0, 2.0):
        figures.add("start_s", value)
        figures.add("rss_mb", value)
    assert figures.medians() == {"start_s": 2.0, "rss_mb": 3.0}


def test_what_is_wrong_is_kept() -> None:
    """An answer or a token too few, or an error of the load generator."""
    figures = GatewayFigures()
    figures.add_outcome("good", outcome(), answers=2, tokens=6)
    assert not figures.errors
    figures.add_outcome("few", outcome(tokens=5), answers=2, tokens=6)
    figures.add_outcome("bad", outcome(num_errors=1, errors=["oh"]), answers=2, tokens=6)
    assert [error.split(":")[0] for error in figures.errors] == ["few", "bad"]


def test_the_table_holds_each_figure() -> None:
    """The table holds each figure in its own words, and the gap as the difference that it is."""
    told = table({"start_s": 0.6, "gap_ms_p99": 23.0, "gap_direct_ms_p99": 20.0})
    assert [line.rsplit(maxsplit=1) for line in told.splitlines()[1:]] == [
        ["gap p99 over the direct run, ms", "3.00"],
        ["start to first 200, s", "0.60"],
    ]


def test_clients_leave_in_every_way() -> None:
    """Clients leave not at all, at once, or somewhere in between, in the same way for the same
    seed.
    """
    job = leaving_job(1, 300, 7)
    ways = [ask.leave_after_bytes for ask in job.asks]
    assert min(ways.count(None), ways.count(0)) > 50
    assert sum(1 for way in ways if way) > 50
    assert job == leaving_job(1, 300, 7)


def test_every_key_is_measured_and_every_answer_right(tmp_path: Path) -> None:
    """The whole benchmark with few requests: real processes on loopback."""
    report = tmp_path / "report.json"
    assert main(["bench", "gateway", "--tests", "smoke", "--json", str(report)]) == 0
    told = json.loads(report.read_text())
    assert told["is_right"]
    assert all(told[key] > 0 for key in KEYS - {"added_ms_p50", "added_ms_p99"})
    assert told.keys() >= KEYS
    assert told["streams"]["tokens"] == 20 * 20
    assert told["leak"]["left"] > 0
    assert told["idle"]["streams"] == 100
    assert all(value > 0 for value in told["two"]["cpu_us_per_token"].values())
