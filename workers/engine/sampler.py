"""From logits to tokens, for the sequences of one step.

Owns penalties, which rows are greedy, and log-probabilities. Must not know the network; the draw
itself is `kernels.sample`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.sample import Draw, greedy, sample
from protocol.messages import TokenLogprobs
from protocol.sampling import SamplingParams
from workers.core.plan import Sampled
from workers.engine.sequences import SequenceState

_MIN_TEMPERATURE = 1e-5
"""Below it the scaled logits overflow float32; greedy is the limit anyway."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """What stays the same while the same sequences are sampled: decode steps repeat them."""

    drawn: Tensor | None
    draw: Draw | None
    penalised: tuple[int, ...]
    logprobs: tuple[int, ...]
    num_top: int


@dataclass(slots=True)
class _Counts:
    """Over the vocabulary: outputs so far (float32), and tokens seen at all (bool)."""

    outputs: Tensor
    seen: Tensor


class Sampler:
    """Samples rows of logits; keeps token counts of sequences with penalties until `forget`."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._counts: dict[int, _Counts] = {}
        self._seqs: tuple[int, ...] = ()
        self._rows = _Rows(None, None, (), (), 0)

    def forget(self, seqs: Iterable[int]) -> None:
        """Drop what is known of ended sequences: their numbers may be given to others."""
        for seq in seqs:
            self._counts.pop(seq, None)
            if seq in self._seqs:
                self._seqs = ()

    def sample(
        self, logits: Tensor, states: Sequence[SequenceState], positions: Sequence[int]
    ) -> tuple[list[Sampled], list[int]]:
        """One token for each row of logits [S, vocab] float32, at its absolute position.

        Returns the tokens, and the sequences whose logits are not numbers.
        """
        seqs = tuple(state.seq for state in states)
        if seqs != self._seqs:
            self._seqs, self._rows = seqs, self._describe(states)
        rows = self._rows
        chosen = self._choose(self._penalise(logits, rows, states), rows, positions)
        finite = logits.gather(1, chosen.unsqueeze(1)).squeeze(1).isfinite()
        ids = torch.where(finite, chosen, -1).tolist()
        logprobs = self._logprobs(logits, chosen, rows, states)
        self._count(ids, rows, states)
        good = [
            Sampled(state.seq, (token_id,), logprobs.get(row, ()))
            for row, (state, token_id) in enumerate(zip(states, ids, strict=True))
            if token_id >= 0
        ]
        return good, [seq for seq, token_id in zip(seqs, ids, strict=True) if token_id < 0]

    def _choose(self, logits: Tensor, rows: _Rows, positions: Sequence[int]) -> Tensor:
        if rows.draw is None:
            return greedy(logits)
        at = torch.tensor(positions, dtype=torch.int64, device=self._device)
        if rows.drawn is None:
            return sample(logits, rows.draw, at)
        chosen = greedy(logits)
        chosen[rows.drawn] = sample(logits[rows.drawn], rows.draw, at[rows.drawn])
        return chosen

    def _describe(self, states: Sequence[SequenceState]) -> _Rows:
        params = [state.sampling for state in states]
        drawn = [row for row, p in enumerate(params) if p.temperature >= _MIN_TEMPERATURE]
        wanted = tuple(row for row, p in enumerate(params) if p.logprobs is not None)
        return _Rows(
            drawn=self._ints(drawn) if len(drawn) < len(states) else None,
            draw=self._draw([states[row] for row in drawn]) if drawn else None,
            penalised=tuple(row for row, p in enumerate(params) if _is_penalised(p)),
            logprobs=wanted,
            num_top=max((params[row].logprobs or 0 for row in wanted), default=0),
        )

    def _draw(self, states: Sequence[SequenceState]) -> Draw:
        params = [state.sampling for state in states]
        filters_k = any(0 < p.top_k < self._vocab_size for p in params)
        return Draw(
            seeds=self._ints([state.seed for state in states]),
            temperature=self._floats([p.temperature for p in params]),
            top_k=self._ints([p.top_k for p in params]) if filters_k else None,
            top_p=self._floats([p.top_p for p in params])
            if any(p.top_p < 1.0 for p in params)
            else None,
            min_p=self._floats([p.min_p for p in params])
            if any(p.min_p > 0.0 for p in params)
            else None,
        )

    def _penalise(self, logits: Tensor, rows: _Rows, states: Sequence[SequenceState]) -> Tensor:
        """Repetition first, as everywhere; then presence and frequency (OpenAI's definition)."""
        if not rows.penalised:
            return logits
        logits = logits.clone()
        for row in rows.penalised:
            params, counts = states[row].sampling, self._counts_of(states[row])
            values = logits[row]
            if params.repetition_penalty != 1.0:
                factor = params.repetition_penalty
                repeated = torch.where(values > 0, values / factor, values * factor)
                values = torch.where(counts.seen, repeated, values)
            values = values - params.frequency_penalty * counts.outputs
            logits[row] = values - params.presence_penalty * (counts.outputs > 0)
        return logits

    def _counts_of(self, state: SequenceState) -> _Counts:
        counts = self._counts.get(state.seq)
        if counts is None:
            tokens = torch.from_numpy(np.array(state.tokens, np.int64)).to(self._device)
            outputs = tokens[state.num_prompt :].bincount(minlength=self._vocab_size).float()
            seen = torch.zeros(self._vocab_size, dtype=torch.bool, device=self._device)
            seen[tokens] = True
            counts = self._counts[state.seq] = _Counts(outputs, seen)
        return counts

    def _count(self, ids: list[int], rows: _Rows, states: Sequence[SequenceState]) -> None:
        for row in rows.penalised:
            if ids[row] >= 0:
                counts = self._counts[states[row].seq]
                counts.outputs[ids[row]] += 1
                counts.seen[ids[row]] = True

    def _logprobs(
        self, logits: Tensor, chosen: Tensor, rows: _Rows, states: Sequence[SequenceState]
    ) -> dict[int, tuple[TokenLogprobs]]:
        """By row: log-softmax of the raw logits, whatever the penalties and filters did."""
        if not rows.logprobs:
            return {}
        wanted = self._ints(rows.logprobs)
        scores = logits[wanted].log_softmax(dim=-1)
        own = scores.gather(1, chosen[wanted].unsqueeze(1)).squeeze(1).tolist()
        best = scores.topk(min(rows.num_top, self._vocab_size), dim=-1)
        ids, values = best.indices.tolist(), best.values.tolist()
        found = {}
        for index, row in enumerate(rows.logprobs):
            top = tuple(zip(ids[index], values[index], strict=True))
            found[row] = (TokenLogprobs(own[index], top[: states[row].sampling.logprobs]),)
        return found

    def _ints(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)

    def _floats(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self._device)


def _is_penalised(params: SamplingParams) -> bool:
    neutral = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
    return neutral != (1.0, 0.0, 0.0)
