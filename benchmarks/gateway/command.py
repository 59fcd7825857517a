"""`herma bench gateway`: from the command line to a table and a result file.

Owns which tests a name stands for, and the exit status. Must not know how they are made.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Final

from benchmarks.gateway.bench import GatewayBench, GatewayFigures, Size, sharing
from benchmarks.gateway.cases import CASES
from benchmarks.gateway.peers import Comparison, compare, named_command, named_value
from benchmarks.gateway.processes import LinkKind
from benchmarks.gateway.soak import SOAKS
from benchmarks.gateway.table import table
from benchmarks.machine import describe_machine
from benchmarks.progress import ProgressBar
from protocol.errors import ConfigError

_SMOKE_SHARE: Final = 0.01


def run_command(arguments: argparse.Namespace) -> int:
    """Run, print, write. Returns 0 if every answer was right, else 1. Raises `ConfigError`."""
    if arguments.peer or arguments.versus:
        return _compare(arguments)
    if arguments.peer_file or arguments.share != 1.0:
        raise ConfigError("--peer-file and --share belong to --peer or --versus")
    tests = arguments.tests or "all"
    names = named_tests(tests)
    is_smoke = "smoke" in tests.split(",")
    size = Size(1, _SMOKE_SHARE) if is_smoke else Size(arguments.runs)
    size = replace(size, link_kind=LinkKind(arguments.link))
    progress = ProgressBar(len(names))
    with (
        sharing(size, progress.begin)
        if is_smoke
        else nullcontext(GatewayBench(size, progress.begin)) as bench
    ):
        soak_reports = _run(bench, names, progress)
    figures = bench.figures
    progress.say(f"\n{table(figures.medians())}")
    for error in figures.errors:
        print(f"WRONG {error}", file=sys.stderr)
    if arguments.json is not None:
        report = _report(figures, soak_reports, size)
        arguments.json.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")
    return 1 if figures.errors else 0


def _compare(arguments: argparse.Namespace) -> int:
    """Run beside others. Their measurements are the same for all, so no test is chosen."""
    if arguments.tests is not None:
        raise ConfigError("--tests runs this gateway alone; leave it out beside --peer or --versus")
    comparison = Comparison(
        [named_command(text) for text in arguments.peer],
        [named_value("--versus", text) for text in arguments.versus],
        dict(named_value("--peer-file", text) for text in arguments.peer_file),
        arguments.share,
        LinkKind(arguments.link),
    )
    return compare(comparison, arguments.runs, arguments.json)


def named_tests(text: str) -> tuple[str, ...]:
    """The tests of a list of names: `all` are the short ones, `smoke` is every one in small."""
    names: list[str] = []
    for name in text.split(","):
        if name in {"all", "smoke"}:
            names += CASES if name == "all" else (*CASES, *SOAKS)
        elif name in CASES or name in SOAKS:
            names.append(name)
        else:
            known = ", ".join(("all", "smoke", *CASES, *SOAKS))
            raise ConfigError(f"there is no test {name!r}: {known}")
    return tuple(dict.fromkeys(names))


def _run(bench: GatewayBench, names: tuple[str, ...], progress: ProgressBar) -> dict[str, Any]:
    """Run each test in turn. Returns the lines of the long ones."""
    soak_reports: dict[str, Any] = {}
    for name in names:
        progress.begin(name)
        if name in CASES:
            CASES[name](bench)
        else:
            soak_reports[name] = SOAKS[name](bench)
            progress.say(f"{name}: {json.dumps(soak_reports[name])}")
        progress.end()
    return soak_reports


def _report(figures: GatewayFigures, soak_reports: dict[str, Any], size: Size) -> dict[str, Any]:
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": describe_machine(("trio", "pyzmq", "tokenizers", "httptools")),
        "runs_each": size.runs,
        "link": size.link_kind.link,
        "is_right": not figures.errors,
        "errors": figures.errors,
        **{key: round(value, 3) for key, value in figures.medians().items()},
        **soak_reports,
        "runs": {key: [round(v, 3) for v in values] for key, values in figures.runs.items()},
    }
