"""Turns that our policy places away from their cached prefix, with the policy's explanation.

Owns what counts as such a move, and how long the worker with the prefix was really full. Must not
know how a cost is computed.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.routing.policies import OURS
from benchmarks.routing.policies.base import Placed, Setting
from benchmarks.routing.policies.herma import Herma
from benchmarks.routing.run import percentile, play
from benchmarks.routing.sweep import Task, case_of
from benchmarks.routing.worker import WorkerReport
from gateway.routing.effects import Assign, Effects
from gateway.telemetry import CandidateWorker

LEFT_TOKENS: Final = 8192
"""A turn that leaves fewer cached tokens behind is no move: one step computes as many."""


@dataclass(frozen=True, slots=True)
class TurnMove:
    """A turn that left `left_tokens` behind on `home`. `reason` is the route's."""

    number: int
    at: float
    home: CandidateWorker
    left_tokens: int
    candidates: Sequence[CandidateWorker]
    reason: str


@dataclass(frozen=True, slots=True)
class TurnMoves:
    """The moves of a cell (a trace, a number of workers, a load) among `num_turns`. `waits`: for
    each move, the announced wait on the worker that was left, and the seconds until an answer ended
    there.
    """

    cell: str
    num_turns: int
    moves: Sequence[TurnMove]
    waits: Sequence[tuple[float, float]]


class Explained(Herma):
    """Our policy, which also records its moves and the ends of answers."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.moves: list[TurnMove] = []
        self.ends: defaultdict[int, list[float]] = defaultdict(list)

    def on_report(self, report: WorkerReport, now: float) -> Sequence[Placed]:
        self.ends[report.worker] += [now] * bool(report.finished)
        return super().on_report(report, now)

    def _placed(self, effects: Effects) -> list[Placed]:
        self.moves += [
            move
            for effect in effects
            if isinstance(effect, Assign) and (move := _move(effect)) is not None
        ]
        return super()._placed(effects)


def _move(effect: Assign) -> TurnMove | None:
    if effect.decision is None:
        return None
    candidates = effect.decision.candidates
    home = max(candidates, key=lambda one: one.cached_tokens)
    if (left := home.cached_tokens - effect.cached_tokens) < LEFT_TOKENS:
        return None
    return TurnMove(effect.ticket, effect.placed_at, home, left, candidates, effect.reason)


def moves(planned: Iterable[Task]) -> Iterator[TurnMoves]:
    """The moves of each row of ours, in order. Raises `TraceError` if a trace is unusable."""
    for task in (task for task in planned if task.policy == OURS):
        case = case_of(task)
        policy, outcomes = play(case, Explained)
        waits: list[tuple[float, float]] = []
        for move in policy.moves:
            ends = policy.ends[int(move.home.worker.rpartition("-")[2])]
            at = bisect_right(ends, move.at)
            if at < len(ends):
                waits.append((move.home.wait_ms / 1e3, ends[at] - move.at))
        name = f"{case.trace.name} x{case.num_workers} at {case.load:g}, seed {case.seed}"
        yield TurnMoves(name, len(outcomes), policy.moves, waits)


def move_lines(found: Iterable[TurnMoves]) -> list[str]:
    """A line for each cell, and the explanation of its largest move."""
    text = [f"{'cell':36} {'turns':>6} {'moved':>6} {'announced s':>12} {'real s':>7}"]
    for one in found:
        line = f"{one.cell:36} {one.num_turns:6} {len(one.moves):6}"
        if one.waits:
            announced, real = (sorted(values) for values in zip(*one.waits, strict=True))
            line += f" {percentile(announced, 0.5):12.1f} {percentile(real, 0.5):7.1f}"
        text.append(line)
        if one.moves:
            text += _explained(max(one.moves, key=lambda move: move.left_tokens))
    return text


def _explained(move: TurnMove) -> list[str]:
    return [
        f"  turn {move.number}, {move.left_tokens} cached tokens left: {move.reason}",
        *(
            f"    {one.worker}{' *' if one.is_chosen else '  '} {one.running:3} running, "
            f"{one.cached_tokens:6} cached, {one.uncached_tokens:6} to compute: wait "
            f"{one.wait_ms:.0f} + prefill {one.prefill_ms:.0f} + interference "
            f"{one.interference_ms:.0f} = {one.cost_ms:.0f} ms"
            for one in move.candidates
        ),
    ]
