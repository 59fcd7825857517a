"""The benchmark of the token path runs, whatever it measures."""

import pytest

from benchmarks.token_path import main


def test_every_kind_of_token_has_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """One row for each kind of token and number of streams; every stream gets all its bytes."""
    main(["--streams", "1", "3"])
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[4:]]
    assert sorted(row[:2] for row in rows) == [
        [kind, streams] for kind in ("call", "text", "thoughts") for streams in ("1", "3")
    ]
    assert all(float(row[2]) > 0 for row in rows)
