"""Gateways in turns: the table, and a small run with a gateway of ours in a peer's place."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.gateway.peers import (
    ADDED,
    CHUNK,
    PEAK,
    REQUEST,
    START,
    named_command,
    named_value,
    table,
)
from herma.cli import main
from protocol.errors import ConfigError

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
    """A turn in which the machine was twice as slow for both changes no ratio; a time that is
    added, a start and a size have none.
    """
    told = table(
        {
            "ours": {REQUEST: [20.0, 40.0, 22.0], ADDED: [1.0], PEAK: [70.0]},
            "theirs": {REQUEST: [10.0, 20.0, 10.0], ADDED: [0.5], PEAK: [95.0]},
        }
    )
    head, ours, theirs = (line.split() for line in told.splitlines())
    assert head[4:6] == ["over", "theirs"]
    assert ours == ["ours", "22.0", "2.00", "1.00", "70.00"]
    assert theirs == ["theirs", "10.0", "1.00", "0.50", "95.00"]


def test_a_peer_is_a_command_with_a_name() -> None:
    """The name stands before `=`, else it is the program's; an `=` within an option names no
    peer.
    """
    assert named_command("sglang=/opt/x/router --port=1") == ("sglang", "/opt/x/router --port=1")
    assert named_command("/opt/x/router launch --port=1") == (
        "router",
        "/opt/x/router launch --port=1",
    )
    with pytest.raises(ConfigError, match="needs a command"):
        named_command("  ")
    with pytest.raises(ConfigError, match="--versus 'old' is not"):
        named_value("--versus", "old")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--peer", "x", "--tests", "paced"], "--tests runs this gateway alone"),
        (["--peer-file", "a=b"], "belong to --peer"),
        (["--share", "0.5"], "belong to --peer"),
        (["--versus", "old"], "not of the form NAME=VALUE"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options that do not belong together are refused before anything starts."""
    assert main(["bench", "gateway", *words]) != 0
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_a_peer_and_a_version_are_asked_what_we_are(tmp_path: Path) -> None:
    """Real processes on loopback: a peer from a command and a file with places to fill in, and this
    Herma again by its Python. Every run has the same load on our gateway alone, in
    `test_command.py`.
    """
    config, report = tmp_path / "herma.toml", tmp_path / "report.json"
    config.write_text(CONFIG)
    command = f"{sys.executable} -m herma gateway --config {{folder}}/herma.toml --port {{port}}"
    words = ["--runs", "1", "--share", "0.01", "--peer", f"other={command}"]
    words += ["--versus", f"again={sys.executable}", "--peer-file", f"herma.toml={config}"]
    assert main(["bench", "gateway", *words, "--json", str(report)]) == 0
    told = json.loads(report.read_text())
    assert told["is_right"]
    roles = ["own worker", "as a relay", "as a relay with prices"]
    ours = [f"{name}, {role}" for name in ("herma", "again") for role in roles]
    assert list(told["runs"]) == [*ours, "other"]
    for figures in told["runs"].values():
        assert {name: len(values) for name, values in figures.items()} == dict.fromkeys(
            (REQUEST, CHUNK, ADDED, START, PEAK), 1
        )
        assert all(value > 0 for name in (REQUEST, CHUNK, PEAK) for value in figures[name])
