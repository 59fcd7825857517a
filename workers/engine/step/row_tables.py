"""What tables with a row for each sampled sequence of a step have in common.

Owns when such a table is sent anew, and how: only when other sequences, or in another order, are
sampled. Must not know what stands in a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

import numpy as np
from torch import Tensor

from workers.engine.step.batch import send_into
from workers.engine.step.sequences import SequenceState

WIDENED_ROWS: Final = 64
"""Rows whose logits are made float32 at once, for penalties or log-probabilities: of 151,936 tokens
39 MB, which a Hopper's L2 holds while they are read. A multiple of 4, so that parts of the tensors
begin at multiples of 16 bytes.
"""


@final
class RowOrder:
    """Whose rows a table holds: nobody's, as long as not all is sent."""

    def __init__(self) -> None:
        self._held: tuple[int, ...] = ()
        self._coming: tuple[int, ...] = ()

    def is_new(self, states: Sequence[SequenceState]) -> bool:
        """Whether the table must be sent for them. Then it is nobody's until `sent`: memory may run
        out in between, and the step is repeated.
        """
        self._coming = tuple([state.seq for state in states])
        if self._coming == self._held:
            return False
        self._held = ()
        return True

    def sent(self) -> None:
        """All of it, for those whom `is_new` was told last."""
        self._held = self._coming

    def forget(self, seqs: Sequence[int]) -> None:
        """Their numbers may be given to others."""
        if not set(seqs).isdisjoint(self._held):
            self._held = ()


def send_columns(target: Tensor, values: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> None:
    """Copy into the leading columns; on a card after the steps in flight, which read them."""
    send_into(target[..., : values.shape[-1]], values)
