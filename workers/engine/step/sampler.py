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
from workers.engine.step.draws import WIDENED_ROWS, DrawTable, is_adjusted
from workers.engine.step.masks import MaskTable
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
        # How the adjusted rows of a step are drawn, where there are others beside them.
        self._drawn_apart = DrawTable(vocab_size, max_rows, device)
        self._penalties = PenaltyTable(vocab_size, max_rows, device)
        self._masks = MaskTable(vocab_size, max_rows, device)
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
        adjusted = self._penalties.arrange(states)
        if not adjusted.shape[0]:
            ids = self._pick(logits, positions)
        elif adjusted.shape[0] == len(states):
            ids = self._pick_adjusted(logits, states, None, self.draws, positions)
        else:
            members = [state for state in states if is_adjusted(state)]
            self._drawn_apart.arrange(members)
            # The adjusted rows are among them in vain: taking the others out would cost more.
            ids = self._pick(logits, positions)
            own = self._pick_adjusted(
                logits, members, adjusted, self._drawn_apart, positions[adjusted]
            )
            ids.index_copy_(0, adjusted, own)
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

    def _pick_adjusted(
        self,
        logits: Tensor,
        members: Sequence[SequenceState],
        rows: Tensor | None,
        draws: DrawTable,
        positions: Tensor,
    ) -> Tensor:
        """Draw the rows with penalties or grammars, `rows` of the logits (None: all); the rest is
        theirs.
        """
        # On a card the network computes meanwhile.
        lone = self._masks.fill(members)
        if lone is not None:
            return self._given(logits, lone, rows)
        parts = []
        for begin, end, adjusted in self._penalties.adjust(logits):
            self._masks.apply(adjusted, begin, end)
            own = draws.rows(end - begin, filtered=draws.filtered, first=begin)
            parts.append(pick(adjusted, own, positions[begin:end]))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _given(self, logits: Tensor, lone: list[int], rows: Tensor | None) -> Tensor:
        """The only tokens that the rows can have need no draw; -1 as everywhere else."""
        ids = to_device(np.array(lone, np.int32), self._device).long()
        at = torch.arange(len(lone), device=self._device) if rows is None else rows
        return torch.where(logits[at, ids].isfinite(), ids, -1)

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
