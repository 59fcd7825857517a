"""`python -m benchmarks.engine.answers`: right, wrong, nothing said and cut off are four things."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engine import answers
from benchmarks.engine.verdict import AnswerVerdict

FINISHED = {"finished": True, "wrong": [], "figures": [], "checks": [], "doubt": None}


HERMA = """#!{python}
import json, pathlib, sys
ends = pathlib.Path({ends!r})
(status, report), *others = json.loads(ends.read_text())
ends.write_text(json.dumps(others))
if report is not None:
    pathlib.Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps(report))
sys.exit(status)
"""
"""Stands for `python -m herma bench engine`: ends with the next status, having written a report."""


RIGHT = (0, FINISHED)
WRONG = (1, {**FINISHED, "wrong": ["wrong tokens: some", "wrong tokens: others"]})
UNSAID = (3, {**FINISHED, "doubt": "nothing is said: why"})
CUT = (3, {**FINISHED, "finished": False})
KILLED = (9, None)


@pytest.mark.parametrize(
    ("ends", "words", "status"),
    [
        ([RIGHT, RIGHT], ["right", "right"], 0),
        ([RIGHT, WRONG], ["right", "WRONG 2"], 1),
        ([UNSAID, RIGHT], ["nothing said", "right"], 3),
        ([UNSAID, WRONG], ["nothing said", "WRONG 2"], 1),
        ([RIGHT, KILLED], ["right", "ENDED 9"], 1),
        ([UNSAID, CUT], ["nothing said", "ENDED 3"], 1),
    ],
)
def test_each_end_has_its_word_and_status(
    ends: list[tuple[int, dict[str, Any] | None]],
    words: list[str],
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is not shown is not right, and no wrong token either."""
    names = ["qwen3-8b:fp8", "qwen3-0.6b:fp8"]
    program, rest = tmp_path / "herma", tmp_path / "ends.json"
    rest.write_text(json.dumps(ends), encoding="utf-8")
    program.write_text(HERMA.format(python=sys.executable, ends=str(rest)), encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(sys, "argv", ["answers", "--out", str(tmp_path), *names])
    assert answers.main() == status
    lines = capsys.readouterr().out.splitlines()
    assert [line[23:].partition("  ")[0].strip() for line in lines] == words


def test_a_run_is_right_only_without_a_doubt() -> None:
    """An error outweighs one."""
    assert AnswerVerdict.of([], None) is AnswerVerdict.RIGHT
    assert AnswerVerdict.of([], "nothing is said") is AnswerVerdict.UNSAID
    assert AnswerVerdict.of(["wrong tokens"], "nothing is said") is AnswerVerdict.WRONG
