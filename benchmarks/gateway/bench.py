"""The environment of a test: how much to request, where to put the figures, and the processes.

Owns the runs, the figures and which processes are shared. Must not know what is measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.gateway.job import LoadOutcome
from benchmarks.gateway.processes import (
    LinkKind,
    MeasuredFleet,
    MeasuredGateway,
    running,
    running_floor,
)
from benchmarks.machine import yardstick_ms


@dataclass(frozen=True, slots=True)
class Size:
    """The amount of requests: `share` of the full number, `runs` of each test."""

    runs: int = 5
    share: float = 1.0
    link_kind: LinkKind = field(default_factory=LinkKind)

    def of(self, count: int, least: int) -> int:
        """The share of `count`."""
        return max(least, round(count * self.share))


@dataclass(slots=True)
class GatewayFigures:
    """The values of each key, run by run, and all wrong answers."""

    runs: dict[str, list[float]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def add(self, key: str, value: float) -> None:
        """Add the figures of one run."""
        self.runs.setdefault(key, []).append(value)

    def medians(self) -> dict[str, float]:
        """The median of each key; the largest for the memory."""
        return {
            key: max(values) if key == "rss_mb" else statistics.median(values)
            for key, values in self.runs.items()
        }

    def add_outcome(self, name: str, outcome: LoadOutcome, *, answers: int, tokens: int) -> None:
        """Record an outcome's errors and missing tokens."""
        if outcome.num_errors:
            self.errors.append(f"{name}: {outcome.num_errors} wrong: {outcome.errors[0]}")
        elif (outcome.answers, outcome.tokens) != (answers, tokens):
            self.errors.append(
                f"{name}: {outcome.answers} answers and {outcome.tokens} tokens instead of "
                f"{answers} and {tokens}"
            )


@dataclass(slots=True)
class GatewayBench:
    """One call of the benchmark. A small run shares one gateway, with all that any test needs, and
    one floor.
    """

    size: Size
    report_progress: Callable[[str], None]
    figures: GatewayFigures = field(default_factory=GatewayFigures)
    shared: tuple[MeasuredGateway, int] | None = None

    def add_outcome(self, name: str, outcome: LoadOutcome, *, answers: int, tokens: int) -> None:
        """See `GatewayFigures.add_outcome`."""
        self.figures.add_outcome(name, outcome, answers=answers, tokens=tokens)

    def runs(self, name: str, *, is_warmed: bool = True) -> Iterator[bool]:
        """False for the run that warms up, then True for each that counts."""
        if is_warmed:
            self.report_progress(f"{name}, warming up")
            yield False
        for number in range(self.size.runs):
            self.figures.add("yardstick_ms", yardstick_ms())
            self.report_progress(f"{name} {number + 1}/{self.size.runs}")
            yield True

    @contextmanager
    def gateway(self, fleet: MeasuredFleet, *, is_own: bool = False) -> Iterator[MeasuredGateway]:
        """A gateway with `fleet` behind it. Its peak memory is recorded at the end."""
        if self.shared is not None and not is_own:
            yield self.shared[0]
            self.figures.add("rss_mb", self.shared[0].memory_mb("VmHWM"))
            return
        with running(fleet, self.size.link_kind) as gateway:
            yield gateway
            if fleet.processes == 1:  # the bar is one process's
                self.figures.add("rss_mb", gateway.memory_mb("VmHWM"))

    @contextmanager
    def floor(self) -> Iterator[int]:
        """The port of the server to compare with."""
        if self.shared is not None:
            yield self.shared[1]
            return
        with running_floor() as port:
            yield port


@contextmanager
def sharing(size: Size, report_progress: Callable[[str], None]) -> Iterator[GatewayBench]:
    """A bench whose tests share their processes."""
    with running_floor() as port, running(MeasuredFleet(5.0, 64, port), size.link_kind) as gateway:
        yield GatewayBench(size, report_progress, shared=(gateway, port))
