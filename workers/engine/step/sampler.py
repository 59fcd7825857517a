"""From logits to tokens, for the sequences of one step, without waiting for the device.

Owns which logits are drawn from, log-probabilities, and what is read back of a step. Must not know
the network; the draw itself is `kernels.sample`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from kernels.sample import logprobs, pick
from protocol.messages import TokenLogprobs
from workers.engine.step.batch import SequenceState, to_device
from workers.engine.step.draws import WIDENED_ROWS, DrawTable, is_penalised
from workers.engine.step.penalties import PenaltyTable
from workers.scheduler import Sampled


@dataclass(frozen=True, slots=True)
class Picked:
    """The tokens of one step, still on the device.

    `ids` int64 [S], -1 where the logits are not numbers; `seqs` in the same order. `wanted` are the
    rows of `scores` (see `kernels.sample.logprobs`), with how many alternatives each asked for.
    """

    seqs: tuple[int, ...]
    ids: Tensor
    wanted: tuple[tuple[int, int], ...] = ()
    scores: tuple[Tensor, Tensor, Tensor] | None = None


@final
class Sampler:
    """Samples rows of logits; keeps the counts of sequences until `forget`."""

    def __init__(self, vocab_size: int, max_rows: int, device: torch.device) -> None:
        self.draws = DrawTable(vocab_size, max_rows, device)
        # How the penalised rows of a step are drawn, where there are others beside them.
        self._drawn_apart = DrawTable(vocab_size, max_rows, device)
        self._penalties = PenaltyTable(vocab_size, max_rows, device)
        self._vocab_size = vocab_size
        self._device = device

    def forget(self, seqs: Sequence[int]) -> None:
        """Drop the state of ended sequences: their numbers may be reused."""
        self.draws.forget(seqs)
        self._drawn_apart.forget(seqs)
        self._penalties.forget(seqs)

    def sample(self, logits: Tensor, states: Sequence[SequenceState], positions: Tensor) -> Picked:
        """One token for each row of logits [S, vocab], at its absolute position (int [S])."""
        self.draws.arrange(states)
        penalised = self._penalties.arrange(states)
        if not penalised.shape[0]:
            ids = self._pick(logits, positions)
        elif penalised.shape[0] == len(states):
            ids = self._pick_penalised(logits, self.draws, positions)
        else:
            self._drawn_apart.arrange([s for s in states if is_penalised(s.sampling)])
            # The penalised rows are among them in vain: taking the others out would cost more.
            ids = self._pick(logits, positions)
            own = self._pick_penalised(logits, self._drawn_apart, positions[penalised])
            ids.index_copy_(0, penalised, own)
        scores = self._scores(logits, ids, states)
        return Picked(tuple([state.seq for state in states]), ids, *scores)

    def count(self, picked: Picked) -> None:
        """Count the sampled tokens as outputs. Call it after all else that takes memory: a step
        that runs out of it is repeated, and must find the old counts.
        """
        self._penalties.count(picked.ids)

    def _pick(self, logits: Tensor, positions: Tensor) -> Tensor:
        draws = self.draws.rows(logits.shape[0], filtered=self.draws.filtered)
        return pick(logits, draws, positions)

    def _pick_penalised(self, logits: Tensor, draws: DrawTable, positions: Tensor) -> Tensor:
        """Draw the penalised rows; `draws` and `positions` are theirs."""
        parts = [
            pick(
                adjusted,
                draws.rows(end - begin, filtered=draws.filtered, first=begin),
                positions[begin:end],
            )
            for begin, end, adjusted in self._penalties.adjust(logits)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _scores(
        self, logits: Tensor, ids: Tensor, states: Sequence[SequenceState]
    ) -> tuple[tuple[tuple[int, int], ...], tuple[Tensor, Tensor, Tensor] | None]:
        """Log-softmax of the raw logits, whatever the penalties and filters did."""
        wanted = tuple(
            (row, state.sampling.logprobs)
            for row, state in enumerate(states)
            if state.sampling.logprobs is not None
        )
        if not wanted:
            return (), None
        rows = to_device(np.array([row for row, _ in wanted], np.int32), self._device).long()
        num_top = min(max(num for _, num in wanted), self._vocab_size)
        parts = [
            logprobs(logits[part], ids[part], num_top) for part in torch.split(rows, WIDENED_ROWS)
        ]
        own, values, top = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        return wanted, (own, values, top)


def read(picked: Picked) -> tuple[list[Sampled], list[int]]:
    """The tokens, and the sequences whose logits are not numbers. Waits for the device."""
    ids: list[int] = picked.ids.tolist()
    scores = _read_scores(picked)
    good = [
        Sampled(seq, (token_id,), scores.get(row, ()))
        for row, (seq, token_id) in enumerate(zip(picked.seqs, ids, strict=True))
        if token_id >= 0
    ]
    return good, [seq for seq, token_id in zip(picked.seqs, ids, strict=True) if token_id < 0]


def _read_scores(picked: Picked) -> dict[int, tuple[TokenLogprobs]]:
    if picked.scores is None:
        return {}
    own, values, ids = (tensor.tolist() for tensor in picked.scores)
    found = {}
    for index, (row, num_top) in enumerate(picked.wanted):
        top = tuple(zip(ids[index], values[index], strict=True))
        found[row] = (TokenLogprobs(own[index], top[:num_top]),)
    return found
