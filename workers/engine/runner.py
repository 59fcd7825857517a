"""One step of the model: a plan in, sampled tokens out.

Owns the sequences' tokens, the cache and the model, and what happens when memory runs out in a
step. Must not know scheduling: which chunks run, in which blocks, is the plan's decision.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch

from protocol.messages import EngineFacts
from workers.core.plan import Chunk, Sampled, SequenceStart, StepPlan, StepResult
from workers.engine.batch import make_batch
from workers.engine.kv_cache import KvCache
from workers.engine.models.qwen3 import Qwen3
from workers.engine.sampler import Sampler
from workers.engine.sequences import SequencePool


class Runner:
    """Runs plans. `facts` and `eos_ids` are fixed at load; `model_dir` holds the text files."""

    lookahead: Final = 0

    def __init__(
        self,
        model: Qwen3,
        cache: KvCache,
        facts: EngineFacts,
        model_dir: Path,
    ) -> None:
        self.facts = facts
        self.eos_ids: frozenset[int] = model.config.eos_ids
        self.model_dir = model_dir
        self._model = model
        self._cache = cache
        self._device = model.weights.embedding.device
        self._pool = SequencePool()
        self._sampler = Sampler(model.config.vocab_size, self._device)

    @property
    def num_sequences(self) -> int:
        """Sequences whose state is kept."""
        return len(self._pool)

    def launch(self, plan: StepPlan) -> StepPlan:
        """Nothing is done before it is waited for."""
        return plan

    def collect(self, plan: StepPlan) -> StepResult:
        """Compute the step."""
        return self.run(plan)

    def run(self, plan: StepPlan) -> StepResult:
        """Compute the plan and append what was sampled to the sequences.

        A sequence with ids outside the vocabulary, whose logits are not numbers, or whose chunk
        does not fit into memory, is in `failed`; the others of the plan are not affected.
        """
        self._pool.end(plan.ended)
        self._sampler.forget(plan.ended)
        self._pool.start(plan.started)
        failed = dict(self._invalid(plan.started))
        chunks = [chunk for chunk in plan.chunks if chunk.seq not in failed]
        sampled: list[Sampled] = []
        while chunks:
            outcome = self._try_step(chunks)
            if outcome is not None:
                sampled, broken = outcome
                failed.update(dict.fromkeys(broken, "the model's output is not a number"))
                break
            culprit = max(chunks, key=_appetite)
            chunks.remove(culprit)
            failed[culprit.seq] = _out_of_memory_text(culprit)
        for item in sampled:
            self._pool.tokens[item.seq].extend(item.ids)
        return StepResult(plan.step, tuple(sampled), tuple(failed.items()))

    def _try_step(self, chunks: Sequence[Chunk]) -> tuple[list[Sampled], list[int]] | None:
        """None if memory ran out. A step may be repeated: it writes the same keys and values."""
        try:
            return self._step(chunks)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # Outside the handler: the exception's frames held the tensors of the failed step.
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return None

    @torch.inference_mode()
    def _step(self, chunks: Sequence[Chunk]) -> tuple[list[Sampled], list[int]]:
        batch = make_batch(chunks, self._pool.tokens, self._cache.block_size, self._device)
        hidden = self._model.forward(batch, self._cache)
        sampling = batch.sampling()
        if not sampling:
            return [], []
        logits = self._model.logits(hidden.index_select(0, batch.last_rows))
        states = [self._pool.states[chunk.seq] for chunk in sampling]
        return self._sampler.sample(logits, states, [c.start + c.length for c in sampling])

    def _invalid(self, started: Sequence[SequenceStart]) -> list[tuple[int, str]]:
        """An id past the embedding would be an error on the CPU and poison a CUDA context."""
        size = self._model.config.vocab_size
        return [
            (start.seq, f"token id {largest} is outside the vocabulary of {size}")
            for start in started
            if (largest := _largest(start.token_ids)) >= size
        ]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed. torch has a type for that on CUDA only."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def _largest(ids: array[int]) -> int:
    return int(np.frombuffer(ids, np.uint32).max(initial=0))


def _appetite(chunk: Chunk) -> tuple[int, int]:
    """Temporary memory grows with a chunk's rows, then with its context."""
    return chunk.length, chunk.start


def _out_of_memory_text(chunk: Chunk) -> str:
    return (
        f"out of memory in a chunk of {chunk.length} tokens after {chunk.start}; "
        "lower token_budget or kv_tokens of this worker"
    )
