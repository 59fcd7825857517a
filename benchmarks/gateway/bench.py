"""What a test is given: how much to ask, where to put the figures, and processes to ask.

Owns the runs, the figures and which processes are shared. Must not know what is measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.gateway.calm import MOST_TRIES, Calm
from benchmarks.gateway.job import Outcome
from benchmarks.gateway.processes import Fleet, Gateway, Way, running, running_floor
from benchmarks.gateway.yardstick import yardstick_ms


@dataclass(frozen=True, slots=True)
class Size:
    """How much is asked. `share` of the full number of requests; `runs` of each test, if `calm` is
    given only those that count by it.
    """

    runs: int = 5
    share: float = 1.0
    way: Way = field(default_factory=Way)
    calm: Calm | None = None

    def of(self, count: int, least: int) -> int:
        """So many of `count`."""
        return max(least, round(count * self.share))


@dataclass(slots=True)
class Figures:
    """The values of each key, run by run, and every wrong answer. `disturbed` are those of runs
    that do not count; `restless` the tests that had too few others.
    """

    runs: dict[str, list[float]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    disturbed: dict[str, list[float]] = field(default_factory=dict)
    restless: list[str] = field(default_factory=list)
    _run: list[tuple[str, float]] = field(default_factory=list)

    def add(self, key: str, value: float) -> None:
        """One run's."""
        self.runs.setdefault(key, []).append(value)
        self._run.append((key, value))

    def begin_run(self) -> None:
        """What is added from now on is of another run."""
        self._run.clear()

    def set_aside(self) -> set[str]:
        """The run since `begin_run` does not count; its keys."""
        for key, value in self._run:
            self.runs[key].remove(value)
            self.disturbed.setdefault(key, []).append(value)
        return {key for key, _ in self._run}

    def count_disturbed(self, name: str, keys: set[str]) -> None:
        """All runs of the test count after all: there were too few calm ones."""
        self.restless.append(name)
        for key in keys & self.disturbed.keys():
            self.runs.setdefault(key, []).extend(self.disturbed.pop(key))

    def medians(self) -> dict[str, float]:
        """Of each key; the largest for the memory."""
        return {
            key: max(values) if key == "rss_mb" else statistics.median(values)
            for key, values in self.runs.items()
            if values
        }

    def hear(self, name: str, outcome: Outcome, *, answers: int, tokens: int) -> None:
        """Every answer must have come, with all its tokens."""
        if outcome.num_errors:
            self.errors.append(f"{name}: {outcome.num_errors} wrong: {outcome.errors[0]}")
        elif (outcome.answers, outcome.tokens) != (answers, tokens):
            self.errors.append(
                f"{name}: {outcome.answers} answers and {outcome.tokens} tokens instead of "
                f"{answers} and {tokens}"
            )


@dataclass(slots=True)
class Bench:
    """One call of the benchmark. `tell` shows what is done. A small run shares one gateway, with
    all that any test needs behind it, and one floor.
    """

    size: Size
    tell: Callable[[str], None]
    figures: Figures = field(default_factory=Figures)
    shared: tuple[Gateway, int] | None = None
    read_yardstick_ms: Callable[[], float] = yardstick_ms

    def hear(self, name: str, outcome: Outcome, *, answers: int, tokens: int) -> None:
        """See `Figures.hear`."""
        self.figures.hear(name, outcome, answers=answers, tokens=tokens)

    def runs(self, name: str, *, is_warmed: bool = True) -> Iterator[bool]:
        """False for a run that warms up, then True for each that counts."""
        if is_warmed:
            self.tell(f"{name}, warming up")
            yield False
        if self.size.calm is not None:
            yield from self._calm_runs(name, self.size.calm)
            return
        for number in range(self.size.runs):
            self.figures.add("yardstick_ms", self.read_yardstick_ms())
            self.tell(f"{name} {number + 1}/{self.size.runs}")
            yield True

    def _calm_runs(self, name: str, calm: Calm) -> Iterator[bool]:
        """As `runs`; those that were disturbed are set aside and made again."""
        num_calm, num_runs, keys = 0, self.size.runs, set[str]()
        for _ in range(MOST_TRIES * num_runs):
            self.tell(f"{name} {num_calm + 1}/{num_runs}, in a calm moment")
            self.figures.begin_run()
            before_ms = self.read_yardstick_ms()
            self.figures.add("yardstick_ms", before_ms)
            yield True
            if calm.is_calm(before_ms, self.read_yardstick_ms()):
                num_calm += 1
            else:
                keys |= self.figures.set_aside()
            if num_calm == num_runs:
                return
        self.figures.count_disturbed(name, keys)

    @contextmanager
    def gateway(self, fleet: Fleet, *, is_own: bool = False) -> Iterator[Gateway]:
        """A gateway with `fleet` behind it, whose peak of memory is noted at the end."""
        if self.shared is not None and not is_own:
            yield self.shared[0]
            self.figures.add("rss_mb", self.shared[0].memory_mb("VmHWM"))
            return
        with running(fleet, self.size.way) as gateway:
            yield gateway
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
def sharing(size: Size, tell: Callable[[str], None]) -> Iterator[Bench]:
    """A bench whose tests share their processes."""
    with running_floor() as port, running(Fleet(5.0, 64, port), size.way) as gateway:
        yield Bench(size, tell, shared=(gateway, port))
