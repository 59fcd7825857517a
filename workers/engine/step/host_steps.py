"""Steps on the CPU: computed at once, with the tokens that the host knows.

Owns the order batch -> network -> sampler. Must not know plans or the card.
"""

from collections.abc import Sequence
from typing import Final, final

import torch
from torch import Tensor

from workers.engine.models.kv_cache import KvCache
from workers.engine.models.network import Network
from workers.engine.step.batch import Batch, SequenceState, make_batch
from workers.engine.step.sampler import Sampler
from workers.engine.step.steps import Launched
from workers.scheduler import Chunk


@final
class HostSteps:
    """`workers.engine.step.steps.Steps` without lookahead: on a CPU nothing would run beside it."""

    lookahead: Final = 0

    def __init__(self, model: Network, cache: KvCache, max_rows: int) -> None:
        self._model = model
        self._cache = cache
        self._sampler = Sampler(model.config.vocab_size, max_rows, model.device)

    def start(self, states: Sequence[SequenceState]) -> None:
        """Keeps nothing beside the runner's state."""

    def end(self, seqs: Sequence[int]) -> None:
        """See `Steps`."""
        self._sampler.forget(seqs)

    @torch.inference_mode()
    def launch(self, chunks: Sequence[Chunk], states: dict[int, SequenceState]) -> Launched | None:
        """See `Steps`."""
        batch = self._batch(chunks, states)
        hidden = self._forward(batch, batch.last_rows)
        if not batch.sampling:
            return None
        logits = self._model.logits(hidden)
        rows = [states[chunk.seq] for chunk in batch.sampling]
        picked = self._sampler.sample(logits, rows, batch.sampled_positions)
        self._sampler.count(picked)
        return Launched(picked)

    @property
    def used_graph(self) -> bool:
        """Never: there are none."""
        return False

    @property
    def has_pending_captures(self) -> bool:
        """Never: there is nothing to prepare."""
        return False

    def prepare(self, *, pending_only: bool) -> bool:  # noqa: ARG002 - the seam's
        """There is nothing to prepare."""
        return False

    @torch.inference_mode()
    def hidden(
        self, chunks: Sequence[Chunk], states: dict[int, SequenceState]
    ) -> list[tuple[Chunk, Tensor]]:
        """See `Steps`."""
        batch = self._batch(chunks, states)
        parts = torch.split(self._forward(batch, None), [chunk.length for chunk in batch.chunks])
        return list(zip(batch.chunks, parts, strict=True))

    def _batch(self, chunks: Sequence[Chunk], states: dict[int, SequenceState]) -> Batch:
        tokens = {chunk.seq: states[chunk.seq].tokens for chunk in chunks}
        invariant = self._model.invariant
        return make_batch(chunks, tokens, self._cache.block_size, invariant=invariant)

    def _forward(self, batch: Batch, rows: Tensor | None) -> Tensor:
        return self._model.forward(
            self._model.embed(batch.token_ids), batch.plan, self._cache, rows
        )
