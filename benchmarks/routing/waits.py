"""Compares the waits that our policy announces with the real ones.

Owns the comparison. The wait is announced for each turn that finds no place at once; no limit
refuses a turn, so that its real wait is known. Must not know how a wait is forecast.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.routing.policies import OURS
from benchmarks.routing.policies.base import Placed, Setting
from benchmarks.routing.policies.herma import Herma
from benchmarks.routing.run import percentile, play
from benchmarks.routing.sweep import Task, case_of
from benchmarks.routing.trace import TracedTurn
from gateway.routing.admission_queue import MAX_RETRY_AFTER_S, retry_after_s

LONG_S: Final = 10
"""Shorter waits mostly end with the next answer on one worker, whose length is not known."""
BAR: Final = 1.5


@dataclass(frozen=True, slots=True)
class Wait:
    """Seconds until a place: announced when the turn arrived, and real."""

    announced_s: float
    real_s: float

    @property
    def factor(self) -> float:
        """The larger over the smaller, in whole seconds."""
        return _factor(max(1, math.ceil(self.announced_s)), max(1, math.ceil(self.real_s)))

    @property
    def header_factor(self) -> float:
        """The same for Retry-After, which is at most a minute."""
        return _factor(retry_after_s(self.announced_s), retry_after_s(self.real_s))


@dataclass(frozen=True, slots=True)
class Waits:
    """All waits of a cell: a trace, a number of workers, a load."""

    cell: str
    waits: Sequence[Wait]


class Announced(Herma):
    """Our policy, which also records the announced waits."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.announced_s: dict[int, float] = {}

    def arrived(self, turn: TracedTurn, now: float) -> Sequence[Placed]:
        placed = super().arrived(turn, now)
        if all(one.turn != turn.number for one in placed):
            self.announced_s[turn.number] = self.dispatch.tickets.wait_s(turn.number, now)
        return placed


def waits(planned: Iterable[Task]) -> Iterator[Waits]:
    """The waits of each cell, in order. Raises `TraceError` if a trace is unusable."""
    found: dict[str, list[Wait]] = {}
    for task in (task for task in planned if task.policy == OURS):
        case = case_of(task)
        policy, outcomes = play(case, Announced)
        own = [
            Wait(announced_s, outcomes[number].placed_at - outcomes[number].arrived_at)
            for number, announced_s in policy.announced_s.items()
        ]
        found.setdefault(f"{case.trace.name} x{case.num_workers} at {case.load:g}", []).extend(own)
    yield from (Waits(cell, own) for cell, own in found.items())


def wait_lines(found: Iterable[Waits]) -> list[str]:
    """The table, of all waits and of waits of `LONG_S` or more."""
    head = f"{'cell':30} {'waited':>7} {'p50 s':>7} {'p90 s':>7}  {'factor p50':>10} {'p90':>6}"
    text = [f"{head}  {f'of {LONG_S} s or more':>16} {'p90':>6} {'header p90':>10}"]
    for one in found:
        real_s = sorted(wait.real_s for wait in one.waits)
        long = [wait for wait in one.waits if wait.real_s >= LONG_S]
        line = f"{one.cell:30} {len(real_s):7}"
        if real_s:
            line += f" {percentile(real_s, 0.5):7.1f} {percentile(real_s, 0.9):7.1f}"
            factors = sorted(wait.factor for wait in one.waits)
            line += f"  {percentile(factors, 0.5):10.2f} {percentile(factors, 0.9):6.2f}"
        if long:
            factors = sorted(wait.factor for wait in long)
            header = sorted(wait.header_factor for wait in long)
            line += f"  {len(long):16} {percentile(factors, 0.9):6.2f}"
            line += f" {percentile(header, 0.9):10.2f}"
        text.append(line)
    return [*text, f"bar: {BAR} at p90; the header says {MAX_RETRY_AFTER_S} s at most"]


def _factor(left: int, right: int) -> float:
    return max(left, right) / min(left, right)
