"""The benchmark of parsing and formatting runs, whatever it measures."""

import contextlib

import pytest

from benchmarks.formatting.__main__ import main
from benchmarks.formatting.answers import ANSWERS
from gateway.output.tools import TOOL_FORMATS


def test_every_format_has_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """One row for each answer, a call of every format among them; a slow machine is no failure."""
    with contextlib.suppress(SystemExit):
        main(["--answers", "1"])
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[4:]]
    assert [row[:2] for row in rows] == [[one.kind, one.form] for one in ANSWERS]
    assert {one.form for one in ANSWERS if one.kind == "call"} == set(TOOL_FORMATS)
    assert all(float(figure) > 0 for row in rows for figure in row[3:])
