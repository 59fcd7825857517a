"""Gateways in turns: the table, and a small run with a gateway of ours in a peer's place."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.gateway.peers import main, table

CONFIG = """
[gateway]
worker_bind = "ipc://{folder}/workers"

[ledger]
path = "{folder}/ledger.sqlite"

[[models]]
name = "cloud"
fallback = [{ provider = "floor", model = "up" }]

[providers.floor]
base_url = "http://127.0.0.1:{upstream}/v1"
"""


def test_the_table_compares_within_each_turn() -> None:
    """A turn in which the machine was twice as slow for both changes no ratio."""
    told = table(
        {"ours": {"a request": [20.0, 40.0, 22.0]}, "theirs": {"a request": [10.0, 20.0, 10.0]}}
    )
    head, ours, theirs = (line.split() for line in told.splitlines())
    assert head[-2:] == ["over", "theirs"]
    assert ours == ["ours", "22.0", "2.00"]
    assert theirs == ["theirs", "10.0", "1.00"]


@pytest.mark.slow
def test_a_peer_is_asked_what_we_are(tmp_path: Path) -> None:
    """Real processes on loopback, a peer from a command and a file with places to fill in. Every
    run has the same load on our gateway alone, in `test_command.py`.
    """
    config, report = tmp_path / "herma.toml", tmp_path / "report.json"
    config.write_text(CONFIG)
    command = f"{sys.executable} -m herma gateway --config {{folder}}/herma.toml --port {{port}}"
    words = ["--runs", "1", "--share", "0.01", "--peer", f"other={command}"]
    assert main([*words, "--file", f"herma.toml={config}", "--json", str(report)]) == 0
    told = json.loads(report.read_text())
    assert told["is_right"]
    ours = ["herma, own worker", "herma, as a relay", "herma, as a relay with prices"]
    assert list(told["runs"]) == [*ours, "other"]
    for cases in told["runs"].values():
        assert {name: len(values) for name, values in cases.items()} == {
            "a request": 1,
            "a paced chunk": 1,
        }
        assert all(value > 0 for values in cases.values() for value in values)


def test_a_peer_has_a_name_and_a_command() -> None:
    """Else the words are refused."""
    with pytest.raises(SystemExit):
        main(["--peer", "nginx"])
