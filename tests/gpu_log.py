"""A log of the tests on a card, of which a time limit loses nothing: `-p tests.gpu_log`.

`HERMA_GPU_LOG=FILE` has one line of JSON for each finished test, written as it finishes; a failed
one is also printed at once. With `HERMA_GPU_RESUME=1` tests that a log before passed or skipped are
left out, so that a run which was cut off goes on where it was. `python -m tests.gpu_log FILE`
prints what the log says, in a table of files and a list of failures, and ends with 1 if there are
any. Owns the file; must not know what the tests do. Under pytest-xdist the first process writes.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

OUTCOMES = ("passed", "failed", "skipped")


def _path() -> Path:
    return Path(os.environ["HERMA_GPU_LOG"])


def _done_path() -> Path:
    """The tests that are left out: all processes of a run, and those that replace one that died,
    must leave out the same.
    """
    return _path().with_suffix(".done")


def _is_first(config: pytest.Config) -> bool:
    return not hasattr(config, "workerinput")


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The tests in a log; a last line that was cut off is none."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue


def pytest_configure(config: pytest.Config) -> None:
    """Begin the log, or go on with it."""
    if not _is_first(config):
        return
    path = _path()
    path.parent.mkdir(parents=True, exist_ok=True)
    if os.environ.get("HERMA_GPU_RESUME") != "1":
        path.write_text("", encoding="utf-8")
    last = {line["test"]: line["outcome"] for line in lines(path)}
    done = [test for test, outcome in last.items() if outcome != "failed"]
    _done_path().write_text(json.dumps(done), encoding="utf-8")
    config.pluginmanager.register(_Log(), "gpu-log")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is done."""
    done = set(json.loads(_done_path().read_text(encoding="utf-8")))
    left_out = [item for item in items if item.nodeid in done]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.nodeid not in done]


class _Log:
    """Writes reports, which come without their session, in the first process alone."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write a test down: its call, or a setup or an end that did not pass."""
        if report.when != "call" and report.outcome == "passed":
            return
        said = "" if report.outcome == "passed" else _said(report)
        line = {
            "test": report.nodeid,
            "outcome": report.outcome,
            "seconds": round(report.duration, 2),
            "said": said,
        }
        with _path().open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if report.outcome == "failed":
            print(f"\nFAILED {report.nodeid}: {said}", flush=True)


def _said(report: pytest.TestReport) -> str:
    """The last line of an error, or the reason of a skip."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    found = [line[1:].strip() for line in report.longreprtext.splitlines() if line.startswith("E")]
    text = found[0] if found else report.longreprtext.strip().rpartition("\n")[2]
    return text[:300]


def main(path: Path) -> int:
    """Print the table; 1 if a test failed, 2 if there is none."""
    last = {line["test"]: line for line in lines(path)}
    files: dict[str, Counter[str]] = {}
    for test, line in last.items():
        counted = files.setdefault(test.partition("::")[0], Counter())
        counted[line["outcome"]] += 1
        counted["seconds"] += line["seconds"]
    print(f"{'file':58} {'passed':>7} {'failed':>7} {'skipped':>8} {'s':>7}")
    for name, counted in sorted(files.items()):
        numbers = [counted[outcome] for outcome in OUTCOMES]
        print(f"{name:58} {numbers[0]:7} {numbers[1]:7} {numbers[2]:8} {counted['seconds']:7.0f}")
    total = Counter(line["outcome"] for line in last.values())
    print(", ".join(f"{total[outcome]} {outcome}" for outcome in OUTCOMES))
    for outcome in ("failed", "skipped"):
        reasons = Counter(
            f"{test}: {line['said']}" if outcome == "failed" else line["said"]
            for test, line in last.items()
            if line["outcome"] == outcome
        )
        for reason, number in reasons.items():
            print(f"{outcome.upper()} {number} x {reason}")
    return 2 if not last else 1 if total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
