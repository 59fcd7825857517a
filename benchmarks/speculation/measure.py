"""One figure: the speed of a batch of sequences with one way of drafting.

Owns the run and its clock. Must not know tables.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, final

import torch

from benchmarks.drive import Drive
from benchmarks.speculation.profile import record
from benchmarks.speculation.proposers import SwitchedProposer
from protocol.sampling import SamplingParams
from workers.engine.runner import ModelRunner
from workers.scheduler import Proposer

NONE: Final = "none"
IDLE: Final = "idle"
"""A drafter that processes every step and drafts nothing."""

ADAPTIVE: Final[Literal["adaptive"]] = "adaptive"

RUNS: Final = 6
"""The most runs of a figure, of which the fastest counts: the first ones compile kernels and lack
graphs.
"""

_LEAST_RUNS: Final = 3
"""The first run launches kernel by kernel, the second replays steps but lacks the graphs of draft
passes, the third has both. Without drafts the second run has all graphs.
"""

_LONG_S: Final = 6.0
"""A run longer than this gets no more than `_LEAST_RUNS`. Until then adaptive depth gets more runs,
because it learns.
"""

_BEFORE: Final = 20
"""Tokens of an answer before steps are recorded."""

_PROFILED: Final = 12


@dataclass(frozen=True, slots=True)
class SpeculationLoad:
    """Prompts of one kind of text, and the sampling of their answers."""

    kind: str
    prompts: tuple[tuple[int, ...], ...]
    sampling: SamplingParams

    def of(self, least: int, batch: int) -> "SpeculationLoad":
        """`least` prompts, or one batch of them if that is more."""
        return replace(self, prompts=self.prompts[: max(least, batch)])


@dataclass(frozen=True, slots=True)
class SpeculationFigure:
    """The result for one kind of text and batch. `way`: "none", "idle", "adaptive" or a depth.
    `length`: tokens per pass. `acceptance`: by place, the share of accepted drafts among those
    whose predecessors were accepted. `step_ms`: the median time from one result to the next, in
    steps without prompts; `draft_ms` of it are draft passes. `num_missed`: graphs that were missing
    in the last run.
    """

    kind: str
    batch: int
    way: str
    tokens_per_s: float
    length: float
    acceptance: tuple[float, ...]
    step_ms: float = 0.0
    draft_ms: float = 0.0
    num_missed: int = 0


@final
class SpeculationBench:
    """A runner that serves loads, one after another."""

    def __init__(
        self, runner: ModelRunner, most: int = 0, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Passes have up to `most` drafts; 0: no drafting at all. `clock` returns seconds."""
        self._clock = clock
        self._runner = runner
        self._proposer = SwitchedProposer(most)
        self._drive = Drive(
            runner,
            looks_ahead=runner.lookahead > 0,
            proposer=self._proposer if most else None,
            clock=clock,
        )
        self._num_served = 0

    def measure(
        self, load: SpeculationLoad, batch: int, way: str, proposer: Proposer | None
    ) -> SpeculationFigure:
        """Serve all prompts, `batch` at once. Raises `RuntimeError` for an answer without end."""
        best_s, total_s, num_tokens, num_missed = float("inf"), 0.0, 0, 0
        for number in range(1, RUNS + 1):
            self._proposer.switch(proposer)
            began_s, num_tokens = self._clock(), 0
            for begin in range(0, len(load.prompts), batch):
                num_tokens += self._serve(load.prompts[begin : begin + batch], load.sampling)
            seconds = self._clock() - began_s
            best_s, total_s = min(best_s, seconds), total_s + seconds
            num_missed = self.capture_missed()
            is_over = total_s > _LONG_S or (not num_missed and way != ADAPTIVE)
            if number >= (_LEAST_RUNS if proposer else _LEAST_RUNS - 1) and is_over:
                break
        counts = self._proposer.counts
        return SpeculationFigure(
            kind=load.kind,
            batch=batch,
            way=way,
            tokens_per_s=num_tokens / best_s,
            length=counts.length or 1.0,
            acceptance=counts.acceptance,
            step_ms=1e3 * counts.step_s,
            draft_ms=1e3 * counts.draft_s,
            num_missed=num_missed,
        )

    def profile(self, load: SpeculationLoad, batch: int, proposer: Proposer | None) -> list[str]:
        """A summary of the card's work in a few steps in the middle of answers (`profile.py`)."""
        self._proposer.switch(proposer)
        numbers = self._submit(load.prompts[:batch], load.sampling)
        answers = [self._drive.answers[number] for number in numbers]
        while min(len(answer.outputs) for answer in answers) < _BEFORE:
            self._drive.step()
        found = record(self._few_steps)
        self._drive.finish()
        for number in numbers:
            self._drive.answers.pop(number)
        return found

    def _few_steps(self) -> int:
        until = self._drive.num_steps + _PROFILED
        while self._drive.num_steps < until and self._drive.step() is not None:
            pass
        return _PROFILED

    @torch.inference_mode()
    def capture_missed(self) -> int:
        """Capture the graphs that the steps so far lacked; return their number."""
        count = 0
        while self._runner.prepare(pending_only=True):
            count += 1
        return count

    def _serve(self, prompts: Sequence[Sequence[int]], sampling: SamplingParams) -> int:
        """Serve the prompts without a prefix cache; return the tokens of all answers."""
        numbers = self._submit(prompts, sampling)
        self._drive.finish()
        answers = [self._drive.answers.pop(number) for number in numbers]
        if any(answer.finished is None for answer in answers):
            raise RuntimeError("an answer has not ended")
        return sum(len(answer.outputs) for answer in answers)

    def _submit(self, prompts: Sequence[Sequence[int]], sampling: SamplingParams) -> list[int]:
        numbers = []
        for prompt in prompts:
            self._num_served += 1
            salt = self._num_served.to_bytes(8, "little")
            numbers.append(self._drive.submit(prompt, sampling, salt=salt))
        return numbers
