"""`herma bench gateway`: from the command line's words to a table and a file.

Owns which tests a name stands for and the exit status. Must not know how they are made.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
from typing import Any, Final

from benchmarks.engine.progress import Progress
from benchmarks.gateway.cases import CASES, Figures, Size
from benchmarks.gateway.soak import SOAKS
from benchmarks.gateway.table import table
from benchmarks.machine import describe_machine
from protocol.errors import ConfigError

_SMOKE: Final = Size(runs=1, share=0.01)


def run_command(arguments: argparse.Namespace) -> int:
    """Run, print, write; 0 if every answer was right, else 1. Raises `ConfigError`."""
    names = tests_of(arguments.tests)
    size = _SMOKE if "smoke" in arguments.tests.split(",") else Size(arguments.runs)
    size = Size(size.runs, size.share, arguments.server)
    figures, told = Figures(), {}
    progress = Progress(len(names))
    for name in names:
        progress.begin(name)
        if name in CASES:
            CASES[name](size, figures, progress.begin)
        else:
            told[name] = SOAKS[name](size, figures, progress.begin)
            progress.say(f"{name}: {json.dumps(told[name])}")
        progress.end()
    progress.say("")
    report = _report(figures, told, size)
    progress.say(table(figures.medians()))
    for error in figures.errors:
        print(f"WRONG {error}", file=sys.stderr)
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")
    return 1 if figures.errors else 0


def tests_of(text: str) -> tuple[str, ...]:
    """The tests of a list of names; `all` and `smoke` are all that are short."""
    names: list[str] = []
    for name in text.split(","):
        if name in {"all", "smoke"}:
            names += CASES
        elif name in CASES or name in SOAKS:
            names.append(name)
        else:
            known = ", ".join(("all", "smoke", *CASES, *SOAKS))
            raise ConfigError(f"there is no test {name!r}: {known}")
    return tuple(dict.fromkeys(names))


def _report(figures: Figures, told: dict[str, Any], size: Size) -> dict[str, Any]:
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": describe_machine(("trio", "pyzmq", "tokenizers", "httptools")),
        "runs_each": size.runs,
        "is_right": not figures.errors,
        "errors": figures.errors,
        **{key: round(value, 3) for key, value in figures.medians().items()},
        **told,
        "runs": {key: [round(v, 3) for v in values] for key, values in figures.runs.items()},
    }
