"""`python -m benchmarks.gateway.instructions`: the instructions of a request, counted by valgrind.

Owns the counts of `herma gateway` alone, by callgrind, which simulates the caches too. Instructions
hardly depend on what else the machine does, but say less than time: code that runs once per request
waits for memory. `--versus NAME=PYTHON` counts another Herma. Must not know what is compared.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from benchmarks.gateway.cases import stream_job, upstream_job, whole_job
from benchmarks.gateway.job import LoadJob
from benchmarks.gateway.peers import named_value
from benchmarks.gateway.processes import (
    LinkKind,
    MeasuredFleet,
    drive,
    running,
    running_floor,
)
from benchmarks.gateway.table import in_columns
from protocol.errors import ConfigError

CONNECTIONS: Final = 32
NUM_TOKENS: Final = 30
_DUMP_S: Final = 120.0
_EVENTS: Final = re.compile(r"^events: (.+)$", re.MULTILINE)
_TOTALS: Final = re.compile(r"^totals: (.+)$", re.MULTILINE)


class InstructionCounts(NamedTuple):
    """Instructions, and how many of them were not in the first cache of instructions."""

    instructions: int
    misses: int


def counts_of(dump: str) -> InstructionCounts | None:
    """The totals of a dump of callgrind; None while it is not written to its end."""
    events, totals = _EVENTS.search(dump), _TOTALS.search(dump)
    if events is None or totals is None:
        return None
    by_event = dict(zip(events[1].split(), map(int, totals[1].split()), strict=False))
    return InstructionCounts(by_event["Ir"], by_event.get("I1mr", 0))


def main(words: Sequence[str]) -> int:
    """Print the table. Returns 0; raises `ConfigError` without valgrind."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway.instructions")
    parser.add_argument("--versus", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--requests", type=int, default=300, help="of each kind; 300")
    arguments = parser.parse_args(words)
    if shutil.which("valgrind") is None:
        raise ConfigError("valgrind is not installed; a package of that name has it")
    rows = [["a request, a streamed token", "instructions", "misses of the first cache"]]
    others = [named_value("--versus", text) for text in arguments.versus]
    for name, python in [("herma", sys.executable), *others]:
        for kind, counts in _counted(python, arguments.requests):
            rows.append([f"{name}, {kind}", f"{counts.instructions:,}", f"{counts.misses:,}"])
    print(in_columns(rows))
    return 0


def _counted(python: str, count: int) -> list[tuple[str, InstructionCounts]]:
    """The counts of each kind of request, for each request or token."""
    with TemporaryDirectory(prefix="herma-bench-") as folder, running_floor() as upstream:
        under_valgrind = _under_valgrind(python, Path(folder))
        fleet = MeasuredFleet(0.0, provider_port=upstream)
        with running(fleet, LinkKind(), under_valgrind) as gateway:
            port, streams = gateway.port, max(1, count // NUM_TOKENS)
            jobs: dict[str, Callable[[], LoadJob]] = {
                "own worker": lambda: whole_job(port, repeat(0), count, CONNECTIONS),
                "as a relay": lambda: upstream_job(port, count, CONNECTIONS),
                "a token": lambda: stream_job(port, streams, CONNECTIONS, NUM_TOKENS),
            }
            found = []
            for number, (kind, job) in enumerate(jobs.items(), 1):
                drive(job())
                _control("-i", "on", str(gateway.pid))
                asked = job()
                outcome, _ = drive(asked)
                if outcome.num_errors:
                    raise RuntimeError(f"{outcome.num_errors} wrong: {outcome.errors[0]}")
                _control("-i", "off", str(gateway.pid))
                _control("-d", str(gateway.pid))
                counts = _wait_for(Path(folder) / f"counts.{gateway.pid}.{number}")
                each = len(asked.asks) * asked.num_tokens
                found.append((kind, InstructionCounts(*(value // each for value in counts))))
            return found


def _under_valgrind(python: str, folder: Path) -> str:
    """A program that runs `python`, the gateway alone under valgrind."""
    program = folder / "python"
    options = "--tool=callgrind --trace-children=yes --cache-sim=yes --instr-atstart=no"
    options += f" --callgrind-out-file={folder}/counts.%p"
    program.write_text(
        f'#!/bin/sh\ncase " $* " in *" gateway "*) counted="valgrind {options}";; esac\n'
        f'exec $counted {shlex.quote(python)} "$@"\n'
    )
    program.chmod(0o700)
    return str(program)


def _control(*words: str) -> None:
    subprocess.run(["callgrind_control", *words], check=True, capture_output=True)


def _wait_for(dump: Path) -> InstructionCounts:
    deadline = time.monotonic() + _DUMP_S
    while time.monotonic() < deadline:
        if dump.exists() and (counts := counts_of(dump.read_text(errors="replace"))) is not None:
            return counts
        time.sleep(0.1)
    raise RuntimeError(f"valgrind has not written {dump} in {_DUMP_S:g} s")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
