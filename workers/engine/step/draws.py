"""How each row of a step is drawn, on the device, at fixed addresses.

Owns the tensors that a captured graph reads. Must not know logits, nor when rows change
(`row_tables.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, final

import numpy as np
import torch

from kernels.sample import Draws
from protocol.sampling import SamplingParams
from workers.engine.step.batch import aligned
from workers.engine.step.row_tables import RowOrder, send_columns
from workers.engine.step.sequences import SequenceState

_MIN_TEMPERATURE: Final = 1e-5
"""Below it the scaled logits overflow float32; greedy is the limit anyway."""


class Kind(Enum):
    """What the rows of a step need beside their logits."""

    PLAIN = "greedy or a temperature"
    FILTERED = "top_k, top_p or min_p somewhere"
    GENERAL = "penalties or log-probabilities somewhere"


@final
class DrawTable:
    """Draw parameters for up to `num_rows` rows; `kind` is that of the rows last arranged."""

    def __init__(self, vocab_size: int, num_rows: int, device: torch.device) -> None:
        self.kind = Kind.PLAIN
        self.filtered = False
        self._vocab_size = vocab_size
        self._order = RowOrder()
        self._seeds = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self._floats = torch.zeros((3, aligned(num_rows)), dtype=torch.float32, device=device)
        self._top_k = torch.zeros(num_rows, dtype=torch.int32, device=device)

    def forget(self, seqs: Sequence[int]) -> None:
        """Their numbers may be given to others."""
        self._order.forget(seqs)

    def arrange(self, states: Sequence[SequenceState]) -> None:
        """The rows of the next step are these sequences, in this order."""
        if not self._order.is_new(states):
            return
        params = [state.sampling for state in states]
        self.filtered = any(self._is_filtered(p) for p in params)
        general = any(is_penalised(p) or p.logprobs is not None for p in params)
        self.kind = Kind.GENERAL if general else Kind.FILTERED if self.filtered else Kind.PLAIN
        send_columns(self._seeds, np.array([state.seed for state in states], np.int64))
        temperatures = [p.temperature if p.temperature >= _MIN_TEMPERATURE else 0.0 for p in params]
        floats = [temperatures, [p.top_p for p in params], [p.min_p for p in params]]
        send_columns(self._floats, np.array(floats, np.float32))
        top_k = [p.top_k if p.top_k < self._vocab_size else 0 for p in params]
        send_columns(self._top_k, np.array(top_k, np.int32))
        self._order.sent()

    def rows(self, num_rows: int, *, filtered: bool, first: int = 0) -> Draws:
        """The parameters of `num_rows` rows from the `first` on: views of the fixed tensors."""
        end = first + num_rows
        temperature, top_p, min_p = self._floats[:, first:end].unbind()
        return Draws(
            self._seeds[first:end],
            temperature,
            self._top_k[first:end],
            top_p,
            min_p,
            filtered=filtered,
        )

    def _is_filtered(self, params: SamplingParams) -> bool:
        return (
            0 < params.top_k < self._vocab_size or params.top_p < 1.0 or params.min_p > 0.0
        ) and params.temperature >= _MIN_TEMPERATURE


def is_penalised(params: SamplingParams) -> bool:
    """Whether logits depend on what was said before."""
    neutral = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
    return neutral != (1.0, 0.0, 0.0)
