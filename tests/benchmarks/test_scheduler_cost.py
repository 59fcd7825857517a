"""The scheduler's benchmark runs, whatever it measures."""

import pytest

from benchmarks.scheduler.__main__ import main


def test_every_row_has_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """One row for each lookahead and number of sequences, and no figure is missing."""
    main(["--sequences", "1", "3", "--steps", "40"])
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[4:]]
    assert [row[:2] for row in rows] == [["0", "1"], ["0", "3"], ["1", "1"], ["1", "3"]]
    assert all(float(figure) > 0 for row in rows for figure in row[2:])
