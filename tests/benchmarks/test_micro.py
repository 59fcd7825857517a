"""The micro-benchmarks run, whatever they measure."""

import json
from pathlib import Path

from benchmarks.micro.__main__ import PARTS, main
from benchmarks.micro.outputs import ANSWERS
from gateway.output.tools import TOOL_FORMATS


def test_every_part_has_its_figures(tmp_path: Path) -> None:
    """Each part has figures, every tool format among them; a slow machine is no failure."""
    report = tmp_path / "report.json"
    assert main(["--quick", "--json", str(report)]) == 0
    figures = json.loads(report.read_text())["figures"]
    assert {figure["part"] for figure in figures} == set(PARTS)
    assert all(figure["value"] >= 0 for figure in figures)
    assert {one.form for one in ANSWERS if one.kind == "call"} == set(TOOL_FORMATS)
