"""One trace, one policy, one fleet, in virtual time.

Owns the heap of events and the clock. Reports of workers reach the policy after a delay; placements
reach their worker at once. Must not know a policy's reasons or a worker's work.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from benchmarks.routing.policies.base import Placed, RoutingPolicy
from benchmarks.routing.trace import RoutingTrace, TracedTurn
from benchmarks.routing.worker import SimWorker, WorkerReport

REPORT_DELAY_S: Final = 0.002
"""The delay from the end of a step to the gateway: a frame on a local network."""


@dataclass(slots=True)
class TurnOutcome:
    """The times of one turn, in seconds of virtual time."""

    arrived_at: float = 0.0
    placed_at: float = 0.0
    first_token_at: float = 0.0
    finished_at: float = 0.0
    worker: int = -1
    cached_tokens: int = 0


_Payload = int | WorkerReport | None
_ARRIVE, _REPORT, _STEP, _TICK = range(4)


class Simulation:
    """`scale` multiplies the times between arrivals; pauses are not scaled. The first turn arrives
    at 0.
    """

    def __init__(
        self,
        trace: RoutingTrace,
        policy: RoutingPolicy,
        workers: Sequence[SimWorker],
        scale: float = 1.0,
    ) -> None:
        self.outcomes = [TurnOutcome() for _ in trace.turns]
        self._turns = trace.turns
        self._policy = policy
        self._workers = workers
        self._scale = scale
        self._begins_s = trace.turns[0].arrival_s
        self._heap: list[tuple[float, int, int, _Payload]] = []
        self._num_events = 0
        self._num_open = len(trace.turns)
        self._num_before = [len(turn.after) for turn in trace.turns]
        self._next_turns: dict[int, list[int]] = {}
        for turn in trace.turns:
            for before in turn.after:
                self._next_turns.setdefault(before, []).append(turn.number)
            if not turn.after:
                self._push(self._stamp(turn), _ARRIVE, turn.number)

    def run(self) -> None:
        """Play the trace until every turn is finished."""
        if self._policy.tick_s is not None:
            self._push(self._policy.tick_s, _TICK, None)
        while self._num_open:
            if not self._heap:
                raise RuntimeError(f"{self._num_open} turns were never placed or never ended")
            now, _, kind, payload = heappop(self._heap)
            if kind == _STEP:
                assert isinstance(payload, int)
                self._step(self._workers[payload], now)
            elif kind == _REPORT:
                assert isinstance(payload, WorkerReport)
                self._place(self._policy.on_report(payload, now), now)
            elif kind == _ARRIVE:
                assert isinstance(payload, int)
                self.outcomes[payload].arrived_at = now
                self._place(self._policy.arrived(self._turns[payload], now), now)
            else:
                self._place(self._policy.tick(now), now)
                self._push(now + (self._policy.tick_s or 0.0), _TICK, None)

    def _push(self, at: float, kind: int, payload: _Payload) -> None:
        self._num_events += 1
        heappush(self._heap, (at, self._num_events, kind, payload))

    def _place(self, placed: Iterable[Placed], now: float) -> None:
        for number, worker_number in placed:
            outcome, worker = self.outcomes[number], self._workers[worker_number]
            outcome.placed_at, outcome.worker = now, worker_number
            planned_at = worker.next_at
            worker.submit(self._turns[number], now)
            if worker.next_at != planned_at:
                self._expect(worker)

    def _expect(self, worker: SimWorker) -> None:
        if worker.next_at is not None:
            self._push(worker.next_at, _STEP, worker.number)

    def _step(self, worker: SimWorker, now: float) -> None:
        if worker.next_at != now:
            return  # The stretch was cut, or ended earlier.
        report = worker.step(now)
        self._expect(worker)
        for number, cached_tokens in report.admitted:
            self.outcomes[number].cached_tokens = cached_tokens
        for number in report.started:
            self.outcomes[number].first_token_at = now
        for number in report.finished:
            self._finished(number, now)
        if report.events or report.started or report.finished:
            self._push(now + REPORT_DELAY_S, _REPORT, report)

    def _finished(self, number: int, now: float) -> None:
        self.outcomes[number].finished_at = now
        self._num_open -= 1
        for later in self._next_turns.get(number, ()):
            self._num_before[later] -= 1
            if not self._num_before[later]:
                turn = self._turns[later]
                self._push(max(self._stamp(turn), now + turn.pause_s), _ARRIVE, later)

    def _stamp(self, turn: TracedTurn) -> float:
        return (turn.arrival_s - self._begins_s) * self._scale
