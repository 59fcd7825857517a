"""An engine without a model: made-up tokens at an exact pace.

Owns the answers of `engine = "synthetic"` and their pace: an output token is a hash of the seed and
of its place in the answer, so a resumed sequence continues as the undisturbed one. It reads the
model's text files and never its weights. Must not import torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

from config import WorkerConfig
from protocol.messages import TokenLogprobs
from protocol.sampling import SamplingParams
from workers.model_dir import read_eos_ids
from workers.replay.model_dir import engine_facts, find_model_dir
from workers.replay.pace import Pace
from workers.replay.vocabulary import read_vocabulary
from workers.scheduler import Chunk, Sampled, StepPlan, StepResult


@final
class SyntheticRunner:
    """The runner's seam without a model. One sequence costs a few counters."""

    lookahead: Final = 0
    has_pending_captures: Final = False

    def __init__(self, config: WorkerConfig, model_dir: Path) -> None:
        self.model_dir = model_dir
        self.eos_ids = frozenset(read_eos_ids(model_dir))
        self.facts = engine_facts(config, model_dir)
        self._vocabulary = read_vocabulary(model_dir)
        self._pace = Pace(config.step_ms / 1e3)
        self._sequences: dict[int, tuple[int, int, SamplingParams]] = {}

    def prepare(self, *, wished_only: bool) -> bool:  # noqa: ARG002 - the seam's
        """There is nothing to prepare."""
        return False

    def launch(self, plan: StepPlan) -> StepPlan:
        """Nothing is done before it is waited for."""
        return plan

    def collect(self, plan: StepPlan) -> StepResult:
        """Tokens for all sampling chunks of `plan`, when its step is over."""
        due_at = self._pace.next_due(time.monotonic())
        for seq in plan.ended:
            self._sequences.pop(seq, None)
        for start in plan.started:
            self._sequences[start.seq] = (start.seed, start.num_prompt, start.sampling)
        sampled = tuple(self._sample(chunk) for chunk in plan.chunks if chunk.samples)
        if (rest_s := due_at - time.monotonic()) > 0:
            time.sleep(rest_s)
        return StepResult(plan.step, sampled)

    def _sample(self, chunk: Chunk) -> Sampled:
        seed, num_prompt, sampling = self._sequences[chunk.seq]
        token_id = self._vocabulary.at(seed, chunk.start + chunk.length - num_prompt)
        if sampling.logprobs is None:
            return Sampled(chunk.seq, (token_id,))
        top = ((token_id, 0.0),) if sampling.logprobs else ()
        return Sampled(chunk.seq, (token_id,), (TokenLogprobs(0.0, top),))


def load_synthetic(
    config: WorkerConfig, report: Callable[[str, float, str], None]
) -> SyntheticRunner:
    """The runner for `config`, whose model must be a directory. Raises `ConfigError`."""
    model_dir = find_model_dir(config)
    report("tokenizer", 0.5, str(model_dir))
    return SyntheticRunner(config, model_dir)
