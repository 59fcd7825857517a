"""The parts of every step's time: `--trace FILE`.

Owns the timers around a runner's two calls, and their tables. Only a traced run has them, because
they add two events to a step.

A turn of the loop is cut where the runner is entered and left, so its parts add up to the time from
one result to the next:

    host (commit, frames, plan) -> launch (step N+1) -> send -> wait (step N) -> prepare
"""

import statistics
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple, final

import torch

from protocol.messages import EngineFacts
from workers.engine.parallel.leader import LeadingRunner
from workers.engine.runner import InFlight, ModelRunner
from workers.scheduler.plan import StepPlan, StepResult

_BOUNDS: Final = (0, 1, 8, 16, 32, 64, 128, 192, 256, 1 << 30)
"""Upper bounds of the row counts by which decode steps are grouped."""

_LONGEST: Final = 5

_PARTS: Final = ("host", "launch", "send", "wait", "prepare")


class TracedStep(NamedTuple):
    """One collected step, in milliseconds.

    `step_ms` is the time from the previous result to this one, or from the launch if nothing was in
    flight. `launch_ms` is the launch within it, usually that of the next step; `prepare_ms` the
    capture of a graph between two turns. `card_ms` is the time from the begin to the end of this
    step in the card's stream, `idle_ms` from the end of the previous step: how long the card waited
    for the CPU. Both are 0 without a card. If `launch_ms` is as long as `card_ms`, the launches are
    the limit. `graph`: it replayed a graph.
    """

    rows: int
    prefill_tokens: int
    graph: bool
    step_ms: float
    host_ms: float
    launch_ms: float
    send_ms: float
    wait_ms: float
    prepare_ms: float
    card_ms: float
    idle_ms: float


@dataclass(frozen=True, slots=True)
class _Marks:
    """The begin and the end of a step in the stream."""

    begin: torch.cuda.Event
    end: torch.cuda.Event
    follows: torch.cuda.Event | None


@dataclass(frozen=True, slots=True)
class _Collected:
    plan: StepPlan
    used_graph: bool
    parts: dict[str, float]
    marks: _Marks | None


@final
class TracedRunner:
    """`workers.loop.pipeline.Runner` around a runner; used by the loop's thread only."""

    def __init__(self, runner: ModelRunner | LeadingRunner, trace: "StepTrace") -> None:
        self.facts: EngineFacts = runner.facts
        self.eos_ids = runner.eos_ids
        self.model_dir = runner.model_dir
        self._runner = runner
        self._trace = trace
        self._has_card = runner.model.device.type == "cuda"
        self._flying: deque[tuple[StepPlan, bool, _Marks | None]] = deque()
        self._parts: dict[str, float] = {}
        self._cut_at = 0.0
        self._last_end: torch.cuda.Event | None = None

    @property
    def lookahead(self) -> int:
        return self._runner.lookahead

    @property
    def has_pending_captures(self) -> bool:
        return self._runner.has_pending_captures

    def prepare(self, *, pending_only: bool) -> bool:
        """Capture graphs, timed."""
        self._cut("host")
        did = self._runner.prepare(pending_only=pending_only)
        self._cut("prepare")
        return did

    def launch(self, plan: StepPlan) -> InFlight:
        """Launch a step, timed. Raises the runner's errors; a failed step is not traced."""
        if not self._flying:
            # The time before was idle.
            self._parts, self._last_end = {}, None
            self._cut_at = time.perf_counter()
        self._cut("host")
        begin = self._event()
        launched = self._runner.launch(plan)
        end = self._event()
        marks = None if begin is None or end is None else _Marks(begin, end, self._last_end)
        self._last_end = end
        self._flying.append((plan, self._runner.used_graph, marks))
        self._cut("launch")
        return launched

    def collect(self, step: InFlight) -> StepResult:
        """Collect a step, timed."""
        plan, used_graph, marks = self._flying.popleft()
        self._cut("send")
        result = self._runner.collect(step)
        self._cut("wait")
        self._trace.add(_Collected(plan, used_graph, self._parts, marks))
        self._parts = {}
        return result

    def _cut(self, part: str) -> None:
        now = time.perf_counter()
        self._parts[part] = self._parts.get(part, 0.0) + 1e3 * (now - self._cut_at)
        self._cut_at = now

    def _event(self) -> torch.cuda.Event | None:
        if not self._has_card:
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


@final
class StepTrace:
    """Steps by the test in which they were collected. A step that runs ahead of a test's last
    answer counts for the next test.
    """

    def __init__(self) -> None:
        self.steps: dict[str, list[TracedStep]] = {}
        self._collected: list[_Collected] = []

    def over(self, runner: ModelRunner | LeadingRunner) -> TracedRunner:
        """The runner with timers."""
        return TracedRunner(runner, self)

    def add(self, collected: _Collected) -> None:
        """Record a step. Its events are read later, outside the measured time."""
        self._collected.append(collected)

    def end(self, test: str) -> str:
        """Assign all steps since the last call to `test`. Returns their table."""
        collected, self._collected = self._collected, []
        steps = self.steps[test] = [_step(one) for one in collected]
        return step_table(steps)

    @property
    def has_steps(self) -> bool:
        """Whether some steps belong to no test yet."""
        return bool(self._collected)

    def as_json(self) -> dict[str, Any]:
        """Columns, and their rows for every test."""
        return {
            "columns": list(TracedStep._fields),
            "tests": {
                test: [[round(value, 4) for value in step] for step in steps]
                for test, steps in self.steps.items()
            },
        }


def step_table(steps: Sequence[TracedStep]) -> str:
    """Medians by kind of step, and the longest steps, as a Markdown table."""
    columns = [name for name in TracedStep._fields if name.endswith("_ms")]
    heads = ("steps", "number", "sum s", *(name.removesuffix("_ms") for name in columns))
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for name, group in _groups(steps):
        medians = (statistics.median(getattr(step, column) for step in group) for column in columns)
        total = sum(step.step_ms for step in group) / 1e3
        cells = (name, str(len(group)), f"{total:.2f}", *(f"{value:.2f}" for value in medians))
        lines.append(f"| {' | '.join(cells)} |")
    longest = sorted(range(len(steps)), key=lambda number: -steps[number].step_ms)[:_LONGEST]
    for number in longest:
        step = steps[number]
        name = f"no. {number}: {step.rows} rows, {step.prefill_tokens} prefill"
        cells = (name, "1", "", *(f"{getattr(step, column):.2f}" for column in columns))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _groups(steps: Sequence[TracedStep]) -> Iterable[tuple[str, list[TracedStep]]]:
    for low, high in pairwise(_BOUNDS):
        group = [step for step in steps if not step.prefill_tokens and low < step.rows <= high]
        if group:
            yield f"decode, {low + 1}-{min(high, max(step.rows for step in group))} rows", group
    for name, is_graph in (("with prompts, a graph", True), ("with prompts", False)):
        group = [step for step in steps if step.prefill_tokens and step.graph is is_graph]
        if group:
            yield name, group


def _step(one: _Collected) -> TracedStep:
    lengths = [chunk.length for chunk in one.plan.chunks]
    card, idle = 0.0, 0.0
    if one.marks is not None:
        one.marks.end.synchronize()
        card = one.marks.begin.elapsed_time(one.marks.end)
        if one.marks.follows is not None:
            idle = one.marks.follows.elapsed_time(one.marks.begin)
    return TracedStep(
        rows=len(lengths),
        prefill_tokens=sum(lengths) - lengths.count(1),
        graph=one.used_graph,
        step_ms=sum(one.parts.values()),
        **{f"{part}_ms": one.parts.get(part, 0.0) for part in _PARTS},
        card_ms=card,
        idle_ms=idle,
    )
