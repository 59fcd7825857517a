"""The host's time in a step that verifies drafts of the card, by number of sequences.

Each sequence has 15 drafts, of which five or six are right. The network is replaced by its recorded
output, and the drafter by a constant one; the rest is the engine's own: scheduler, runner, the rows
of a step, and the launches around graphs. A card is not limited by the host only if it computes
longer than `all of a step`.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Final, final

import torch
from torch import Tensor

from benchmarks.drive import Drive
from benchmarks.micro.figures import MicroFigure
from config import SpeculationConfig, WorkerConfig
from protocol.sampling import SamplingParams
from workers.engine.drafting.drafter import Drafted, DraftStep
from workers.engine.drafting.speculating import speculation_for
from workers.engine.graphs.capture import Replay
from workers.engine.graphs.device_steps import DeviceSteps
from workers.engine.runner import InFlight, ModelRunner
from workers.engine.start import load_runner
from workers.scheduler import StepPlan, StepResult

_DEPTH: Final = 15
_RIGHT: Final = 0
_WRONG: Final = 1
_SURE: Final = 5
_CHANCE: Final = 0.3
_PROMPT: Final = 32
_OUTPUTS: Final = 640
_MODEL: Final = "builtin:herma-tiny"


def measure(quick: bool) -> Iterator[MicroFigure]:
    """Medians of elapsed time, for a process with a core of its own."""
    for num_seqs in (1,) if quick else (1, 8, 32, 64):
        for what, times_s in _passes(num_seqs, 4 if quick else 60).items():
            case = f"{num_seqs} sequences, {_DEPTH} drafts each"
            yield MicroFigure(case, what, 1e6 * statistics.median(times_s))


@final
class _Drafter:
    """Drafts the right token `_SURE` times or once more, then a wrong one."""

    name = "schedule"
    taps = (0,)
    reads_hidden = False
    cuts_anew = False
    num_bytes = 0
    token_bytes = 0
    max_depth = _DEPTH

    def __init__(self) -> None:
        self._rng = random.Random(0)

    def take_in(self, taps: Tensor, plan: object) -> None:
        """Ignore the taps."""

    def take_cache(self, num_blocks: int, block_size: int) -> None:
        """Do nothing: this drafter has no cache."""

    def draft(self, step: DraftStep) -> Drafted:
        """Draft by the `num_right` of each sequence."""
        ids = torch.full((len(step.seqs), step.depth), _WRONG)
        for own in ids:
            own[: _SURE + (self._rng.random() < _CHANCE)] = _RIGHT
        return Drafted(ids)


@final
class _Watched(ModelRunner):
    """A runner whose launches and reads are timed; graphs take no time."""

    launches_s: list[float]
    reads_s: list[float]
    graphs_s = 0.0

    def capture(self, step: Callable[[], Tensor]) -> Replay:
        """A replay that runs the step and subtracts its time (a `Capture`)."""

        def replay() -> Tensor:
            began_s = time.perf_counter()
            found = step()
            self.graphs_s += time.perf_counter() - began_s
            return found

        return replay

    def launch(self, plan: StepPlan) -> InFlight:
        """Launch a step, timed."""
        began_s, before_s = time.perf_counter(), self.graphs_s
        step = super().launch(plan)
        self.launches_s.append(time.perf_counter() - began_s - (self.graphs_s - before_s))
        return step

    def collect(self, step: InFlight) -> StepResult:
        """Collect a step, timed."""
        began_s = time.perf_counter()
        result = super().collect(step)
        self.reads_s.append(time.perf_counter() - began_s)
        return result


def _passes(num_seqs: int, num_steps: int) -> dict[str, list[float]]:
    """Seconds of each part of a step, in the middle of answers."""
    runner = _runner(num_seqs)
    proposer = speculation_for(_config(num_seqs), runner)
    drive = Drive(runner, looks_ahead=True, proposer=proposer, clock=time.perf_counter)
    sampling = SamplingParams(max_tokens=_OUTPUTS, temperature=0.0, ignore_eos=True)
    for number in range(num_seqs):
        drive.submit([2 + number % 50] * _PROMPT, sampling, salt=number.to_bytes(8, "little"))
    for _ in range(12):
        drive.step()
        while runner.prepare(pending_only=True):
            pass
    runner.launches_s, runner.reads_s, steps_s = [], [], []
    for _ in range(num_steps):
        began_s, before_s = time.perf_counter(), runner.graphs_s
        drive.step()
        steps_s.append(time.perf_counter() - began_s - (runner.graphs_s - before_s))
    return {"launch": runner.launches_s, "read": runner.reads_s, "all of a step": steps_s}


def _runner(num_seqs: int) -> _Watched:
    """A runner on a CPU with the steps of a card; it always outputs one token."""
    bare = load_runner(_config(num_seqs), lambda *_: None)
    with torch.inference_mode():
        bare.model.weights.embedding.zero_()  # its head, too

    def capture(step: Callable[[], Tensor]) -> Replay:
        return runner.capture(step)

    given = bare.model, bare.cache, bare.facts
    steps = DeviceSteps(*given, capture, drafter=_Drafter(), verifies=True)
    runner = _Watched(*given, bare.model_dir, steps, verifies=True)
    runner.launches_s, runner.reads_s = [], []
    return runner


def _config(num_seqs: int) -> WorkerConfig:
    window = _PROMPT + _OUTPUTS + 128
    return WorkerConfig(
        name="micro",
        model=_MODEL,
        serves="micro",
        gateways=(),
        device="cpu",
        dtype="float32",
        max_seqs=num_seqs,
        token_budget=max(2048, 32 * num_seqs),
        kv_tokens=num_seqs * window,
        max_context=window,
        speculation=SpeculationConfig(drafter="suffix", depth=_DEPTH, promised=1.0),
    )
