"""`python -m benchmarks.engine.verify [SHAPE]`: the cost and the gain of verifying drafts.

Owns the comparison, by one engine: steps of decodes; the same steps where each waits for the tokens
of the one before, as drafts from the host require; and steps that verify K drafts after each token.
Drafts are right by a schedule: five places always, the sixth in three of ten, no other (vLLM's
`synthetic` acceptance of length 6.3).

The model has random weights and a head of zeros, so it always outputs token 0, in the time of any
other token: a draft is right if it is 0.
"""

from __future__ import annotations

import argparse
import random
from array import array
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

import torch

from benchmarks.engine.client import BenchClient, EngineRequest
from benchmarks.engine.engine import MeasuredEngine
from benchmarks.machine import describe_machine
from config import DUMMY_PREFIX, WorkerConfig
from protocol.messages import DraftResults
from workers.engine.compile.compile_ahead import start_compiling
from workers.engine.start import load_runner
from workers.scheduler import Chunk, DraftCandidate, DraftTiming, StepPlan, StepResult

RATES: Final = (1.0, 1.0, 1.0, 1.0, 1.0, 0.3)
"""The chance that a draft is right at each place, if all drafts before it are."""

_RIGHT: Final = 0
_WRONG: Final = 1
_BATCHES: Final = (1, 8, 32, 64)
_DEPTHS: Final = (0, 1, 3, 5, 7, 15)
_PROMPT: Final = 128
_OUTPUTS: Final = 320
_RUNS: Final = 3


class Schedule:
    """A `Proposer` of `depth` drafts for each sequence; with None steps do not wait. `num_passes`
    counts the passes of one sequence.
    """

    def __init__(self, rates: Sequence[float]) -> None:
        self.depth: int | None = None
        self.num_passes = 0
        self._rates = rates
        self._rng = random.Random(0)

    def summary(self) -> DraftResults:
        """See `Proposer`."""
        return DraftResults("schedule", 0, 0, (), (), float(self.depth or 0), 1.0)

    def start(self, seq: int, token_ids: array[int], shared_from: int | None) -> None:
        """See `Proposer`."""

    def end(self, seq: int) -> None:
        """See `Proposer`."""

    def waits(self, candidates: Sequence[DraftCandidate]) -> bool:
        """See `Proposer`."""
        return self.depth is not None and len(candidates) > 0

    def propose(
        self, candidates: Sequence[DraftCandidate], room: int
    ) -> Mapping[int, tuple[int, ...]]:
        """See `Proposer`."""
        self.num_passes += len(candidates)
        if not self.depth or room < self.depth * len(candidates):
            return {}
        return {seq: self._drafts(min(self.depth, most)) for seq, most in candidates if most}

    def propose_ahead(
        self, in_flight: StepPlan, candidates: Sequence[DraftCandidate], room: int
    ) -> Mapping[int, tuple[int, ...]]:
        """Nothing: the host drafts after tokens that it knows."""
        del in_flight, candidates, room
        return {}

    def num_to_draft(self, num_sequences: int, room: int) -> int:
        """0: the host drafts, not the card."""
        del num_sequences, room
        return 0

    def take_in(self, chunks: list[Chunk]) -> tuple[list[Chunk], bool]:
        """See `Proposer`."""
        return chunks, True

    def took(
        self,
        plan: StepPlan,
        num_tokens: int,
        seconds: float,
        *,
        is_ahead: bool,
        drafting: DraftTiming,
    ) -> None:
        """See `Proposer`."""

    def learn(self, plan: StepPlan, result: StepResult) -> None:
        """See `Proposer`."""

    def _drafts(self, depth: int) -> tuple[int, ...]:
        places = enumerate(self._rates[:depth])
        right = next((at for at, rate in places if self._rng.random() >= rate), None)
        right = min(depth, len(self._rates)) if right is None else right
        return (_RIGHT,) * right + (_WRONG,) * (depth - right)


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.verify")
    parser.add_argument("shape", nargs="?", default="qwen3-8b")
    parser.add_argument("--batches", default=",".join(map(str, _BATCHES)), metavar="LIST")
    parser.add_argument("--depths", default=",".join(map(str, _DEPTHS)), metavar="LIST")
    parser.add_argument("--outputs", type=int, default=_OUTPUTS)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    batches = [int(word) for word in arguments.batches.split(",")]
    depths = [int(word) for word in arguments.depths.split(",")]
    config = WorkerConfig(
        name="bench",
        model=f"{DUMMY_PREFIX}{arguments.shape}",
        serves="bench",
        gateways=(),
        device=arguments.device,
        max_seqs=max(batches),
        token_budget=2048,
        kv_tokens=max(batches) * 1024,
        context_length=1024,
        speculation="auto",
    )
    runner = load_runner(config, lambda *_: None, start_compiling(config))
    head = runner.model.weights.head
    assert isinstance(head, torch.Tensor)
    with torch.inference_mode():
        head.zero_()
    schedule = Schedule(RATES)
    engine = MeasuredEngine(runner, max_waiting=2 * max(batches), proposer=schedule)
    print(f"| batch | decode step ms | {' | '.join(_head(depth) for depth in depths)} |")
    print("|---|---|" + "---|" * len(depths))
    engine.serve(lambda client: _print_rows(client, schedule, batches, depths, arguments.outputs))
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    machine = "; ".join(describe_machine(("torch", "triton")).values())
    print(f"\nms a pass, tokens a pass, tokens/s; {arguments.shape}, {name}; {machine}")


def _head(depth: int) -> str:
    return f"K = {depth}" if depth else "waits"


def _print_rows(
    client: BenchClient,
    schedule: Schedule,
    batches: Sequence[int],
    depths: Sequence[int],
    outputs: int,
) -> None:
    for batch in batches:
        schedule.depth = None
        step_ms, _ = _measure(client, schedule, batch, outputs)
        cells = []
        for depth in depths:
            schedule.depth = depth
            token_ms, per_pass = _measure(client, schedule, batch, outputs)
            cells.append(
                f"{token_ms * per_pass:.2f}, {per_pass:.2f}, {1e3 * batch / token_ms:,.0f}"
            )
        row = " | ".join(cells)
        print(f"| {batch} | {step_ms:.2f} ({1e3 * batch / step_ms:,.0f}) | {row} |", flush=True)


def _measure(
    client: BenchClient, schedule: Schedule, batch: int, outputs: int
) -> tuple[float, float]:
    """Milliseconds per token of each sequence, and tokens per pass, of the median run."""
    times, passes = [], []
    for _ in range(1 + _RUNS):
        schedule.num_passes = 0
        rng = random.Random(batch)
        prompts = [[rng.randrange(1000) for _ in range(_PROMPT)] for _ in range(batch)]
        answers, seconds = client.call([EngineRequest(prompt, outputs) for prompt in prompts])
        first = max(answer.first_s for answer in answers)
        times.append(1e3 * (seconds - first) / (outputs - 1))
        passes.append(batch * (outputs - 1) / max(1, schedule.num_passes))
    return median(times[1:]), median(passes[1:])


if __name__ == "__main__":
    main()
