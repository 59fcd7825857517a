"""One figure: so many sequences at once, drafted for in one way.

Owns the run and its clock. Must not know tables.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import torch

from benchmarks.drive import Drive
from benchmarks.speculation.proposers import SwitchedProposer
from protocol.sampling import SamplingParams
from workers.engine.runner import Runner
from workers.scheduler import Proposer

RUNS: Final = 3
"""Of which the fastest counts: the first ones compile kernels and capture graphs."""


@dataclass(frozen=True, slots=True)
class Load:
    """Prompts of one kind of text, and what is asked of each."""

    kind: str
    prompts: tuple[tuple[int, ...], ...]
    sampling: SamplingParams

    def of(self, least: int, batch: int) -> "Load":
        """So many of the prompts, or one batch of them if that is more."""
        return replace(self, prompts=self.prompts[: max(least, batch)])


@dataclass(frozen=True, slots=True)
class Figure:
    """`way` is how it was drafted for: a depth, or "adaptive". `length`: tokens of a pass;
    `acceptance` by place, of drafts whose predecessors were accepted.
    """

    kind: str
    batch: int
    way: str
    tokens_per_s: float
    length: float
    acceptance: tuple[float, ...]


@final
class Bench:
    """A runner that serves loads, one after another."""

    def __init__(self, runner: Runner, most: int = 0) -> None:
        """With up to `most` drafts of a pass, 0: there are none."""
        self._runner = runner
        self._proposer = SwitchedProposer(most)
        self._drive = Drive(
            runner,
            looks_ahead=runner.lookahead > 0,
            proposer=self._proposer if most else None,
            clock=time.perf_counter,
        )
        self._num_served = 0

    def measure(self, load: Load, batch: int, way: str, proposer: Proposer | None) -> Figure:
        """Serve all prompts, `batch` at once. Raises `RuntimeError` for an answer without end."""
        best_s, num_tokens = float("inf"), 0
        for _ in range(RUNS):
            # What the run before has missed.
            with torch.inference_mode():
                while self._runner.prepare(pending_only=True):
                    pass
            self._proposer.switch(proposer)
            began_s, num_tokens = time.perf_counter(), 0
            for begin in range(0, len(load.prompts), batch):
                num_tokens += self._serve(load.prompts[begin : begin + batch], load.sampling)
            best_s = min(best_s, time.perf_counter() - began_s)
        counts = self._proposer.counts
        rate = num_tokens / best_s
        return Figure(load.kind, batch, way, rate, counts.length or 1.0, counts.acceptance)

    def _serve(self, prompts: Sequence[Sequence[int]], sampling: SamplingParams) -> int:
        """Tokens of all answers. Nothing is found in the prefix cache."""
        numbers = []
        for prompt in prompts:
            self._num_served += 1
            salt = self._num_served.to_bytes(8, "little")
            numbers.append(self._drive.submit(prompt, sampling, salt=salt))
        self._drive.finish()
        answers = [self._drive.answers.pop(number) for number in numbers]
        if any(answer.finished is None for answer in answers):
            raise RuntimeError("an answer has not ended")
        return sum(len(answer.outputs) for answer in answers)
