"""The interface of a routing policy, and the baselines' common parts.

A policy is called when a turn arrives, a worker reports, or time passes. A baseline places every
turn at once and lets it queue at the worker; a policy that holds turns back answers later. Must not
know how workers compute.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from benchmarks.routing.trace import TracedTurn
from benchmarks.routing.worker import SimWorker, WorkerReport, WorkerSpec
from protocol.ids import ID_BYTES, BlockDigest
from protocol.messages import BlocksDropped, BlocksStored, Load


class Placed(NamedTuple):
    """A placement: this turn goes to that worker now."""

    turn: int
    worker: int


@dataclass(frozen=True, slots=True)
class Setting:
    """The fleet that a policy routes for. `workers` are for bounds, and for the counters that a
    policy scrapes; other policies must not look into an engine.
    """

    num_workers: int
    spec: WorkerSpec
    block_size: int
    seed: int
    workers: Sequence[SimWorker]


class RoutingPolicy(Protocol):
    """`tick_s`: the period of `tick`, None for never."""

    tick_s: float | None

    def arrived(self, turn: TracedTurn, now: float) -> Sequence[Placed]:
        """A turn has arrived."""

    def on_report(self, report: WorkerReport, now: float) -> Sequence[Placed]:
        """A worker's report has arrived."""

    def tick(self, now: float) -> Sequence[Placed]:
        """Time has passed."""


class Baseline(ABC):
    """Counts the requests in flight on each worker; `route` decides."""

    tick_s: float | None = None

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.in_flight = [0] * setting.num_workers

    @abstractmethod
    def route(self, turn: TracedTurn) -> int:
        """The worker for this turn."""

    def arrived(self, turn: TracedTurn, now: float) -> Sequence[Placed]:
        """Place the turn at once."""
        worker = self.route(turn)
        self.in_flight[worker] += 1
        return (Placed(turn.number, worker),)

    def on_report(self, report: WorkerReport, now: float) -> Sequence[Placed]:
        """Count finished requests; no turn waits here."""
        self.in_flight[report.worker] -= len(report.finished)
        return ()

    def tick(self, now: float) -> Sequence[Placed]:
        return ()

    def least_loaded(self) -> int:
        """The worker with the fewest requests in flight, the first among equals."""
        return min(range(len(self.in_flight)), key=self.in_flight.__getitem__)


class EventFed(Baseline):
    """A baseline that receives all block events and counters: the same knowledge as ours."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.held: list[set[BlockDigest]] = [set() for _ in range(setting.num_workers)]
        self.loads: list[Load | None] = [None] * setting.num_workers

    def on_report(self, report: WorkerReport, now: float) -> Sequence[Placed]:
        """Apply block events and counters."""
        held = self.held[report.worker]
        for event in report.events:
            packed = event.digests
            digests = [
                BlockDigest(packed[at : at + ID_BYTES]) for at in range(0, len(packed), ID_BYTES)
            ]
            # Peers count blocks; only our policy reads states.
            if isinstance(event, BlocksStored):
                held.update(digests)
            elif isinstance(event, BlocksDropped):
                held.difference_update(digests)
        self.loads[report.worker] = report.load
        return super().on_report(report, now)

    def matched(self, turn: TracedTurn) -> list[int]:
        """The number of leading blocks of the prompt that each worker holds."""
        return [_run(held, turn.digests) for held in self.held]

    def uncached(self, turn: TracedTurn) -> list[int]:
        """The number of prompt tokens that each worker would have to compute."""
        size = self.setting.block_size
        return [max(1, turn.prompt_tokens - size * blocks) for blocks in self.matched(turn)]


def _run(held: set[BlockDigest], digests: Sequence[BlockDigest]) -> int:
    num_matched = 0
    for digest in digests:
        if digest not in held:
            break
        num_matched += 1
    return num_matched
