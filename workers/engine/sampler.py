"""From logits to tokens, for the sequences of one step, without waiting for the device.

Owns penalties and log-probabilities and what is read back of a step. Must not know the network; the
draw itself is `kernels.sample`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from kernels.sample import logprobs, pick
from protocol.messages import TokenLogprobs
from workers.core.plan import Sampled
from workers.engine.batch import to_device
from workers.engine.draws import DrawTable, is_penalised
from workers.engine.sequences import SequenceState


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


@dataclass(slots=True)
class _Counts:
    """Over the vocabulary: outputs so far (float32), and tokens seen at all (bool)."""

    outputs: Tensor
    seen: Tensor


@final
class Sampler:
    """Samples rows of logits; keeps token counts of sequences with penalties until `forget`."""

    def __init__(self, vocab_size: int, max_rows: int, device: torch.device) -> None:
        self.draws = DrawTable(vocab_size, max_rows, device)
        self._vocab_size = vocab_size
        self._device = device
        self._counts: dict[int, _Counts] = {}

    def forget(self, seqs: Sequence[int]) -> None:
        """Drop what is known of ended sequences: their numbers may be given to others."""
        self.draws.forget(seqs)
        for seq in seqs:
            self._counts.pop(seq, None)

    def sample(self, logits: Tensor, states: Sequence[SequenceState], positions: Tensor) -> Picked:
        """One token for each row of logits [S, vocab], at its absolute position (int [S])."""
        self.draws.arrange(states)
        penalised = [row for row, state in enumerate(states) if is_penalised(state.sampling)]
        adjusted = self._penalise(logits, penalised, states)
        draws = self.draws.rows(len(states), filtered=self.draws.filtered)
        ids = pick(adjusted, draws, positions)
        # Ahead of the counts: a step that runs out of memory here is repeated.
        scores = self._scores(logits, ids, states)
        for row in penalised:
            counts = self._counts[states[row].seq]
            own = ids[row : row + 1]  # an index without dimensions would be read back
            counts.outputs[own] += 1
            counts.seen[own] = True
        return Picked(tuple([state.seq for state in states]), ids, *scores)

    def _penalise(
        self, logits: Tensor, penalised: Iterable[int], states: Sequence[SequenceState]
    ) -> Tensor:
        """Repetition first, as everywhere; then presence and frequency (OpenAI's definition)."""
        adjusted = logits
        for row in penalised:
            if adjusted is logits:
                adjusted = logits.float().clone()
            params, counts = states[row].sampling, self._counts_of(states[row])
            values = adjusted[row]
            if params.repetition_penalty != 1.0:
                factor = params.repetition_penalty
                repeated = torch.where(values > 0, values / factor, values * factor)
                values = torch.where(counts.seen, repeated, values)
            values = values - params.frequency_penalty * counts.outputs
            adjusted[row] = values - params.presence_penalty * (counts.outputs > 0)
        return adjusted

    def _counts_of(self, state: SequenceState) -> _Counts:
        """Made with the first token: until then the host knows every token of the sequence."""
        counts = self._counts.get(state.seq)
        if counts is None:
            tokens = to_device(np.array(state.tokens, np.int32), self._device).long()
            said = tokens[state.num_prompt :]
            # bincount would wait for the device to learn its size.
            outputs = torch.zeros(self._vocab_size, dtype=torch.float32, device=self._device)
            outputs.index_add_(0, said, torch.ones_like(said, dtype=torch.float32))
            seen = torch.zeros(self._vocab_size, dtype=torch.bool, device=self._device)
            seen[tokens] = True
            counts = self._counts[state.seq] = _Counts(outputs, seen)
        return counts

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
        return wanted, logprobs(logits[rows], ids[rows], num_top)


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
