"""`herma bench routing` on the command line."""

import json
from pathlib import Path

import pytest

from benchmarks.routing.moves import LEFT_TOKENS
from gateway.routing.placement_cost import TIE_MS, TIE_RATIO
from herma.cli import main

ROW = (
    "policy", "trace", "workers", "load", "seed", "ttft_mean_ms", "ttft_p50_ms",
    "ttft_p90_ms", "ttft_p99_ms", "ttft_max_ms", "hit_rate", "throughput_tok_s", "imbalance",
)  # fmt: skip
SMALL = ("--limit", "60", "--workers", "2", "--load", "0.8", "--processes", "1")


def trace_file(tmp_path: Path) -> Path:
    """Forty requests that share a block."""
    path = tmp_path / "short.jsonl"
    lines = [
        {"timestamp": 900 * n, "input_length": 1030, "output_length": 9, "hash_ids": [0, n + 1, 0]}
        for n in range(40)
    ]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def test_a_file_and_fleets_make_rows_and_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One row for each trace, seed and policy, with exactly these fields; a file has one seed."""
    report = tmp_path / "rows.json"
    names = ("--policies", "herma,least_requests", "--seeds", "0,1")
    traces = ("--trace", str(trace_file(tmp_path)), "--trace", "fleet")
    assert main(["bench", "routing", *traces, *SMALL, *names, "--json", str(report)]) == 0
    rows = json.loads(report.read_bytes())
    assert all(tuple(row) == ROW for row in rows)
    found = sorted((row["trace"], row["seed"], row["policy"]) for row in rows)
    policies = ("herma", "least_requests")
    assert found == [
        *(("fleet_agents", seed, policy) for seed in (0, 1) for policy in policies),
        *(("fleet_forks", seed, policy) for seed in (0, 1) for policy in policies),
        *(("short", 0, policy) for policy in policies),
    ]
    assert "short x2 at 0.8" in capsys.readouterr().out


def test_rows_of_an_earlier_run_stand_beside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was simulated again takes the place of its earlier row; an unreadable file is named."""
    trace, report = ("--trace", str(trace_file(tmp_path))), tmp_path / "rows.json"
    both = ("--policies", "least_requests,herma", "--json", str(report))
    assert main(["bench", "routing", *trace, *SMALL, *both]) == 0
    before = json.loads(report.read_bytes())
    ours = ("--policies", "herma", "--beside", str(report), "--json", str(tmp_path / "new.json"))
    assert main(["bench", "routing", *trace, *SMALL, *ours]) == 0
    assert json.loads((tmp_path / "new.json").read_bytes()) == before
    capsys.readouterr()
    report.write_text("{}")
    assert main(["bench", "routing", *trace, *SMALL, *ours]) == 2
    assert f"--beside {report}: not the rows" in capsys.readouterr().err


def test_a_table_goes_on_where_it_was_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows that are in the folder are taken from there; others are simulated and put there."""
    folder, report = tmp_path / "rows", tmp_path / "rows.json"
    trace = ("--trace", str(trace_file(tmp_path)), "--rows", str(folder), "--json", str(report))
    assert main(["bench", "routing", *trace, *SMALL, "--policies", "herma"]) == 0
    (file,) = folder.iterdir()
    row = json.loads(file.read_bytes())
    assert [row] == json.loads(report.read_bytes())
    row["ttft_mean_ms"] = 12_345.0
    file.write_text(json.dumps(row))
    assert main(["bench", "routing", *trace, *SMALL, "--policies", "least_requests,herma"]) == 0
    assert len([*folder.iterdir()]) == 2
    assert json.loads(report.read_bytes())[1] == row
    other_size = (*SMALL, "--policies", "herma", "--kv-tokens", "20000")
    assert main(["bench", "routing", *trace, *other_size]) == 0
    assert json.loads(report.read_bytes())[0] != row
    capsys.readouterr()
    file.write_text("{")
    assert main(["bench", "routing", *trace, *SMALL, "--policies", "herma"]) == 2
    assert f"{file} is no row" in capsys.readouterr().err


def test_announced_waits_are_beside_real_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """On an overloaded fleet long waits are announced within a factor of three, nine in ten."""
    small = ("--trace", "long", "--limit", "500", "--workers", "2", "--load", "1.1", "--seeds", "1")
    assert main(["bench", "routing", "--waits", *small]) == 0
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    documents = rows["long_documents"]
    num_waited, num_long = int(documents[4]), int(documents[9])
    assert 50 < num_long < num_waited < 500
    assert float(documents[10]) < 3.0
    assert 1.0 <= float(documents[7]) < 3.0


def test_moves_away_from_a_cache_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """The costs of the largest one, of which the chosen worker's is the least or in a tie."""
    small = ("--workers", "2", "--load", "1.1", "--seeds", "1", "--kv-tokens", "160000")
    limit = ("--limit", "400", "--policies", "herma")
    assert main(["bench", "routing", "--moves", "--trace", "fleet", *small, *limit]) == 0
    lines = capsys.readouterr().out.splitlines()
    row = next(line.split() for line in lines if line.startswith("fleet_agents x2 at 1.1, seed 1"))
    num_turns, num_moved = int(row[6]), int(row[7])
    assert 0 < num_moved < num_turns == 400
    at = lines.index(next(line for line in lines if "cached tokens left" in line))
    assert int(lines[at].split()[2]) >= LEFT_TOKENS
    costs = {"*" in line: float(line.split()[-2]) for line in lines[at + 1 : at + 3]}
    assert costs[True] <= (1 + TIE_RATIO) * costs[False] + TIE_MS


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--policies", "nobody"), "no policy `nobody`; there are herma, round_robin"),
        (("--workers", "1"), "--workers 1: each is at least 2"),
        (("--workers", "2,x"), "--workers 2,x: numbers"),
        (("--load", "0"), "--load 0: each is at least 0.01"),
        (("--load", "nan"), "--load nan: each is at least 0.01"),
        (("--kv-tokens", "0"), "--kv-tokens, --states, --limit and --processes are at least 1"),
        (("--limit", "0"), "--kv-tokens, --states, --limit and --processes are at least 1"),
        (("--trace", "/nowhere.jsonl"), "cannot read the trace /nowhere.jsonl"),
    ],
)
def test_a_wrong_argument_is_one_line(
    arguments: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong argument is named in one line, before anything is simulated."""
    assert main(["bench", "routing", *arguments]) == 2
    said = capsys.readouterr()
    assert why in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_a_request_that_fits_no_worker_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rather than a simulation that never ends."""
    trace = ("--trace", str(trace_file(tmp_path)))
    assert main(["bench", "routing", *trace, *SMALL, "--kv-tokens", "1000"]) == 2
    assert "a request of 1039 tokens" in capsys.readouterr().err


def test_small_keys_are_served_beside_a_big_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Half a service time, a fifth of FIFO's wait, the same throughput: the command fails else."""
    assert main(["bench", "routing", "--experiment", "fairness"]) == 0
    assert capsys.readouterr().out.count("holds") == 3


def test_a_shared_prefix_does_not_collapse_onto_one_worker(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No worker gets more than 60 % of 16 new sessions; the thresholds of a published one do."""
    assert main(["bench", "routing", "--experiment", "collapse"]) == 0
    assert "smg_cache_aware  100% / 0%" in capsys.readouterr().out
