"""`herma usage` for people and for programs."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from gateway.store import LedgerEntry, LedgerStore, ReservationClaim
from herma.cli import main
from herma.processes import GatewayProcess
from protocol.control_messages import GatewayStatus

CONFIG = """
[ledger]
path = "{folder}/ledger.sqlite"
currency = "EUR"

[[models]]
name = "m"
fallback = [{{ provider = "cloud", model = "big" }}]

[providers.cloud]
base_url = "https://cloud.example/v1"
price = {{ input = 1.0, output = 1.0 }}
limits = {{ monthly = 50.0 }}
"""


def entry(day: str, key: str, provider: str, cost: int, **fields: Any) -> LedgerEntry:
    known = {"is_settled": True, "is_priced": True, "requests": 1, "cached_tokens": 4, **fields}
    return LedgerEntry(
        day=day,
        key=key,
        model="m",
        provider=provider,
        prompt_tokens=1_000,
        completion_tokens=20,
        cost=cost,
        **known,
    )


def reserved(day: str) -> LedgerEntry:
    return LedgerEntry(day, "alice", "m", "cloud", False, True, 1, 5_000, 0, 100, 20_000)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "herma.toml"
    path.write_text(CONFIG.format(folder=tmp_path))
    return path


@pytest.fixture
def ledger(tmp_path: Path) -> LedgerStore:
    """A ledger that a gateway holds open."""
    return LedgerStore(tmp_path / "ledger.sqlite", "EUR")


def usage(config: Path, *arguments: str) -> int:
    return main(["usage", "--config", str(config), "--since", "2026-11-01", *arguments])


def test_without_a_ledger_it_says_so(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a ledger the command says so, for people and for programs; it creates no file."""
    assert usage(config) == 0
    assert "no usage is recorded yet" in capsys.readouterr().out
    assert usage(config, "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"] == []
    assert not (config.parent / "ledger.sqlite").exists()


def test_the_table_is_aligned_and_adds_up(
    config: Path, ledger: LedgerStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table is aligned and adds up, beside a gateway that has the file open, with running
    requests.
    """
    ledger.write(
        [ReservationClaim(1, reserved("2026-11-21"))],
        [],
        [
            entry("2026-11-20", "alice", "", 0),
            entry("2026-11-21", "alice", "cloud", 1_234_567),
            entry("2026-11-21", "", "other", 0, is_priced=False),
        ],
    )
    assert usage(config, "--by", "key", "--by", "provider") == 0
    ledger.close()
    lines = capsys.readouterr().out.splitlines()
    head, rule, *rows = lines[2 : lines.index("", 2)]
    assert head.split()[:3] == ["key", "provider", "requests"]
    assert {len(row) for row in (head, rule, *rows)} == {len(head)}
    table = [row.split("  ") for row in rows]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in table]
    assert cells == [
        ["(no key)", "other", "1", "1,000", "4", "20", "?", "-"],
        ["alice", "(own workers)", "1", "1,000", "4", "20", "-", "-"],
        ["alice", "cloud", "2", "6,000", "4", "120", "1.2346", "0.0200"],
        [cell for cell in rule.split("  ") if cell],
        ["total", "4", "8,000", "12", "160", "1.2346?", "0.0200"],
    ]
    assert "under way" in lines[lines.index("", 2) + 1]
    assert usage(config, "--by", "provider", "--json") == 0
    costs = {row["provider"]: row["cost"] for row in json.loads(capsys.readouterr().out)["rows"]}
    assert costs == {"": "0.000000", "cloud": "1.234567", "other": None}


def test_limits_are_shown_with_what_stands_against_them(
    config: Path, ledger: LedgerStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """Limits are shown with the amounts of the present window, whichever days the table shows."""
    now = datetime.now(UTC)
    last_year = now.replace(year=now.year - 1, day=1).strftime("%Y-%m-%d")
    today = now.strftime("%Y-%m-%d")
    ledger.write(
        [ReservationClaim(1, reserved(today))],
        [],
        [
            entry(today, "alice", "cloud", 1_234_567),
            entry(today, "alice", "other", 7_000_000),
            entry(last_year, "alice", "cloud", 9_000_000),
        ],
    )
    ledger.close()
    assert main(["usage", "--config", str(config), "--since", last_year]) == 0
    last_line = capsys.readouterr().out.splitlines()[-1]
    assert last_line.split() == ["provider", "cloud", "monthly", "1.2546", "50.0000"]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file of its own, where the command is given."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "herma.toml").write_text(f'[ledger]\npath = "{folder}/other.sqlite"\n')
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return folder


def running(
    monkeypatch: pytest.MonkeyPatch, *files: Path | str | None, ledgers: Sequence[Path] = ()
) -> None:
    """Gateways run with these files: "" is none, None a gateway that does not say; with these
    ledgers at ports 1, 2 and so on, if they say so.
    """
    told = zip_longest(files, map(str, ledgers))
    found = [
        GatewayProcess(
            Path("x"),
            at,
            GatewayStatus(
                at, f"http://0.0.0.0:{at}", "1", config=file and str(file), ledger=ledger
            ),
        )
        for at, (file, ledger) in enumerate(told, 1)
    ]
    silent = GatewayProcess(Path("y"), 2, None)
    monkeypatch.setattr("herma.commands.usage.gateways", lambda: [*found, silent])


def test_the_file_of_the_gateway_that_runs_is_read(
    config: Path,
    ledger: LedgerStore,
    elsewhere: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The file of the running gateway is read: its ledger and limits are shown, whichever folder
    the command runs in.
    """
    ledger.close()
    running(monkeypatch, config, config, None)
    assert main(["usage"]) == 0
    told = capsys.readouterr()
    assert str(config) in told.err
    assert str(elsewhere) not in told.err
    assert told.out.splitlines()[-1].split() == ["provider", "cloud", "monthly", "-", "50.0000"]


@pytest.mark.parametrize("kind", ["none runs", "its own runs too", "without a file"])
def test_else_the_file_that_is_found_is_read(
    config: Path,
    elsewhere: Path,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of several gateways the one that runs the file in this folder is taken."""
    own = elsewhere / "herma.toml"
    files = {"none runs": (), "its own runs too": (config, own), "without a file": ("",)}
    running(monkeypatch, *files[kind])
    assert main(["usage"]) == 0
    told = capsys.readouterr()
    assert str(own) in told.err
    assert "other.sqlite" in told.out


def test_without_a_file_it_says_that_limits_are_not_shown(
    config: Path,
    elsewhere: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A missing table of limits would read as if there were none. With two gateways the command
    does not guess one.
    """
    (elsewhere / "herma.toml").unlink()
    running(monkeypatch)
    assert main(["usage"]) == 0
    assert "limits are not shown" in capsys.readouterr().err
    running(monkeypatch, config, elsewhere / "b.toml")
    assert main(["usage"]) == 2
    assert "--config" in capsys.readouterr().err


@pytest.fixture
def two_ledgers(elsewhere: Path, tmp_path: Path) -> tuple[Path, Path]:
    """The ledgers of two gateways, with one request of `alice` and two of `bob`."""
    (elsewhere / "herma.toml").unlink()
    paths = tmp_path / "one.sqlite", tmp_path / "two.sqlite"
    for path, key, num in zip(paths, ("alice", "bob"), (1, 2), strict=True):
        store = LedgerStore(path, "USD")
        store.write([], [], [entry("2026-11-21", key, "", 0, requests=num)])
        store.close()
    return paths


def test_of_two_gateways_without_a_file_it_takes_none(
    two_ledgers: tuple[Path, Path],
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of two gateways without a found file, or one with a file and one without, none is taken. The
    error names both, and how to choose.
    """
    for files in (("", ""), (config, "")):
        running(monkeypatch, *files, ledgers=two_ledgers)
        assert main(["usage"]) == 2
        told = capsys.readouterr().err
        assert all(str(path) in told for path in two_ledgers)
        assert all(f"http://127.0.0.1:{port}" in told for port in (1, 2))
        assert "--url" in told
        assert "--ledger" in told


@pytest.mark.parametrize("how", ["--url", "--ledger"])
def test_a_ledger_is_named_by_its_gateway_or_its_path(
    two_ledgers: tuple[Path, Path],
    how: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    running(monkeypatch, "", "", ledgers=two_ledgers)
    name = "http://127.0.0.1:2/v1/" if how == "--url" else str(two_ledgers[1])
    chosen = ["--since", "2026-11-01", "--by", "key", "--json", how, name]
    assert main(["usage", *chosen]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(row["key"], row["requests"]) for row in told["rows"]] == [("bob", 2)]
    assert told["ledger"] == str(two_ledgers[1])
    assert main(["usage", "--url", "http://127.0.0.1:3"]) == 2
    assert "http://127.0.0.1:1" in capsys.readouterr().err


def test_the_other_ledgers_are_named_too(
    config: Path,
    elsewhere: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The file of this folder decides; whoever meant another one learns its name."""
    other = tmp_path / "ledger.sqlite"
    ledgers = elsewhere / "other.sqlite", other
    running(monkeypatch, elsewhere / "herma.toml", config, ledgers=ledgers)
    assert main(["usage"]) == 0
    reading, rest = capsys.readouterr().err.splitlines()
    assert "reading" in reading
    assert str(elsewhere / "other.sqlite") in reading
    assert f"not reading the ledger {other} of http://127.0.0.1:2" in rest


def test_the_ledger_that_the_gateway_says_is_read(
    two_ledgers: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The ledger that the gateway names is read, because its environment may name another folder
    than the command's.
    """
    running(monkeypatch, "", ledgers=two_ledgers[:1])
    assert main(["usage", "--since", "2026-11-01", "--by", "key"]) == 0
    told = capsys.readouterr()
    assert "alice" in told.out
    assert str(two_ledgers[0]) in told.err
    assert "limits are not shown" in told.err


def test_a_limit_of_nothing_is_a_limit(
    config: Path, ledger: LedgerStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit of 0 allows nothing that costs, and is shown as 0."""
    config.write_text(config.read_text().replace("monthly = 50.0", "daily = 0.0"))
    ledger.close()
    assert usage(config) == 0
    last_line = capsys.readouterr().out.splitlines()[-1]
    assert last_line.split() == ["provider", "cloud", "daily", "-", "0.0000"]


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "0d", "-3d", "2026-1-1x"])
def test_a_day_that_is_none_is_one_line(
    config: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error shows the valid forms."""
    assert main(["usage", "--config", str(config), f"--since={text}"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "7d" in error


def test_programs_get_exact_amounts(
    config: Path, ledger: LedgerStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """Programs get exact amounts as decimal texts, because many programs read JSON numbers as
    floats.
    """
    ledger.write([], [], [entry("2026-11-21", "alice", "cloud", 1_234_567)])
    ledger.close()
    assert usage(config, "--json", "--by", "day") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["since"] == "2026-11-01"
    assert told["total"]["cost"] == told["rows"][0]["cost"] == "1.234567"
    assert told["rows"][0]["day"] == "2026-11-21"
