"""Which tokens the sequences with a grammar may have next, on the device.

Owns the bits of the rows of a step: they are filled on the host while the network computes, and
sent before the draw. Must not know what a grammar is, nor how logits are drawn.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from kernels.token_mask import mask_tokens, num_words
from protocol.errors import HermaError
from workers.engine.step.batch import SequenceState, send_into

_Words: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int32]]

_ALL: int = -1
_NONE: int = 0


@final
class AnyToken:
    """A grammar that allows everything, for imagined sequences."""

    error = ""

    def fill(self, outputs: array[int], row: _Words) -> int | None:  # noqa: ARG002 - the seam's
        """See `workers.engine.step.batch.Follower`."""
        row[:] = _ALL
        return None


@final
class MaskTable:
    """For up to `num_rows` rows. All memory is taken at once, at the start."""

    def __init__(self, vocab_size: int, num_rows: int, device: torch.device) -> None:
        width = num_words(vocab_size)
        self._masks = torch.zeros((num_rows, width), dtype=torch.int32, device=device)
        self._host = np.empty((num_rows, width), np.int32)
        self._is_needed = False

    def fill(self, states: Sequence[SequenceState]) -> list[int] | None:
        """The rows of the next step are these sequences, some of which may have no grammar: they
        may have any token. Returns the tokens if each row can have only one.

        A row whose grammar cannot be followed has no token: its draw gives -1.
        """
        self._is_needed = any(state.grammar is not None for state in states)
        if not self._is_needed:
            return None
        rows = self._host[: len(states)]
        lone: list[int] = []
        for row, state in zip(rows, states, strict=True):
            if state.grammar is None:
                row[:] = _ALL
                continue
            try:
                token_id = state.grammar.fill(state.tokens[state.num_prompt :], row)
            except HermaError:
                row[:] = _NONE
                continue
            if token_id is not None:
                lone.append(token_id)
        if len(lone) == len(states):
            return lone
        send_into(self._masks[: len(states)], rows)
        return None

    def apply(self, logits: Tensor, begin: int, end: int) -> None:
        """Take out of float32 logits [end - begin, vocab] what the rows last filled forbid."""
        if self._is_needed:
            mask_tokens(logits, self._masks[begin:end])
