"""What a routing policy is, and what all baselines share.

Owns the two doors of a policy: a turn arrives, a worker reports. A baseline places every turn at
once and lets it queue at the worker; a policy that holds turns back answers later. Must not know
how workers compute.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from benchmarks.routing.trace import Turn
from benchmarks.routing.worker import Report, SimWorker, WorkerSpec


class Placed(NamedTuple):
    """This turn goes to that worker now."""

    turn: int
    worker: int


@dataclass(frozen=True, slots=True)
class Setting:
    """The fleet that a policy routes for. `workers` are for bounds alone: nobody else may look
    into an engine.
    """

    num_workers: int
    spec: WorkerSpec
    block_size: int
    seed: int
    workers: Sequence[SimWorker]


class Policy(Protocol):
    """`tick_s`: how often `tick` wants to be called, None for never."""

    tick_s: float | None

    def arrived(self, turn: Turn, now: float) -> Sequence[Placed]:
        """A client asks."""

    def heard(self, report: Report, now: float) -> Sequence[Placed]:
        """A worker's report has come."""

    def tick(self, now: float) -> Sequence[Placed]:
        """Time has passed."""


class Baseline(ABC):
    """Counts what is in flight on each worker; `route` decides."""

    tick_s: float | None = None

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.in_flight = [0] * setting.num_workers
        self._turns: dict[int, tuple[Turn, int]] = {}

    @abstractmethod
    def route(self, turn: Turn, now: float) -> int:
        """The worker for this turn."""

    def arrived(self, turn: Turn, now: float) -> Sequence[Placed]:
        """Place it at once."""
        worker = self.route(turn, now)
        self.in_flight[worker] += 1
        self._turns[turn.number] = turn, worker
        self.placed(turn, worker, now)
        return (Placed(turn.number, worker),)

    def heard(self, report: Report, now: float) -> Sequence[Placed]:
        """Keep the books; nobody waits here."""
        self.observe(report, now)
        for number in report.started:
            turn, worker = self._turns[number]
            self.started(turn, worker)
        for number in report.finished:
            turn, worker = self._turns.pop(number)
            self.in_flight[worker] -= 1
            self.finished(turn, worker)
        return ()

    def tick(self, now: float) -> Sequence[Placed]:
        """Nothing happens by itself."""
        return ()

    def placed(self, turn: Turn, worker: int, now: float) -> None:
        """The turn was sent there."""

    def started(self, turn: Turn, worker: int) -> None:
        """Its first token came."""

    def finished(self, turn: Turn, worker: int) -> None:
        """Its last token came."""

    def observe(self, report: Report, now: float) -> None:
        """A worker's events and counters."""

    def least_loaded(self) -> int:
        """The worker with the fewest requests in flight, the first of equals."""
        return min(range(len(self.in_flight)), key=self.in_flight.__getitem__)
