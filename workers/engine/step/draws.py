"""The parameters by which each row of a step is drawn, on the device, at fixed addresses.

Owns the tensors that a captured graph reads, and the rule for sending such a table again: only when
other sequences are sampled, or the same ones in another order. Must not know logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, final

import numpy as np
import torch
from torch import Tensor

from kernels.sample import Draws
from protocol.sampling import SamplingParams
from workers.engine.step.batch import SequenceState, aligned, send_into

WIDENED_ROWS: Final = 64
"""How many rows of logits are widened to float32 at a time, for penalties or log-probabilities. For
151,936 tokens they take 39 MB, which a Hopper's L2 holds while they are read. A multiple of 4, so
that parts of the tensors begin at multiples of 16 bytes.
"""


@final
class RowOrder:
    """The sequences whose rows a table on the device holds, in order; none while it is sent."""

    def __init__(self) -> None:
        self._held: tuple[int, ...] = ()
        self._coming: tuple[int, ...] = ()

    def is_new(self, states: Sequence[SequenceState]) -> bool:
        """Whether the table must be sent again for these sequences. If so, it counts as empty until
        `sent`: memory may run out in between, and then the step is repeated.
        """
        self._coming = tuple([state.seq for state in states])
        if self._coming == self._held:
            return False
        self._held = ()
        return True

    def sent(self) -> None:
        """The whole table was sent for the sequences of the last `is_new`."""
        self._held = self._coming

    def forget(self, seqs: Sequence[int]) -> None:
        """Forget ended sequences: other sequences may get their numbers."""
        if not set(seqs).isdisjoint(self._held):
            self._held = ()


def send_columns(target: Tensor, values: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> None:
    """Copy into the leading columns; on a card after the steps in flight, which read them."""
    send_into(target[..., : values.shape[-1]], values)


_MIN_TEMPERATURE: Final = 1e-5
"""Below it the scaled logits overflow float32; greedy is the limit anyway."""


class DrawKind(Enum):
    """What the rows of a step need beside their logits."""

    PLAIN = "greedy or a temperature"
    FILTERED = "top_k, top_p or min_p somewhere"
    GENERAL = "penalties, grammars or log-probabilities somewhere"


@final
class DrawTable:
    """Draw parameters for up to `num_rows` rows. `kind` and `filtered` describe the rows of the
    last `arrange`.
    """

    def __init__(self, vocab_size: int, num_rows: int, device: torch.device) -> None:
        self.kind = DrawKind.PLAIN
        self.filtered = False
        self._vocab_size = vocab_size
        self._order = RowOrder()
        self._seeds = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self._floats = torch.zeros((3, aligned(num_rows)), dtype=torch.float32, device=device)
        self._top_k = torch.zeros(num_rows, dtype=torch.int32, device=device)

    def forget(self, seqs: Sequence[int]) -> None:
        """Forget ended sequences: other sequences may get their numbers."""
        self._order.forget(seqs)

    def arrange(self, states: Sequence[SequenceState]) -> None:
        """Set row i to the parameters of `states[i]` for the next step."""
        if not self._order.is_new(states):
            return
        params = [state.sampling for state in states]
        self.filtered = any(self._is_filtered(p) for p in params)
        general = any(is_adjusted(s) or s.sampling.logprobs is not None for s in states)
        self.kind = (
            DrawKind.GENERAL if general else DrawKind.FILTERED if self.filtered else DrawKind.PLAIN
        )
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


def is_adjusted(state: SequenceState) -> bool:
    """Whether earlier tokens change the sequence's logits: by penalties or a grammar."""
    return state.sampling.has_penalties or state.grammar is not None
