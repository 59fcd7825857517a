"""Turns of a comparing benchmark: all contenders run in the same minutes, once a turn.

Owns the warm-up turn, the errors, the machine's speed beside each turn, and the end: table, report,
exit status. Must not know what is measured.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, final

from benchmarks.machine import describe_machine, yardstick_ms
from benchmarks.progress import ProgressBar

_SHARE_TO_WARM: Final = 0.25


class BenchTurn(NamedTuple):
    """One turn; its runs have `share` of their full size. The first turn does not count."""

    share: float
    counts: bool


@final
class Turns:
    """One warm-up turn, then `runs` that count. `errors` takes a line for each wrong run."""

    def __init__(self, runs: int, share: float) -> None:
        self.errors: list[str] = []
        self._runs = runs
        self._share = share
        self._yardsticks_ms: list[float] = []
        self._loads: list[float] = []
        self._progress = ProgressBar(runs + 1)

    def __iter__(self) -> Iterator[BenchTurn]:
        for number in range(self._runs + 1):
            self._progress.begin("warming up" if number == 0 else f"turn {number} of {self._runs}")
            self._yardsticks_ms.append(yardstick_ms())
            self._loads.append(os.getloadavg()[0])
            yield BenchTurn(self._share * (1.0 if number else _SHARE_TO_WARM), number > 0)
            self._progress.end()

    def finish(self, table: str, path: Path | None, **report: object) -> int:
        """Print the table and the errors, write `report` with the common fields of all reports.
        Returns 0 if every answer was right, else 1.
        """
        self._progress.say(f"\n{table}\n{self._circumstances()}")
        for error in self.errors:
            print(f"WRONG {error}", file=sys.stderr)
        if path is not None:
            common = {
                "date": dt.datetime.now(dt.UTC).date().isoformat(),
                "machine": describe_machine(("trio", "tokenizers", "httptools")),
                "is_right": not self.errors,
                "errors": self.errors,
                "yardstick_ms": [round(ms, 2) for ms in self._yardsticks_ms],
                "load_average": [round(load, 2) for load in self._loads],
            }
            path.write_text(f"{json.dumps({**common, **report}, indent=2)}\n", encoding="utf-8")
        return 1 if self.errors else 0

    def _circumstances(self) -> str:
        """How busy and how fast the machine was."""
        busy, slow = self._loads, self._yardsticks_ms
        return (
            f"turns: {self._runs}; load average {min(busy):.1f} to {max(busy):.1f} on "
            f"{len(os.sched_getaffinity(0))} cores; yardstick {min(slow):.1f} to {max(slow):.1f} ms"
        )
