"""`python -m benchmarks.engine.mixed_steps [SHAPE]`: steps of decodes beside a prompt.

Owns the measurement: one engine of drawn weights, some running answers, and prompts of one token
each, which the scheduler puts whole into one step. Each step is launched, then collected: `step` is
the time of both, `launch` the host's part of it. A prompt token costs what a step with it takes
more than the decodes alone. Must not know how steps are made.
"""

import argparse
import gc
import random
import statistics
import time
from collections.abc import Iterator
from typing import Final

import torch

from benchmarks.drive import Drive
from benchmarks.machine import describe_machine
from config import DUMMY_PREFIX, WorkerConfig
from protocol.sampling import SamplingParams
from workers.engine.compile.compile_ahead import start_compiling
from workers.engine.runner import ModelRunner
from workers.engine.start import load_runner
from workers.scheduler import StepPlan

_ONE: Final = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
_MANY: Final = SamplingParams(max_tokens=100_000, temperature=0.0, ignore_eos=True)
_BUDGET: Final = 2048
_BEHIND: Final = 500
"""Tokens ahead of each decode, at first."""

_REPEATS: Final = 5


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.mixed_steps")
    parser.add_argument("shape", nargs="?", default="qwen3-8b")
    parser.add_argument("--quantization", default="auto")
    parser.add_argument("--decodes", default="64,200", metavar="LIST")
    parser.add_argument(
        "--prompts", default="64,128,256,384,550,768,1024,1400,1800", metavar="LIST"
    )
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    is_known = {":", "/"} & set(options.shape)
    decodes = [int(each) for each in options.decodes.split(",")]
    config = WorkerConfig(
        "bench",
        options.shape if is_known else f"{DUMMY_PREFIX}{options.shape}",
        "bench",
        (),
        token_budget=_BUDGET,
        device=options.device,
        max_seqs=max(decodes) + 1,
        kv_tokens=(max(decodes) + 8) * (_BEHIND + 1024),
        context_length=8192,
        quantization=options.quantization,
    )
    runner = load_runner(config, lambda *_: None, start_compiling(config))
    while runner.prepare(pending_only=False):
        pass
    gc.freeze()
    prompts = [int(each) for each in options.prompts.split(",")]
    print("| decodes | prompt tokens | step, ms | launch, ms | us a prompt token |")
    print("|---|---|---|---|---|")
    for row in _Steps(runner).rows(decodes, prompts):
        print(row, flush=True)
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    machine = "; ".join(describe_machine(("torch", "triton")).values())
    print(f"\n{options.shape}, quantization {options.quantization}; {name}; {machine}")


class _Steps:
    """One engine whose running answers grow by one token in each step."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._drive = Drive(runner, token_budget=_BUDGET, looks_ahead=False)
        self._rng = random.Random(3)
        self._launch_ms: list[float] = []
        launch = runner.launch

        def timed(plan: StepPlan) -> object:
            begun = time.perf_counter()
            in_flight = launch(plan)
            self._launch_ms.append((time.perf_counter() - begun) * 1e3)
            return in_flight

        runner.launch = timed  # type: ignore[method-assign, assignment]

    def rows(self, decodes: list[int], prompts: list[int]) -> Iterator[str]:
        """The lines of the table."""
        running = 0
        for count in sorted(decodes):
            for _ in range(count - running):
                self._drive.submit(self._prompt(_BEHIND), _MANY)
                if len(self._drive.live()) % 16 == 0:
                    self._step()
            running = count
            for _ in range(12):
                self._step()
            alone = self._median([self._step() for _ in range(2 * _REPEATS)])
            yield f"| {count} | 0 | {alone[0]:.2f} | {alone[1]:.2f} | |"
            for tokens in prompts:
                if tokens + count > _BUDGET:
                    continue
                found = []
                for _ in range(_REPEATS + 1):
                    self._drive.submit(self._prompt(tokens), _ONE)
                    found.append(self._step())
                    self._step()
                step, launch = self._median(found[1:])
                each = (step - alone[0]) * 1e3 / tokens
                yield f"| {count} | {tokens} | {step:.2f} | {launch:.2f} | {each:.1f} |"

    def _prompt(self, count: int) -> list[int]:
        size = self._runner.model.config.vocab_size
        return [self._rng.randrange(10, size) for _ in range(count)]

    def _step(self) -> tuple[float, float]:
        """Milliseconds of a step, and of its launch."""
        begun = time.perf_counter()
        if self._drive.step() is None:
            raise RuntimeError("all answers have ended")
        return (time.perf_counter() - begun) * 1e3, self._launch_ms[-1]

    def _median(self, found: list[tuple[float, float]]) -> tuple[float, float]:
        steps, launches = zip(*found, strict=True)
        return statistics.median(steps), statistics.median(launches)


if __name__ == "__main__":
    main()
